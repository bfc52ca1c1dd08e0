"""Watches the clocks from tick to tick: skipped ticks, steps of the wall clock, and time asleep."""

from __future__ import annotations

from collections.abc import Iterator

from gpudiag.agent.clock import Clock
from gpudiag.storage.job import Event
from gpudiag.storage.sample import NODE, Source

_STEP_SECONDS = 1.0  # NTP slews less than this between two ticks; anything above is a step
_ASLEEP_SECONDS = 1.0


class Timeline:
    """Compares wall, monotonic and boot clock of two successive ticks (all in seconds)."""

    def __init__(self, node: str, clock: Clock, interval: float) -> None:
        self._source = Source(node, NODE)
        self._clock = clock
        self.interval = interval
        self._previous: tuple[float, float, float] | None = None
        self.skipped = 0

    def tick(self, now_ms: int) -> Iterator[Event]:
        """Events `clock_jump` (seconds the wall clock stepped) and `suspended` (seconds asleep) since the last tick."""
        now = (now_ms / 1000, self._clock.monotonic(), self._clock.boottime())
        previous, self._previous = self._previous, now
        if previous is None:
            return
        wall, monotonic, boot = (after - before for after, before in zip(now, previous, strict=True))
        self.skipped += max(round(monotonic / self.interval) - 1, 0)
        if boot - monotonic > _ASLEEP_SECONDS:
            yield Event(self._source, now_ms, "suspended", detail={"seconds": round(boot - monotonic, 3)})
        if abs(wall - boot) > _STEP_SECONDS:
            yield Event(self._source, now_ms, "clock_jump", detail={"seconds": round(wall - boot, 3)})
