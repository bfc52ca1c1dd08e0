"""Until when anything can be told of a job that nobody ended: its node may have died months ago."""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.store import Reader

SILENT_MS = 86_400_000  # longer than any outage of an agent that somebody would still call the same run


def told_until(reader: Reader, job: Job, allocations: Iterable[Allocation], now_ms: int) -> int:
    """The job's end; of one that runs `now_ms`, or at most a day after its devices' last sample. UNIX milliseconds."""
    if job.end_ms is not None:
        return job.end_ms
    own = {allocation.source for allocation in allocations}

    def measured_since(time_ms: int) -> bool:
        return not own.isdisjoint(reader.sources(time_ms, now_ms))

    if now_ms - job.start_ms <= SILENT_MS or measured_since(now_ms - SILENT_MS):
        return now_ms
    measured, silent = job.start_ms, now_ms
    while silent - measured > SILENT_MS:
        middle = (measured + silent) // 2
        if measured_since(middle):
            measured = middle
        else:
            silent = middle
    return silent
