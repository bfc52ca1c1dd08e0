"""The last stretch of samples of one source, second by second, in bounded memory: `samples.grid` as samples arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpudiag.rules.samples import LONGEST_HOLD_MS, SECOND_MS
from gpudiag.storage.sample import Floats, Frame, Source

_NAN = float("nan")
_SILENT_MS = 10_000
_SLACK = 600  # seconds beyond its reach that a ring takes before it moves everything down
_TOGETHER = 32  # frames of a source that are put away at once


class Ring:
    """The last `seconds` seconds of one metric of one source."""

    __slots__ = ("_base", "_gap", "_last_ms", "_origin", "_seconds", "_until", "_value", "_values")

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._values = np.full(seconds + min(seconds, _SLACK), np.nan)
        self._base = 0  # UNIX second of the first cell
        self._last_ms = -1
        self._gap = SECOND_MS
        self._until = 0  # first second that the last sample no longer holds
        self._value = float("nan")
        self._origin = ""

    def put(self, time_ms: int, value: float, origin: str = "") -> None:
        """Take in a sample; one that is older than the last, or of another origin while the first still speaks, is left out."""
        second = time_ms // SECOND_MS
        if self._follows(second, origin):
            interval = self._interval(time_ms)  # by far the most: the next second of the same series
            self._values[second - self._base] = value
            self._last_ms, self._value = time_ms, value
            self._until = (time_ms + interval - SECOND_MS // 2 - 1) // SECOND_MS + 1
            return
        if self._last_ms >= 0 and not self._continues(time_ms, origin):
            return
        if self._last_ms < 0:
            self._base = second
            interval = SECOND_MS
        else:
            interval = self._interval(time_ms)
            self._make_room(second)
            self._fill(second)
        self._values[second - self._base] = value
        self._last_ms, self._value, self._origin = time_ms, value, origin
        self._until = (time_ms + interval - SECOND_MS // 2 - 1) // SECOND_MS + 1

    def extend(self, times_ms: list[int], values: Floats, origin: str = "") -> None:
        """`put` of known values in successive seconds, all at once."""
        self.put(times_ms[0], float(values[0]), origin)
        if len(times_ms) == 1:
            return
        if self._last_ms != times_ms[0] or self._origin != origin:
            for time_ms, value in zip(times_ms[1:], values[1:].tolist(), strict=True):
                self.put(time_ms, value, origin)
            return
        before_s = times_ms[0] // SECOND_MS
        self._make_room(before_s + len(values) - 1)
        self._values[before_s - self._base + 1 : before_s - self._base + len(values)] = values[1:]
        if len(times_ms) > 2:
            self._gap = times_ms[-2] - times_ms[-3]
        self._last_ms = times_ms[-2]
        interval = self._interval(times_ms[-1])
        self._last_ms, self._value = times_ms[-1], float(values[-1])
        self._until = (self._last_ms + interval - SECOND_MS // 2 - 1) // SECOND_MS + 1

    def _follows(self, second: int, origin: str) -> bool:
        """Whether this is the next second, has room, and comes from the same place: nothing to hold over or to drop."""
        return (
            self._last_ms // SECOND_MS + 1 == second
            and origin == self._origin
            and 0 < second - self._base < len(self._values)
        )

    def _continues(self, time_ms: int, origin: str) -> bool:
        behind = self._last_ms - time_ms
        if behind > self._seconds * SECOND_MS or (origin != self._origin and -behind > _SILENT_MS):
            self._values[:] = np.nan  # the clock was set back, or the measurement comes from elsewhere now
            self._last_ms, self._gap = -1, SECOND_MS
            return True
        return behind <= 0 and origin == self._origin

    def _interval(self, time_ms: int) -> int:
        gap = time_ms - self._last_ms
        gap = SECOND_MS if gap > LONGEST_HOLD_MS else gap
        interval = max(min(gap, self._gap), SECOND_MS)
        self._gap = gap
        return interval

    def _make_room(self, second: int) -> None:
        index = second - self._base
        if index < len(self._values):
            return
        keep = self._seconds
        shift = index - keep + 1
        held = self._values[shift:].copy() if shift < len(self._values) else np.empty(0)
        self._values[:] = np.nan
        self._values[: len(held)] = held
        self._base += shift

    def _fill(self, second: int) -> None:
        """Let the last sample hold up to `second`, as far as it does."""
        first = self._last_ms // SECOND_MS + 1 - self._base
        last = min(second, self._until) - self._base
        if last > first >= 0:
            self._values[first:last] = self._value

    def window(self, first: int, last: int) -> Floats:
        """Seconds `first` to `last` (UNIX, exclusive), NaN where nothing is known."""
        out = np.full(last - first, np.nan)
        if self._last_ms < 0:
            return out
        begin, end = max(first, self._base), min(last, self._base + len(self._values))
        if end > begin:
            out[begin - first : end - first] = self._values[begin - self._base : end - self._base]
        newest = self._last_ms // SECOND_MS
        hold, until = max(newest + 1, first), min(self._until, last)
        if until > hold:
            out[hold - first : until - first] = self._value
        return out


class _Row(NamedTuple):
    """What of a frame is wanted, one value per metric of the scope."""

    time_ms: int
    values: list[float]
    origins: Mapping[str, str]


class Rings:
    """The rings of all sources, for the metrics that somebody reads: `reach` by (scope, metric), in seconds."""

    def __init__(self, reach: Mapping[tuple[str, str], int]) -> None:
        self._reach: dict[str, dict[str, int]] = {}
        for (scope, metric), seconds in reach.items():
            self._reach.setdefault(scope, {})[metric] = seconds
        self._rings: dict[Source, dict[str, Ring]] = {}
        self._fresh: dict[Source, list[_Row]] = {}
        self._seen: dict[Source, int] = {}

    def put(self, frame: Frame) -> None:
        """Take in a frame."""
        reach = self._reach.get(frame.source.scope)
        if not reach:
            return
        self._seen[frame.source] = frame.time_ms
        get = frame.values.get
        fresh = self._fresh.setdefault(frame.source, [])
        fresh.append(_Row(frame.time_ms, [get(name, _NAN) for name in reach], frame.origins))
        if len(fresh) >= _TOGETHER:
            self._put_away(frame.source)

    def _put_away(self, source: Source) -> None:
        """Hand the frames that came since the last time to the rings, metric by metric."""
        rows = self._fresh.pop(source)
        reach, rings = self._reach[source.scope], self._rings.setdefault(source, {})
        times = [row.time_ms for row in rows]
        table = np.array([row.values for row in rows]).T
        known = ~np.isnan(table)
        counts = known.sum(axis=1).tolist()
        even = _even(rows)
        for name, values, seen, count in zip(reach, table, known, counts, strict=True):
            if not count:
                continue
            if even and count == len(rows):
                self._ring(rings, name, reach).extend(times, values, rows[0].origins.get(name, ""))
                continue
            for k in np.flatnonzero(seen).tolist():
                origin = rows[k].origins.get(name, "")
                self._ring(rings, name, reach).put(times[k], float(values[k]), origin)

    @staticmethod
    def _ring(rings: dict[str, Ring], name: str, reach: Mapping[str, int]) -> Ring:
        ring = rings.get(name)
        if ring is None:
            ring = rings[name] = Ring(reach[name])
        return ring

    def window(self, source: Source, metric: str, first: int, last: int) -> Floats:
        """Seconds `first` to `last` (UNIX, exclusive) of a metric."""
        if source in self._fresh:
            self._put_away(source)
        ring = self._rings.get(source, {}).get(metric)
        return np.full(last - first, np.nan) if ring is None else ring.window(first, last)

    def gpus(self) -> tuple[Source, ...]:
        """GPUs that have sent samples."""
        return tuple(sorted(source for source in self._seen if source.scope == "gpu"))

    def forget_before(self, time_ms: int) -> None:
        """Drop sources that have sent nothing since."""
        for source in [source for source, seen in self._seen.items() if seen < time_ms]:
            del self._seen[source]
            self._rings.pop(source, None)
            self._fresh.pop(source, None)


def _even(rows: list[_Row]) -> bool:
    """Whether the rows lie in successive seconds and were measured in the same way."""
    first_s, origins = rows[0].time_ms // SECOND_MS, rows[0].origins
    return all(
        row.time_ms // SECOND_MS == first_s + k and row.origins == origins for k, row in enumerate(rows)
    )
