"""What every store can do, whichever engine it is on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpudiag.storage.job import Allocation, Device, Event, Job, Json
from gpudiag.storage.sample import Block, Frame, Source


@dataclass(frozen=True)
class StoredFinding:
    """A finding as the live agent kept it: its identity, interval (`end_ms` None while open) and JSON body."""

    rule: str
    source: Source
    start_ms: int
    end_ms: int | None
    severity: str
    job_key: str = ""
    body: Json = None


@dataclass(frozen=True)
class JobFilter:
    """Which jobs to list; an empty field does not restrict. `id` matches every form of `Job.id` and `raw_id`."""

    id: str = ""
    user: str = ""
    state: str = ""
    node: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int = 0


class Reader(Protocol):
    """Reading side: a report needs nothing else. Raises `StoreError` and its kinds."""

    def jobs(self, wanted: JobFilter = JobFilter()) -> list[Job]:
        """Matching jobs, latest start first."""

    def allocations(self, job_key: str) -> list[Allocation]:
        """The job's devices, nodes included, over all nodes; by source, then start."""

    def devices(self, sources: Iterable[Source]) -> dict[Source, Device]:
        """Latest known attributes of each."""

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: Sequence[str] | None = None) -> Block:
        """Samples with `start_ms <= time < end_ms`, chunks and head together; empty when none."""

    def sources(self, start_ms: int, end_ms: int) -> list[Source]:
        """Sources that have samples there, sorted."""

    def events(
        self, start_ms: int, end_ms: int, node: str | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        """Events with `start_ms <= time < end_ms`, in time order."""

    def findings(self, start_ms: int, end_ms: int, job_key: str | None = None) -> list[StoredFinding]:
        """Findings of the live agent that touch the interval, in time order."""

    def close(self) -> None:
        """Let go of the database."""


class Store(Reader, Protocol):
    """Writing side: each call is one transaction and is on disk when it returns."""

    def append(self, frames: Sequence[Frame]) -> None:
        """One flush. Frames of a source come in time order; windows that are complete are sealed."""

    def put_job(self, job: Job) -> None:
        """Insert, or replace the row with the same key."""

    def put_allocations(self, allocations: Iterable[Allocation]) -> None:
        """Insert, or replace rows with the same job, source and start."""

    def put_devices(self, devices: Iterable[Device]) -> None:
        """Insert those whose attributes differ from the latest known."""

    def put_events(self, events: Iterable[Event]) -> None:
        """Insert; a repeated natural key is ignored."""

    def put_findings(self, findings: Iterable[StoredFinding]) -> None:
        """Insert, or replace rows with the same rule, source and start."""
