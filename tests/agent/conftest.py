"""Doubles for the agent's surroundings: a store in memory that can be broken, collectors that do as told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpudiag.agent.clock import ManualClock
from gpudiag.errors import StoreError
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding

NOON_MS = 1_767_225_600_000


@dataclass
class MemoryStore:
    """What was written, call by call; `broken` makes every call fail."""

    frames: list[Frame] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    findings: list[StoredFinding] = field(default_factory=list)
    appends: list[int] = field(default_factory=list)
    broken: StoreError | None = None
    closed: int = 0
    opened: int = 0

    def open(self) -> Any:
        self._check()
        self.opened += 1
        return self

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def append(self, frames: Sequence[Frame]) -> None:
        self._check()
        self.appends.append(len(frames))
        self.frames.extend(frames)

    def put_job(self, job: Job) -> None:
        self._check()
        self.jobs.append(job)

    def put_allocations(self, allocations: Iterable[Allocation]) -> None:
        self._check()
        self.allocations.extend(allocations)

    def put_devices(self, devices: Iterable[Device]) -> None:
        self._check()
        self.devices.extend(devices)

    def put_events(self, events: Iterable[Event]) -> None:
        self._check()
        self.events.extend(events)

    def put_findings(self, findings: Iterable[StoredFinding]) -> None:
        self._check()
        self.findings.extend(findings)

    def close(self) -> None:
        self.closed += 1


@dataclass
class ScriptedCollector:
    """Yields `values` for its source each time, or raises `error`; `takes` seconds pass meanwhile."""

    name: str
    source: Source
    values: dict[str, float] = field(default_factory=dict)
    clock: ManualClock | None = None
    error: Exception | None = None
    takes: float = 0.0
    extra: list[Event | Device] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    closed: int = 0

    def collect(self, now_ms: int) -> Iterable[Frame | Event | Device]:
        if self.clock is not None:
            self.clock.sleep(self.takes)
        if self.error is not None:
            raise self.error
        yield Frame(self.source, now_ms, dict(self.values), dict(self.origins))
        yield from self.extra
        self.extra = []

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


@pytest.fixture
def memory_store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def scripted() -> type[ScriptedCollector]:
    return ScriptedCollector
