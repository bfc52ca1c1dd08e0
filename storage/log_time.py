"""Timestamps as logs print them: several formats, with or without an offset, across a change of the clocks."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpudiag.errors import InputError

_CALENDAR = re.compile(
    r"(\d{4})[/.-](\d{1,2})[/.-](\d{1,2})[ T]+(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|UTC|[+-]\d\d:?\d\d)?"
)
_UNIX_SECONDS = re.compile(r"\d{9,10}(?:\.\d+)?")
_UNIX_MILLIS = re.compile(r"\d{12,13}")
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
_C_FORMATS = ("%a %b %d %H:%M:%S %Y", "%b %d %Y %H:%M:%S")
EXPECTED = "a time such as 2025/06/13 00:27:52.195, 2025-06-13T00:27:52+02:00 or UNIX seconds"


def zone(name: str) -> tzinfo | None:
    """`Europe/Berlin`, `UTC` or `+02:00`; empty means this machine's own zone (`None`). Raises `InputError`."""
    if not name:
        return None
    if name.upper() in ("UTC", "Z"):
        return timezone.utc
    if match := _OFFSET.fullmatch(name):
        return _offset(match)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(
            f"time zone {name!r} is not known here; expected a name such as Europe/Berlin, or +02:00"
        ) from error


def _offset(match: re.Match[str]) -> timezone:
    sign = -1 if match[1] == "-" else 1
    return timezone(sign * timedelta(hours=int(match[2]), minutes=int(match[3])))


class LogClock:
    """Turns the timestamps of one log, in the order they appear, into UNIX milliseconds.

    Times without an offset are read in `zone` (None: this machine's). An hour that a clock change repeats is
    taken the second time when the log would otherwise run backwards. `pattern` is a strptime format for
    anything unusual.
    """

    def __init__(self, zone: tzinfo | None = None, pattern: str = "") -> None:
        self._zone = zone
        self._pattern = pattern
        self._last_ms = -(2**62)
        self._minutes: dict[tuple[str, ...], int] = {}

    def parse(self, text: str) -> int:
        """UNIX milliseconds; raises `ValueError` for a text that is no time."""
        time_ms = self._parse(text.strip())
        self._last_ms = max(self._last_ms, time_ms)
        return time_ms

    def _parse(self, text: str) -> int:
        if self._pattern:
            return self._resolve(datetime.strptime(text, self._pattern))
        if match := _CALENDAR.fullmatch(text):
            return self._calendar(match)
        if _UNIX_SECONDS.fullmatch(text):
            return round(float(text) * 1000)
        if _UNIX_MILLIS.fullmatch(text):
            return int(text)
        return self._c_time(text)

    def _calendar(self, match: re.Match[str]) -> int:
        year, month, day, hour, minute, second, fraction, offset = match.groups()
        if int(second) > 59:
            raise ValueError(f"{second} is no second")
        within = int(second) * 1000 + int(f"{fraction or '0':0<3.3}")
        key = (year, month, day, hour, minute, offset or "")
        start = self._minutes.get(key)
        if start is None or start + within < self._last_ms:
            moment = datetime(int(year), int(month), int(day), int(hour), int(minute))
            start = self._resolve(_with_offset(moment, offset), within)
            self._minutes = {key: start}
        return start + within

    def _c_time(self, text: str) -> int:
        for pattern in _C_FORMATS:
            try:
                return self._resolve(datetime.strptime(text, pattern))
            except ValueError:
                continue
        raise ValueError(f"{text!r} is no time")

    def _resolve(self, moment: datetime, within_ms: int = 0) -> int:
        if moment.tzinfo is None and self._zone is not None:
            moment = moment.replace(tzinfo=self._zone)
        first, second = (_millis(moment.replace(fold=fold)) for fold in (0, 1))
        repeats = first < second and first + within_ms < self._last_ms <= second + within_ms
        return second if repeats else first


def _with_offset(moment: datetime, offset: str | None) -> datetime:
    if not offset:
        return moment
    match = _OFFSET.fullmatch(offset)
    return moment.replace(tzinfo=_offset(match) if match else timezone.utc)


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
