"""A recording as a reader, so that the diagnosis sees what a store would give it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from bench.scenarios.build import Recording

from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Block, Source
from gpudiag.storage.store import JobFilter, StoredFinding


class RecordingReader:
    """Reads a recording that is in memory."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def jobs(self, wanted: JobFilter = JobFilter()) -> list[Job]:  # noqa: B008 - frozen
        return [self.recording.job]

    def allocations(self, job_key: str) -> list[Allocation]:
        return list(self.recording.allocations)

    def devices(self, sources: Iterable[Source]) -> dict[Source, Device]:
        known = self.recording.devices
        return {source: known[source] for source in sources if source in known}

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: Sequence[str] | None = None) -> Block:
        block = self.recording.blocks.get(source)
        if block is None:
            return Block(source, np.empty(0, np.int64), {})
        first, last = np.searchsorted(block.times_ms, [start_ms, end_ms])
        names = block.columns if metrics is None else [name for name in metrics if name in block.columns]
        columns = {name: block.columns[name][first:last] for name in names}
        return Block(source, block.times_ms[first:last], columns, block.origins)

    def sources(self, start_ms: int, end_ms: int) -> list[Source]:
        return sorted(self.recording.blocks)

    def events(
        self, start_ms: int, end_ms: int, node: str | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        found = (event for event in self.recording.events if start_ms <= event.time_ms < end_ms)
        return [
            e for e in found if (node is None or e.source.node == node) and (not kinds or e.kind in kinds)
        ]

    def findings(self, start_ms: int, end_ms: int, job_key: str | None = None) -> list[StoredFinding]:
        return []

    def close(self) -> None:
        pass
