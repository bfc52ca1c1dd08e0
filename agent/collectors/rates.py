"""Rates from cumulative counters that wrap, restart with the driver, or stand still."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

IMPLAUSIBLE = 1e13  # bytes per second: no link is that fast, so the counter was reset


@dataclass(frozen=True, slots=True)
class _Reading:
    value: float
    at: float


class Rates:
    """Remembers the previous value of each counter."""

    def __init__(self) -> None:
        self._previous: dict[Hashable, _Reading] = {}

    def rate(
        self, key: Hashable, value: float, at: float, wraps_at: float, ceiling: float = IMPLAUSIBLE
    ) -> float | None:
        """Growth per second since the previous call, across one wrap.

        None on the first call, when no time has passed, when growth would exceed `ceiling` units per second (the
        counter started anew), and when it could have wrapped more than once in between: its difference says nothing.
        """
        previous = self._previous.get(key)
        self._previous[key] = _Reading(value, at)
        if previous is None or at <= previous.at:
            return None
        seconds = at - previous.at
        if wraps_at <= ceiling * seconds:
            return None
        rate = (value - previous.value) % wraps_at / seconds
        return rate if rate <= ceiling else None

    def keep(self, wanted: Callable[[Hashable], bool]) -> None:
        """Forget the counters whose key is not wanted any more."""
        self._previous = {key: reading for key, reading in self._previous.items() if wanted(key)}

    def clear(self) -> None:
        """All counters may start anew."""
        self._previous.clear()
