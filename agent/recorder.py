"""Writes what was sampled to the store, and keeps it in memory while the store fails.

A full or read-only disk, or a damaged file, must not stop sampling, rules or /metrics: what cannot be written
waits in a ring of limited age, the store is opened anew from time to time, and both ends of the outage are events.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gpudiag.agent.clock import Clock
from gpudiag.errors import StoreError
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import NODE, Frame, Source
from gpudiag.storage.store import Store, StoredFinding

log = logging.getLogger(__name__)
_RETRY_SECONDS = (10.0, 20.0, 40.0, 60.0)
_EVENTS_KEPT = 10_000
_IMPOSSIBLE = (ValueError, OverflowError, TypeError)  # text that is no Unicode, a number that no column holds


@dataclass
class Pending:
    """Rows that are not on disk yet."""

    frames: deque[Frame] = field(default_factory=deque)
    jobs: dict[str, Job] = field(default_factory=dict)
    allocations: dict[tuple[str, Source, int], Allocation] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_EVENTS_KEPT))
    findings: dict[tuple[str, Source, int], StoredFinding] = field(default_factory=dict)

    @property
    def urgent(self) -> bool:
        """Something else than samples waits: it is worth a write of its own."""
        return bool(self.jobs or self.allocations or self.events or self.findings or self.devices)


@dataclass(frozen=True)
class StoreState:
    """How the store does: `error` is empty while it takes what it is given. Counts are since the start."""

    error: str = ""
    waiting_frames: int = 0
    dropped_frames: int = 0
    flushes: int = 0
    flush_seconds: float = 0.0
    last_flush_ms: int | None = None


class Recorder:
    """One writer for everything the agent keeps. `open_store` is called again after a failure."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        node: str,
        clock: Clock,
        flush_seconds: float = 10.0,
        ring_seconds: float = 1800.0,
        store: Store | None = None,
    ) -> None:
        self._open_store = open_store
        self._store = store
        self._source = Source(node, NODE)
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._ring_ms = int(ring_seconds * 1000)
        self._pending = Pending()
        self._next_flush = clock.monotonic() + flush_seconds
        self._failures = 0
        self._state = StoreState()

    @property
    def state(self) -> StoreState:
        """How the store does now."""
        return replace(self._state, waiting_frames=len(self._pending.frames))

    def add_frames(self, frames: Iterable[Frame]) -> None:
        self._pending.frames.extend(frames)

    def add_jobs(self, jobs: Iterable[Job], allocations: Iterable[Allocation]) -> None:
        self._pending.jobs.update((job.key, job) for job in jobs)
        for one in allocations:
            self._pending.allocations[one.job_key, one.source, one.start_ms] = one

    def add_devices(self, devices: Iterable[Device]) -> None:
        self._pending.devices.extend(devices)

    def add_events(self, events: Iterable[Event]) -> None:
        self._pending.events.extend(events)

    def add_findings(self, findings: Iterable[StoredFinding]) -> None:
        for one in findings:
            self._pending.findings[one.rule, one.source, one.start_ms] = one

    def flush_if_due(self, now_ms: int) -> None:
        """Write when the flush interval has passed, or at once for anything but samples (not while failing)."""
        due = self._clock.monotonic() >= self._next_flush
        if due or (self._pending.urgent and not self._failures):
            self.flush(now_ms)

    def flush(self, now_ms: int) -> None:
        """Write everything that waits. Does not raise: a failure keeps it for later and shows in `state`."""
        started = self._clock.monotonic()
        try:
            if self._store is None:
                self._store = self._open_store()
            self._write(self._store)
        except StoreError as error:
            self._failed(str(error), now_ms)
            return
        self._next_flush = started + self._flush_seconds
        self._recovered(now_ms)
        self._record(error="", last_flush_ms=now_ms, flush_seconds=self._clock.monotonic() - started)

    def close(self, now_ms: int) -> None:
        """Write what waits and let go of the store."""
        self.flush(now_ms)
        if self.state.error:
            log.error("%d samples were never written: %s", len(self._pending.frames), self.state.error)
        if self._store is not None:
            self._store.close()
            self._store = None

    def _write(self, store: Store) -> None:
        waiting = self._pending
        for job in waiting.jobs.values():
            self._put(lambda jobs: store.put_job(jobs[0]), [job])
        waiting.jobs.clear()
        self._put(store.put_allocations, waiting.allocations.values())
        waiting.allocations.clear()
        self._put(store.put_devices, waiting.devices)
        waiting.devices.clear()
        self._put(store.append, waiting.frames)
        waiting.frames.clear()
        self._put(store.put_events, waiting.events)
        waiting.events.clear()
        self._put(store.put_findings, waiting.findings.values())
        waiting.findings.clear()

    def _put(self, put: Callable[[list[Any]], object], rows: Iterable[Any]) -> None:
        """Write rows together; one that no database could hold is dropped, lest it keeps back all others for ever."""
        waiting = list(rows)
        if not waiting:
            return
        try:
            put(waiting)
        except _IMPOSSIBLE as error:
            if len(waiting) == 1:
                log.error("dropped, because it cannot be stored: %s: %.200r", error, waiting[0])
                return
            for row in waiting:
                self._put(put, [row])

    def _recovered(self, now_ms: int) -> None:
        if self._failures:
            log.warning("the database takes writes again after %d failed attempts", self._failures)
            detail = {"failed_attempts": self._failures, "dropped_frames": self.state.dropped_frames}
            self.add_events([Event(self._source, now_ms, "store_recovered", detail=detail)])
            self._failures = 0

    def _failed(self, reason: str, now_ms: int) -> None:
        if not self._failures:
            log.error("the database does not take writes, samples are kept in memory: %s", reason)
            self.add_events([Event(self._source, now_ms, "store_failed", detail={"reason": reason})])
        self._drop_store()
        dropped = self._trim(now_ms)
        wait = _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
        self._failures += 1
        self._next_flush = self._clock.monotonic() + wait
        self._record(error=reason, dropped=dropped)

    def _drop_store(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except StoreError as error:
                log.debug("closing the failed database: %s", error)
            self._store = None

    def _trim(self, now_ms: int) -> int:
        """Forget frames older than the ring; how many."""
        before = len(self._pending.frames)
        while self._pending.frames and self._pending.frames[0].time_ms < now_ms - self._ring_ms:
            self._pending.frames.popleft()
        return before - len(self._pending.frames)

    def _record(
        self, error: str, dropped: int = 0, last_flush_ms: int | None = None, flush_seconds: float = 0.0
    ) -> None:
        old = self._state
        self._state = StoreState(
            error=error,
            dropped_frames=old.dropped_frames + dropped,
            flushes=old.flushes + (not error),
            flush_seconds=flush_seconds or old.flush_seconds,
            last_flush_ms=last_flush_ms or old.last_flush_ms,
        )
