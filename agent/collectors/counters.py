"""Differences of counters between two readings, with resets noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_SHORTEST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Change:
    """How much counters grew over `seconds`; a counter that is new or went backwards is absent."""

    seconds: float
    amounts: Mapping[str, float]

    def amount(self, key: str) -> float | None:
        """Growth in the counter's own unit."""
        return self.amounts.get(key)

    def rate(self, key: str, scale: float = 1.0) -> float | None:
        """Growth per second times `scale`."""
        amount = self.amounts.get(key)
        return None if amount is None else amount * scale / self.seconds

    def total(self, suffix: str, scale: float = 1.0) -> float | None:
        """Growth per second times `scale`, summed over all keys that end in `suffix`; None without any."""
        found = [amount for key, amount in self.amounts.items() if key.endswith(suffix)]
        return sum(found) * scale / self.seconds if found else None


@dataclass(slots=True)
class Counters:
    """Remembers the last reading of a set of counters; `monotonic` gives seconds that never step."""

    monotonic: Callable[[], float]
    _before: Mapping[str, float] = field(default_factory=dict)
    _at: float | None = None

    def advance(self, values: Mapping[str, float]) -> Change | None:
        """Growth since the previous call; None at the first one and when no time has passed."""
        now = self.monotonic()
        before, at = self._before, self._at
        if at is not None and now - at < _SHORTEST_SECONDS:
            return None
        self._before, self._at = dict(values), now
        if at is None:
            return None
        grown = {
            key: value - before[key] for key, value in values.items() if value >= before.get(key, value + 1)
        }
        return Change(now - at, grown)
