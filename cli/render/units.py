"""Numbers, times and hostile text as people read them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from datetime import datetime, timezone, tzinfo

from gpudiag.rules.units import format_duration, three_digits

UNBROKEN = "\N{NO-BREAK SPACE}"
_GIB = 1024.0**3


def instant(ms: int, zone: tzinfo = timezone.utc) -> str:
    """UNIX milliseconds as ISO 8601 with offset, whole seconds."""
    return datetime.fromtimestamp(ms / 1000, zone).isoformat(timespec="seconds")


def clock(ms: int, zone: tzinfo, start_ms: int, *, seconds: bool = True) -> str:
    """Time of day; with the date when it is another day than `start_ms`."""
    there = datetime.fromtimestamp(ms / 1000, zone)
    same_day = there.date() == datetime.fromtimestamp(start_ms / 1000, zone).date()
    return there.strftime(("" if same_day else "%m-%d ") + ("%H:%M:%S" if seconds else "%H:%M"))


def span(start_ms: int, end_ms: int, zone: tzinfo, origin_ms: int) -> str:
    """A stretch of time: `09:12:30–10:04:00`."""
    return f"{clock(start_ms, zone, origin_ms)}–{clock(end_ms, zone, origin_ms)}"


def duration(seconds: float) -> str:
    """The two largest units: `4 h 05 min`, `2 min 05 s`, `45 s`, `3 d 01 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if whole < 48 * 3600:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60:02d} min" if whole % 3600 // 60 else "")
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def percent(ratio: float) -> str:
    """A share with as many digits as it deserves."""
    if math.isnan(ratio):
        return "-"
    if 0.995 <= ratio < 1:  # nearly all is not all
        return f"{min(ratio * 100, 99.9):.1f} %"
    if 0 < ratio < 0.0005:  # next to nothing is not nothing
        return "<0.1 %"
    return f"{ratio * 100:.1f} %" if abs(ratio) < 0.0995 else f"{ratio * 100:.0f} %"


def hours(gpu_hours: float, whole: float = math.inf) -> str:
    """GPU-hours; GPU-minutes where even the whole is less than one hour."""
    if whole < 1:
        return f"{gpu_hours * 60:.1f} GPU-min"
    if 0 < gpu_hours < 0.005:
        return "<0.01 GPU-h"
    return f"{gpu_hours:.2f} GPU-h" if abs(gpu_hours) < 99.5 else f"{gpu_hours:.0f} GPU-h"


def _scaled(steps: tuple[tuple[float, str], ...]) -> Callable[[float], str]:
    def text(value: float) -> str:
        factor, unit = next((step for step in steps if abs(value) >= 0.9995 * step[0]), steps[-1])
        return f"{three_digits(value / factor)} {unit}"

    return text


_QUANTITIES: dict[str, Callable[[float], str]] = {
    "ratio": percent,
    "bytes": _scaled(((1024.0**4, "TiB"), (_GIB, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"), (1.0, "B"))),
    "bytes_per_second": _scaled(((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))),
    "hertz": _scaled(((1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz"))),
    "joules": _scaled(((3.6e6, "kWh"), (1e3, "kJ"), (1.0, "J"))),
    "watts": lambda value: f"{value:.0f} W",
    "celsius": lambda value: f"{value:.0f} °C",
    "per_second": lambda value: f"{value:.3g} /s",
    "cpus": lambda value: f"{value:.3g} CPUs",
    "seconds": lambda value: duration(value) if abs(value) >= 10 else format_duration(value),
}


def quantity(value: float | None, unit: str) -> str:
    """A measured number with its unit; `not measured` is a dash, never zero."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit in _QUANTITIES:
        return _QUANTITIES[unit](value)
    number = f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.3g}"
    return number if unit in ("", "count", "state", "number", "boolean") else f"{number} {unit}"


_UNITS = "%|°C|GPU|[KMGT]iB|[kMGT]?B/s|W|kWh|[kMG]Hz|ms|s|min|h|d"
_AFTER_NUMBER = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![A-Za-z]))")


def glued(text: str) -> str:
    """The text with no-break spaces between numbers and their units."""
    return _AFTER_NUMBER.sub(UNBROKEN, text)


def harmless(text: str, limit: int = 0) -> str:
    """Text from outside as part of one line: no control or format (bidi) characters, white space as blanks.

    With `limit` it is cut to so many characters.
    """
    clean = "".join(
        " "
        if sign.isspace() and sign != UNBROKEN
        else "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(sign) in _HOSTILE
        else sign
        for sign in text
    )
    return clean if not limit or len(clean) <= limit else clean[: limit - 1] + "…"


_HOSTILE = frozenset(("Cc", "Cf", "Cs", "Co"))
