"""A `Reader` over blocks held in memory: rule tests, the live window and unit tests read through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Block, Source
from gpudiag.storage.store import JobFilter, StoredFinding

EVERY_JOB = JobFilter()


class MemoryReader:
    """Serves whatever it was given; `blocks` hold each source's samples in time order."""

    def __init__(
        self,
        blocks: Mapping[Source, Block] | None = None,
        *,
        jobs: Sequence[Job] = (),
        allocations: Sequence[Allocation] = (),
        devices: Sequence[Device] = (),
        events: Sequence[Event] = (),
        findings: Sequence[StoredFinding] = (),
    ) -> None:
        self.blocks = dict(blocks or {})
        self._jobs = list(jobs)
        self._allocations = list(allocations)
        self._devices = list(devices)
        self._events = sorted(events, key=lambda event: event.time_ms)
        self._findings = list(findings)

    def jobs(self, wanted: JobFilter = EVERY_JOB) -> list[Job]:
        """Jobs whose id and user match, latest start first."""
        matching = (
            job
            for job in self._jobs
            if (not wanted.id or wanted.id in (job.id, job.raw_id))
            and (not wanted.user or wanted.user == job.user)
        )
        return sorted(matching, key=lambda job: -job.start_ms)

    def allocations(self, job_key: str) -> list[Allocation]:
        """The job's allocations by source, then start."""
        mine = (allocation for allocation in self._allocations if allocation.job_key == job_key)
        return sorted(mine, key=lambda allocation: (allocation.source, allocation.start_ms))

    def devices(self, sources: Iterable[Source]) -> dict[Source, Device]:
        """Attributes of each, the latest if there are several."""
        wanted = set(sources)
        known = sorted(self._devices, key=lambda device: device.since_ms)
        return {device.source: device for device in known if device.source in wanted}

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: Sequence[str] | None = None) -> Block:
        """The part of the source's block with `start_ms <= time < end_ms`."""
        block = self.blocks.get(source)
        if block is None:
            return Block(source, np.empty(0, dtype=np.int64), {})
        first, last = np.searchsorted(block.times_ms, (start_ms, end_ms))
        names = block.columns if metrics is None else [name for name in metrics if name in block.columns]
        return Block(
            source,
            block.times_ms[first:last],
            {name: block.columns[name][first:last] for name in names},
            {name: origin for name, origin in block.origins.items() if name in names},
        )

    def sources(self, start_ms: int, end_ms: int) -> list[Source]:
        """Sources with samples in the interval."""
        return sorted(source for source in self.blocks if len(self.read(source, start_ms, end_ms, ())))

    def events(
        self, start_ms: int, end_ms: int, node: str | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        """Events in the interval, in time order."""
        return [
            event
            for event in self._events
            if start_ms <= event.time_ms < end_ms
            and node in (None, event.source.node)
            and (not kinds or event.kind in kinds)
        ]

    def findings(self, start_ms: int, end_ms: int, job_key: str | None = None) -> list[StoredFinding]:
        """Findings that touch the interval."""
        return [
            finding
            for finding in self._findings
            if finding.start_ms < end_ms
            and (finding.end_ms is None or finding.end_ms > start_ms)
            and job_key in (None, finding.job_key)
        ]

    def close(self) -> None:
        """Nothing to let go of."""
