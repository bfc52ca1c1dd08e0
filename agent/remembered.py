"""What an agent that starts needs to know of the time before: devices, open jobs, an unfinished driver trouble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.store import JobFilter, Reader, StoredFinding

_DAY_MS = 86_400_000
_LOOK_BACK_MS = (3_600_000, _DAY_MS, 30 * _DAY_MS)
_TROUBLES = ("driver_hung", "driver_unavailable", "driver_crashed")


@dataclass(frozen=True)
class Remembered:
    """Empty for a database that is new or cannot be read."""

    devices: tuple[Device, ...] = ()
    jobs: tuple[tuple[Job, Sequence[Allocation]], ...] = ()
    last_sample_ms: int = 0
    open_trouble: tuple[str, int] | None = None
    open_findings: tuple[StoredFinding, ...] = ()


def remember(reader: Reader, node: str, now_ms: int) -> Remembered:
    """Read it from the database of this node. Raises `StoreError`."""
    last_sample_ms = _last_sample_ms(reader, node, now_ms)
    recent = reader.sources(now_ms - 30 * _DAY_MS, now_ms + 1)
    gpus = [source for source in recent if source.node == node and source.scope == "gpu"]
    running = [job for job in reader.jobs(JobFilter(state="running", node=node)) if job.end_ms is None]
    ended = JobFilter(state="unknown", node=node, start_ms=now_ms - 30 * _DAY_MS)
    running += [job for job in reader.jobs(ended) if job.meta.get("end_presumed")]
    jobs = tuple((job, reader.allocations(job.key)) for job in running)
    findings = reader.findings(now_ms - 30 * _DAY_MS, now_ms + 1)
    return Remembered(
        tuple(reader.devices(gpus).values()),
        jobs,
        last_sample_ms,
        _open_trouble(reader, node, now_ms),
        tuple(one for one in findings if one.end_ms is None and one.source.node == node),
    )


def _last_sample_ms(reader: Reader, node: str, now_ms: int) -> int:
    for span in _LOOK_BACK_MS:
        block = reader.read(Source(node, NODE), now_ms - span, now_ms + 1, ["cpu_busy_ratio"])
        if len(block):
            return int(block.times_ms[-1])
    return 0


def _open_trouble(reader: Reader, node: str, now_ms: int) -> tuple[str, int] | None:
    kinds = (*_TROUBLES, "driver_recovered")
    events: list[Event] = reader.events(now_ms - 30 * _DAY_MS, now_ms + 1, node, kinds)
    if not events or events[-1].kind == "driver_recovered":
        return None
    return events[-1].kind, events[-1].code
