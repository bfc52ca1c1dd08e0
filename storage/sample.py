"""The records that cross package borders: who was measured, when, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Millis = npt.NDArray[np.int64]

NODE = "node"
JOB_PREFIX = "job:"


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Who a series is about: a device of a node.

    `device` is a GPU or MIG UUID, `"node"` for the host, or `"job:<job key>"` for a job's share of the host.
    """

    node: str
    device: str

    @property
    def scope(self) -> str:
        """`"gpu"`, `"node"` or `"job"`: which part of the catalog its metrics come from."""
        if self.device == NODE:
            return "node"
        return "job" if self.device.startswith(JOB_PREFIX) else "gpu"


@dataclass(frozen=True, slots=True)
class Frame:
    """What one source measured at one instant (UNIX milliseconds, UTC), in base units.

    A metric that could not be measured is absent, never zero. `origins` names, for metrics that can come from
    several places (`gpm`, `dcgm`, `nvml`, ...), which one it was: two origins never share a mean.
    """

    source: Source
    time_ms: int
    values: Mapping[str, float]
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Samples of one source in time order: `times_ms` [n], and per metric `columns[name]` [n], NaN where missing.

    `origins[name]` is the single origin of that column; samples from a lesser origin are left out and
    listed in `dropped_origins[name]`.
    """

    source: Source
    times_ms: Millis
    columns: Mapping[str, Floats]
    origins: Mapping[str, str] = field(default_factory=dict)
    dropped_origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    damaged_ms: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.times_ms)
