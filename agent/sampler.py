"""One sampling cycle: run the collectors, merge what they give per source, attribute, judge, record, publish.

Knows nothing of real time beyond its clock: with a fake one it runs as fast as the collectors answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import Collector, NothingToCollect
from gpudiag.agent.lost_time import LostTime
from gpudiag.agent.origins import Merger
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.runner import Guard, Outcome, Reading, Runner
from gpudiag.agent.timeline import Timeline
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding


@dataclass(frozen=True)
class RunningJob:
    """A job on this node as /metrics and the rules need it."""

    job: Job
    allocations: tuple[Allocation, ...] = ()

    @property
    def uuids(self) -> tuple[str, ...]:
        """Its GPUs and MIG instances, sorted."""
        return tuple(sorted({one.source.device for one in self.allocations if one.source.scope == "gpu"}))


class Attributor(Protocol):
    """Says which jobs run here now; `changes` are rows for the store."""

    def reconcile(
        self, now_ms: int, devices: Mapping[Source, Device]
    ) -> tuple[Sequence[Job], Sequence[Allocation], Sequence[Event]]:
        """Jobs and allocations that began, changed or ended, and events."""

    @property
    def running(self) -> Sequence[RunningJob]:
        """The jobs on this node now."""


class Judge(Protocol):
    """Judges samples as they come."""

    def observe(
        self,
        now_ms: int,
        frames: Iterable[Frame],
        events: Iterable[Event],
        jobs: Sequence[RunningJob],
        devices: Mapping[Source, Device],
    ) -> Sequence[StoredFinding]:
        """Findings that were opened, updated or closed by this tick."""

    @property
    def open(self) -> Sequence[StoredFinding]:
        """Findings that hold now."""


@dataclass(frozen=True)
class Snapshot:
    """The latest tick, complete and immutable: what /metrics shows. Replaced as a whole, never changed."""

    time_ms: int = 0
    monotonic: float = float("-inf")
    frames: tuple[Frame, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    devices: Mapping[Source, Device] = field(default_factory=dict)
    jobs: tuple[RunningJob, ...] = ()
    findings: tuple[StoredFinding, ...] = ()
    events: Mapping[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    lost_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    ticks: int = 0
    skipped: int = 0


class Sampler:
    """Runs one tick at a time; whoever drives it decides when."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        recorder: Recorder,
        clock: Clock,
        node: str,
        interval: float = 1.0,
        attributor: Attributor | None = None,
        judge: Judge | None = None,
        on_devices: Callable[[Sequence[Device]], None] = lambda devices: None,
    ) -> None:
        self._runners = [Runner(collector, clock) for collector in collectors]
        self._recorder = recorder
        self._clock = clock
        self._timeline = Timeline(node, clock, interval)
        self._attributor = attributor
        self._attribution = Guard("attribution", clock)
        self._rules = Guard("rules", clock)
        self.judge = judge
        self._devices: dict[Source, Device] = {}
        self._events = EventTally()
        self._lost = LostTime()
        self._judged_at: float | None = None
        self._merger = Merger()
        self._on_devices = on_devices
        self._ticks = 0
        self.snapshot = Snapshot()

    def set_interval(self, interval: float) -> None:
        """From now on ticks are this many seconds apart."""
        self._timeline.interval = interval

    def tick(self) -> Snapshot:
        """One sampling cycle at the clock's present time."""
        now_ms = self._clock.now_ms()
        events = list(self._timeline.tick(now_ms))
        readings = [runner.run(now_ms) for runner in self._runners]
        frames = self._merger.merge((frame for reading in readings for frame in reading.frames), now_ms)
        events += (event for reading in readings for event in reading.events)
        self._forget(events)
        self._learn(readings)
        events += self._attribution.run(now_ms, lambda: self._attribute(now_ms), ())
        self._recorder.add_frames(frames)
        self._recorder.add_events(events)
        self._rules.run(now_ms, lambda: self._judge(now_ms, frames, events), None)
        self._recorder.flush_if_due(now_ms)
        self._events.add(events)
        self._ticks += 1
        self.snapshot = self._published(now_ms, frames)
        return self.snapshot

    def close(self) -> None:
        """Write what is in memory, close the collectors."""
        self._recorder.close(self._clock.now_ms())
        for runner in self._runners:
            runner.collector.close()

    def _forget(self, events: Iterable[Event]) -> None:
        """MIG instances that were sliced away never come back: a new one has a new UUID."""
        for event in events:
            if event.kind == "mig_changed":
                for uuid in event.detail.get("removed", ()):
                    self._devices.pop(Source(event.source.node, uuid), None)

    def _learn(self, readings: Iterable[Reading]) -> None:
        devices = [device for reading in readings for device in reading.devices]
        self._devices.update((device.source, device) for device in devices)
        self._recorder.add_devices(devices)
        if devices:
            self._on_devices(devices)

    def _attribute(self, now_ms: int) -> Sequence[Event]:
        if self._attributor is None:
            raise NothingToCollect("jobs are not attributed")
        jobs, allocations, events = self._attributor.reconcile(now_ms, self._devices)
        self._recorder.add_jobs(jobs, allocations)
        return events

    def _judge(self, now_ms: int, frames: Iterable[Frame], events: Iterable[Event]) -> None:
        if self.judge is None:
            raise NothingToCollect("rules are not judged")
        self._count_lost_time(self.judge.open)
        findings = self.judge.observe(now_ms, frames, events, self._running(), self._devices)
        self._recorder.add_findings(findings)

    def _count_lost_time(self, findings: Sequence[StoredFinding]) -> None:
        """For the time since the tick before, during which these were open."""
        now, before = self._clock.monotonic(), self._judged_at
        self._judged_at = now
        if findings and before is not None:
            self._lost.add(findings, {one.job.key: one.uuids for one in self._running()}, now - before)

    def _running(self) -> tuple[RunningJob, ...]:
        return tuple(self._attributor.running) if self._attributor else ()

    def _published(self, now_ms: int, frames: tuple[Frame, ...]) -> Snapshot:
        return Snapshot(
            now_ms,
            self._clock.monotonic(),
            frames,
            (*(one.outcome for one in self._runners), self._attribution.outcome, self._rules.outcome),
            dict(self._devices),
            self._running(),
            tuple(self.judge.open) if self.judge else (),
            self._events.counts(),
            self._lost.totals(),
            self._ticks,
            self._timeline.skipped,
        )


class EventTally:
    """Counts events since the start by device, kind and code, with the time of the latest."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], tuple[int, int]] = {}

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            key = (event.source.device, event.kind, event.code)
            count, _ = self._counts.get(key, (0, 0))
            self._counts[key] = (count + 1, event.time_ms)

    def counts(self) -> Mapping[tuple[str, str, int], tuple[int, int]]:
        """(device, kind, code) to how many there were and when the latest was, UNIX milliseconds."""
        return dict(self._counts)
