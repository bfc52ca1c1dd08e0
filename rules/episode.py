"""When a rule fires and when it stops: `for`, `clear` and cooldown as one state machine, live and afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpudiag.rules.kernels import FALSE, TRUE

Content = TypeVar("Content")


@dataclass
class Episode(Generic[Content]):
    """A stretch of evaluations (UNIX seconds) in which a rule held.

    `since` is the first evaluation at which it held, `until` the one at which it no longer did (None: it still
    holds). `worst` is the evaluation with the highest loss; if the rule has no loss, the first one, or the one at which
    it became critical, because a warning is worth what it said when it came. `content` is what was found then.
    `onset` is for how many seconds the trouble had been there at `since`, `relief` for how many it was gone at `until`.
    """

    since: int
    until: int | None = None
    last_true: int = 0
    announced: int | None = None
    lost_sum: float = 0.0
    lost_count: int = 0
    critical: bool = False
    worst: int | None = None
    worst_lost: float = -math.inf
    content: Content | None = None
    onset: float = math.nan
    relief: float = math.nan

    @property
    def lost(self) -> float | None:
        """Mean loss over the evaluations at which the rule held."""
        return self.lost_sum / self.lost_count if self.lost_count else None

    def feed(self, now: int, lost: float | None, critical: bool) -> None:
        """Take in an evaluation at which the rule held."""
        self.last_true = now
        rises = critical and not self.critical
        self.critical = self.critical or critical
        if lost is None or math.isnan(lost):
            if self.worst is None or (rises and self.worst_lost == -math.inf):
                self.worst = now
            return
        self.lost_sum += lost
        self.lost_count += 1
        if lost > self.worst_lost:
            self.worst, self.worst_lost = now, lost


@dataclass
class Watch(Generic[Content]):
    """Follows one rule on one source.

    It fires once the condition has held for `hold` seconds and stops when `clear` holds (or, without one, when the
    condition does not), or when nothing has been known for `patience` seconds. An episode that begins
    within `cooldown` seconds of the end of the last one continues it.
    """

    hold: int
    cooldown: int
    patience: int
    pending: Episode[Content] | None = None
    current: Episode[Content] | None = None
    closed: list[Episode[Content]] = field(default_factory=list)
    last_known: int = 0

    @property
    def quiet(self) -> bool:
        """Whether only a true condition can change anything."""
        return self.pending is None and self.current is None

    @property
    def episodes(self) -> list[Episode[Content]]:
        """All that fired, in order."""
        return [*self.closed, *([self.current] if self.current else [])]

    def step(self, now: int, when: int, clear: int | None, lost: float | None, critical: bool) -> None:
        """Take in one evaluation: `when` and `clear` are FALSE, UNKNOWN or TRUE; `clear` None means "not when"."""
        if when == TRUE:
            self._hold(now, lost, critical)
            return
        self.pending = None
        if self.current is None:
            return
        if when == FALSE:
            self.last_known = now
        if clear == TRUE or (clear is None and when == FALSE):
            self._close(now)
        elif now - self.last_known > self.patience:
            self._close(self.last_known)

    def _hold(self, now: int, lost: float | None, critical: bool) -> None:
        self.last_known = now
        if self.current is not None:
            self.current.feed(now, lost, critical)
            return
        if self.pending is None:
            self.pending = Episode(now)
        self.pending.feed(now, lost, critical)
        if now - self.pending.since >= self.hold:
            self._open(now)

    def _open(self, now: int) -> None:
        begun, self.pending = self.pending, None
        assert begun is not None
        before = self.closed[-1] if self.closed else None
        if (
            before is None
            or before.until is None
            or begun.since - before.until > self.cooldown
            or not self.cooldown
        ):
            begun.announced = now
            self.current = begun
            return
        self.current = self._continue(self.closed.pop(), begun)

    def _continue(self, before: Episode[Content], begun: Episode[Content]) -> Episode[Content]:
        before.until, before.relief = None, math.nan
        before.last_true = begun.last_true
        before.lost_sum += begun.lost_sum
        before.lost_count += begun.lost_count
        rises = begun.critical and not before.critical
        before.critical = before.critical or begun.critical
        if begun.worst_lost > before.worst_lost or (rises and before.worst_lost == -math.inf):
            before.worst, before.worst_lost, before.content = begun.worst, begun.worst_lost, begun.content
        return before

    def _close(self, now: int) -> None:
        assert self.current is not None
        self.current.until = now
        self.closed.append(self.current)
        self.current = None
