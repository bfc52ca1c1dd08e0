"""Stands in for NVIDIA's `pydcgm`, as far as gpudiag uses it; the host engine is a JSON file that the test rewrites.

{"gpus": {"0": {"uuid": "GPU-...", "fields": {"1002": 0.5, "155": null}}}, "age": 0, "fail": {"GetLatest_v2": "reason"},
 "hang": false, "instances": {"12": {"gpu": "GPU-...", "number": 3, "fields": {...}}}}; null is a blank value, `age` seconds makes every value that old.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class DCGMError(Exception):
    value = -21


def _state(call: str) -> Any:
    state = json.loads(Path(os.environ["FAKE_DCGM_STATE"]).read_text())
    if call in state.get("fail", {}):
        raise DCGMError(state["fail"][call])
    while state.get("hang"):
        time.sleep(0.01)
        state = json.loads(Path(os.environ["FAKE_DCGM_STATE"]).read_text())
    return state


class DcgmHandle:
    def __init__(
        self,
        handle: Any = None,
        ipAddress: str | None = None,  # noqa: N803
        unixSocketPath: str | None = None,  # noqa: N803
    ) -> None:
        self.handle = 1
        if ipAddress is None and unixSocketPath is None:
            raise AssertionError("this would start a host engine inside the process")
        _state("connect")
        Path(os.environ["FAKE_DCGM_STATE"] + ".connected").write_text(ipAddress or f"unix {unixSocketPath}")

    def GetSystem(self) -> DcgmSystem:  # noqa: N802
        return DcgmSystem()

    def Shutdown(self) -> None:  # noqa: N802
        Path(os.environ["FAKE_DCGM_STATE"] + ".connected").unlink(missing_ok=True)


class Discovery:
    def GetAllSupportedGpuIds(self) -> list[int]:  # noqa: N802
        return [int(gpu) for gpu in _state("GetAllSupportedGpuIds")["gpus"]]

    def GetGpuAttributes(self, gpu: int) -> Any:  # noqa: N802
        return SimpleNamespace(identifiers=SimpleNamespace(uuid=_state("")["gpus"][str(gpu)]["uuid"]))


class DcgmSystem:
    def __init__(self) -> None:
        self.discovery = Discovery()

    def GetGroupWithGpuIds(self, name: str, ids: list[int]) -> DcgmGroup:  # noqa: N802
        return DcgmGroup(ids)


class DcgmFieldGroup:
    def __init__(self, handle: DcgmHandle, name: str = "", fieldIds: list[int] | None = None) -> None:  # noqa: N803
        self.name = name
        self.fields = fieldIds or []


class DcgmGroup:
    def __init__(self, ids: list[int]) -> None:
        self.samples = Samples(ids)

    def AddEntity(self, kind: int, entity: int) -> None:  # noqa: N802
        assert kind == 4
        self.samples.instances.append(entity)


class Samples:
    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self.instances: list[int] = []

    def WatchFields(self, fields: DcgmFieldGroup, every_us: int, keep_age: float, keep_samples: int) -> None:  # noqa: N802
        _state("WatchFields profiling" if 1002 in fields.fields else "WatchFields device")

    def UnwatchFields(self, fields: DcgmFieldGroup) -> None:  # noqa: N802
        return

    def GetLatest_v2(self, fields: DcgmFieldGroup) -> Any:  # noqa: N802
        state = _state("GetLatest_v2")
        at = int((time.time() - state.get("age", 0)) * 1e6)

        def latest(known: dict[str, Any]) -> dict[int, list[Any]]:
            return {
                number: [SimpleNamespace(value=known[str(number)], isBlank=known[str(number)] is None, ts=at)]
                for number in fields.fields
                if str(number) in known
            }

        parts = state.get("instances", {})
        gpus = {gpu: latest(state["gpus"][str(gpu)]["fields"]) for gpu in self._ids}
        watched = [one for one in self.instances if str(one) in parts]
        return SimpleNamespace(
            values={1: gpus, 4: {one: latest(parts[str(one)]["fields"]) for one in watched}}
        )
