"""Stands in for NVIDIA's `dcgm_agent`: which MIG instances there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pydcgm


def dcgmGetGpuInstanceHierarchy(handle: Any) -> Any:  # noqa: N802
    """Each instance is followed by its compute instance, as in the host engine's list."""
    entities = []
    for entity, one in pydcgm._state("hierarchy").get("instances", {}).items():
        info = SimpleNamespace(gpuUuid=one["gpu"].encode(), nvmlInstanceId=one["number"])
        for kind, number in ((4, int(entity)), (5, 100 + int(entity))):
            entities.append(
                SimpleNamespace(entity=SimpleNamespace(entityGroupId=kind, entityId=number), info=info)
            )
    return SimpleNamespace(count=len(entities), entityList=entities)
