"""Runs one part of a tick: times it, catches what it raises, drops values nobody can believe, and remembers how it went."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import Collector, NothingToCollect
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame

log = logging.getLogger(__name__)
T = TypeVar("T")
_SLACK = 1e-6  # rounding above a ratio's 1.0


@dataclass(frozen=True)
class Outcome:
    """How a collector's latest run went; `success` None means that this host has nothing to collect there.

    `rejected` counts, since the start, values outside the catalog's range, by metric.
    """

    collector: str
    success: bool | None = None
    duration_seconds: float = 0.0
    last_success_ms: int | None = None
    failures: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Reading:
    """What one run of a collector gave."""

    frames: tuple[Frame, ...] = ()
    events: tuple[Event, ...] = ()
    devices: tuple[Device, ...] = ()


@dataclass
class _Told:
    """What a run of a collector gave so far."""

    frames: list[Frame] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)

    def take(self, item: Frame | Event | Device) -> None:
        if isinstance(item, Frame):
            self.frames.append(item)
        elif isinstance(item, Event):
            self.events.append(item)
        else:
            self.devices.append(item)

    def reading(self, with_frames: bool) -> Reading:
        return Reading(tuple(self.frames) if with_frames else (), tuple(self.events), tuple(self.devices))


class Guard:
    """Runs one part of the tick at a time: what it raises is caught, logged and remembered, how long it took too."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._failures = 0
        self._last_success_ms: int | None = None
        self.rejected: Counter[str] = Counter()
        self.outcome = Outcome(name)

    def run(self, now_ms: int, action: Callable[[], T], otherwise: T) -> T:
        """What the action gives, or `otherwise` when it fails or has nothing to give on this host."""
        started = self._clock.monotonic()
        result, success, error = self._attempt(action, otherwise)
        if success:
            self._last_success_ms = now_ms
        duration = self._clock.monotonic() - started
        self.outcome = Outcome(
            self._name, success, duration, self._last_success_ms, self._failures, dict(self.rejected), error
        )
        return result

    def _attempt(self, action: Callable[[], T], otherwise: T) -> tuple[T, bool | None, str]:
        try:
            return action(), True, ""
        except NothingToCollect as absent:
            return otherwise, None, str(absent)
        except Exception as error:
            # one part must not take the others down
            self._failures += 1
            reason = f"{type(error).__name__}: {error}"
            log.warning(self._name + " failed: %s", reason)
            log.debug("traceback", exc_info=True)
            return otherwise, False, reason


class Runner:
    """A collector with its record."""

    def __init__(self, collector: Collector, clock: Clock) -> None:
        self.collector = collector
        self._guard = Guard(collector.name, clock)

    @property
    def outcome(self) -> Outcome:
        """How the latest run went; what the collector itself rejected is counted in."""
        outcome = self._guard.outcome
        own = getattr(self.collector, "rejected", {})
        return replace(outcome, rejected={**Counter(own) + Counter(outcome.rejected)}) if own else outcome

    def run(self, now_ms: int) -> Reading:
        """Collect once; a failure takes the frames with it, not the events that tell of it, nor devices."""
        told = _Told()
        whole = self._guard.run(now_ms, lambda: self._collect(now_ms, told), False)
        return told.reading(with_frames=whole)

    def _collect(self, now_ms: int, told: _Told) -> bool:
        for item in self.collector.collect(now_ms):
            told.take(item if not isinstance(item, Frame) else self._screen(item))
        return True

    def _screen(self, frame: Frame) -> Frame:
        bounds = _BOUNDS[frame.source.scope]
        bad = [
            name
            for name, value in frame.values.items()
            # NaN is within no bounds
            if (found := bounds.get(name)) is None or not found[0] <= value <= found[1]
        ]
        if not bad:
            return frame
        self._guard.rejected.update(bad)
        values = {name: value for name, value in frame.values.items() if name not in bad}
        return Frame(frame.source, frame.time_ms, values, frame.origins)


def _bounds() -> dict[str, dict[str, tuple[float, float]]]:
    """Per scope and metric the least and the greatest value that can be believed."""
    found: dict[str, dict[str, tuple[float, float]]] = {"gpu": {}, "node": {}, "job": {}}
    for (scope, name), metric in METRICS.items():
        found[scope][name] = (metric.minimum, metric.maximum * (1 + _SLACK))
    return found


_BOUNDS = _bounds()
