"""The samples of one node's part of a job over a stretch of time, as rules see them: live and afterwards alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpudiag.storage.job import Device, Event, Job
from gpudiag.storage.sample import JOB_PREFIX, NODE, Floats, Source

Codes = npt.NDArray[np.int8]
NO_PHASE = np.int8(-1)


@dataclass(frozen=True)
class Stretch:
    """Seconds `start_s` (UNIX) to `start_s + seconds` on `node`, from `job_start_s` on measured, NaN before.

    `column(source, metric, first)` gives float64 from second `first` on; with `partial` it is asked for no more than is
    looked at, else for all of it once. `phases` [seconds] are codes of `model.PHASES`, -1 where
    no label is known yet or the job had not begun.
    """

    node: str
    job: Job
    start_s: int
    seconds: int
    gpus: tuple[Source, ...]
    column: Callable[[Source, str, int], Floats]
    phases: Codes
    devices: Mapping[Source, Device]
    events: tuple[Event, ...] = ()
    nodes: int = 1
    partial: bool = False

    @property
    def job_start_s(self) -> int:
        """The second in which the job began."""
        return self.job.start_ms // 1000

    def rows(self, scope: str) -> tuple[Source, ...]:
        """The sources of a scope, one per row of its arrays."""
        return self.gpus if scope == "gpu" else (host_source(self.node, self.job, scope),)

    def groups(self) -> npt.NDArray[np.int64]:
        """A number per GPU, equal for GPUs that may be compared: of one model, or unknown."""
        models = [device.model if (device := self.devices.get(gpu)) else "" for gpu in self.gpus]
        names = sorted(set(models))
        return np.array([names.index(model) for model in models], dtype=np.int64)


def host_source(node: str, job: Job, scope: str) -> Source:
    """The source of a node, or of a job's share of it."""
    return Source(node, NODE if scope == "node" else f"{JOB_PREFIX}{job.key}")
