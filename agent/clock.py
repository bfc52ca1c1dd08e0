"""Time as the agent sees it, injected so that tests never sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock, monotonic clock, boot clock and sleep."""

    def now_ms(self) -> int:
        """UNIX milliseconds, UTC."""

    def monotonic(self) -> float:
        """Seconds that never step."""

    def boottime(self) -> float:
        """Seconds since boot, suspended time included."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told: simulations run on it faster than real time."""

    def __init__(self, now_ms: int, monotonic: float = 3600.0) -> None:
        self._wall_ms = float(now_ms)
        self._monotonic = monotonic
        self._asleep = 0.0

    def now_ms(self) -> int:
        return round(self._wall_ms)

    def monotonic(self) -> float:
        return self._monotonic

    def boottime(self) -> float:
        return self._monotonic + self._asleep

    def sleep(self, seconds: float) -> None:
        """Time passes on all clocks."""
        self._wall_ms += seconds * 1000
        self._monotonic += seconds

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the monotonic clock stands still meanwhile."""
        self._wall_ms += seconds * 1000
        self._asleep += seconds

    def step(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._wall_ms += seconds * 1000
