"""Units of rule expressions: enough of them to refuse comparing a ratio with bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

Dimensions = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Unit:
    """Powers of base units, and what a number without dimension counts: a `ratio`, a `count`, or anything.

    A `quotient` of two like quantities is written as a ratio, but may exceed one.
    """

    dimensions: Dimensions = ()
    meaning: str = ""
    literal: bool = False

    def __str__(self) -> str:
        if self.literal:
            return "a plain number"
        for name, unit in NAMED.items():
            if unit == self:
                return name
        if not self.dimensions:
            return "ratio" if self.meaning == "quotient" else "a number"
        return "*".join(name if power == 1 else f"{name}^{power}" for name, power in self.dimensions)

    def times(self, other: Unit, sign: int = 1) -> Unit:
        """The unit of a product (`sign` 1) or a quotient (-1)."""
        powers = dict(self.dimensions)
        for name, power in other.dimensions:
            powers[name] = powers.get(name, 0) + sign * power
        left = tuple(sorted((name, power) for name, power in powers.items() if power))
        if left:
            return Unit(left)
        shares = {self.meaning, other.meaning} <= {"ratio", "quotient"}
        if sign == -1 and (self.dimensions or shares):
            return Unit(meaning="quotient")
        return Unit(meaning=self._meaning_with(other, sign), literal=self.literal and other.literal)

    def _meaning_with(self, other: Unit, sign: int) -> str:
        """A ratio scaled by a plain number stays one; nothing else keeps its meaning."""
        scaled = self if other.literal else other if self.literal and sign == 1 else NUMBER
        return scaled.meaning if scaled.meaning in ("ratio", "quotient") else ""


PLAIN = Unit(literal=True)
NUMBER = Unit()
RATIO = Unit(meaning="ratio")
COUNT = Unit(meaning="count")
CODE = Unit(meaning="code")
SECONDS = Unit((("seconds", 1),))
BYTES = Unit((("bytes", 1),))

NAMED = {
    "ratio": RATIO,
    "count": COUNT,
    "cpus": COUNT,
    "state": CODE,
    "number": NUMBER,
    "seconds": SECONDS,
    "bytes": BYTES,
    "bytes_per_second": Unit((("bytes", 1), ("seconds", -1))),
    "bytes_per_second_squared": Unit((("bytes", 1), ("seconds", -2))),
    "watts": Unit((("joules", 1), ("seconds", -1))),
    "joules": Unit((("joules", 1),)),
    "celsius": Unit((("celsius", 1),)),
    "hertz": Unit((("hertz", 1),)),
    "per_second": Unit((("seconds", -1),)),
}

# name in an expression: (value in base units, unit)
CONSTANTS: dict[str, tuple[float, Unit]] = {
    "second": (1.0, SECONDS),
    "minute": (60.0, SECONDS),
    "hour": (3600.0, SECONDS),
    "KiB": (2.0**10, BYTES),
    "MiB": (2.0**20, BYTES),
    "GiB": (2.0**30, BYTES),
    "KB": (1e3, BYTES),
    "MB": (1e6, BYTES),
    "GB": (1e9, BYTES),
    "watt": (1.0, NAMED["watts"]),
    "joule": (1.0, NAMED["joules"]),
    "celsius": (1.0, NAMED["celsius"]),
    "MHz": (1e6, NAMED["hertz"]),
    "GHz": (1e9, NAMED["hertz"]),
}

_NEEDS_A_UNIT = {"bytes": "GiB", "hertz": "MHz"}
_SUFFIXES: dict[str, tuple[float, Unit]] = {
    "s": (1.0, SECONDS),
    "m": (60.0, SECONDS),
    "h": (3600.0, SECONDS),
    "d": (86400.0, SECONDS),
    "W": (1.0, NAMED["watts"]),
    "C": (1.0, NAMED["celsius"]),
    "%": (0.01, RATIO),
    **{name: CONSTANTS[name] for name in ("KiB", "MiB", "GiB", "KB", "MB", "GB", "MHz", "GHz")},
    **{
        f"{name}/s": (CONSTANTS[name][0], NAMED["bytes_per_second"])
        for name in ("KiB", "MiB", "GiB", "KB", "MB", "GB")
    },
}
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%/]*)")


def mismatch(left: Unit, right: Unit, literal: float | None) -> str:
    """Why the two cannot be added or compared, empty when they can; `literal` is a plain number's value."""
    for plain, unit in ((left, right), (right, left)):
        if plain.literal:
            return _plain_against(unit, literal)
    if left.dimensions != right.dimensions:
        return f"cannot compare or add {left} and {right}"
    meanings = {left.meaning, right.meaning} - {"", "quotient"}
    if len(meanings) > 1:
        return f"cannot compare or add {left} and {right}"
    return ""


def _plain_against(unit: Unit, literal: float | None) -> str:
    if literal is None or literal == 0 or unit.literal:
        return ""
    for name, example in _NEEDS_A_UNIT.items():
        if name in dict(unit.dimensions):
            return (
                f"{literal:g} has no unit, but is used with {unit}: write {literal:g} * {example} or the like"
            )
    if unit.meaning == "ratio" and abs(literal) > 2:
        return f"a ratio lies between 0 and 1, so {literal:g} is never reached; meant {literal / 100:g}?"
    return ""


def quantity(text: str) -> tuple[float, Unit] | None:
    """`5m`, `2GiB`, `50MB/s`, `30%`, `85C`, `0.4`: value in base units and unit; None when it is none of these."""
    matched = _QUANTITY.fullmatch(text.strip())
    if not matched:
        return None
    number, suffix = float(matched[1]), matched[2]
    if not suffix:
        return number, PLAIN
    if suffix not in _SUFFIXES:
        return None
    factor, unit = _SUFFIXES[suffix]
    return number * factor, unit


def duration(text: str) -> int | None:
    """Whole seconds of `90s`, `5m`, `1h`, `0s`; None when it is no duration."""
    parsed = quantity(text)
    if parsed is None or parsed[1] != SECONDS or parsed[0] != int(parsed[0]) or parsed[0] < 0:
        return None
    return int(parsed[0])


def format_quantity(value: float, unit: Unit) -> str:
    """A number as a person writes it: `34 %`, `71.2 GiB`, `12 min`, `1410 MHz`."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "never" if unit == SECONDS else "no limit"
    powers = dict(unit.dimensions)
    if unit.meaning in ("ratio", "quotient"):
        return f"{100 * value:.{0 if abs(value) >= 0.1 else 1}f} %"
    if powers == {"bytes": 1, "seconds": -1}:
        return _decimal(value, ("GB/s", "MB/s", "kB/s"))
    if "bytes" in powers:
        return _binary(value) + {-2: "/s^2"}.get(powers.get("seconds", 0), "")
    if powers == {"seconds": 1}:
        return format_duration(value)
    if powers == {"hertz": 1}:
        return f"{value / 1e6:.0f} MHz"
    if powers == {"celsius": 1}:
        return f"{value:.0f} °C"
    if powers == {"joules": 1}:
        return _decimal(value, ("GJ", "MJ", "kJ"))
    suffix = {NAMED["watts"].dimensions: " W", NAMED["per_second"].dimensions: "/s"}.get(unit.dimensions, "")
    return f"{three_digits(value)}{suffix}"


def _binary(value: float) -> str:
    for name in ("GiB", "MiB", "KiB"):
        if abs(value) >= CONSTANTS[name][0]:
            return f"{three_digits(value / CONSTANTS[name][0])} {name}"
    return f"{value:.0f} B"


def _decimal(value: float, names: tuple[str, str, str]) -> str:
    for name, factor in zip(names, (1e9, 1e6, 1e3), strict=True):
        if abs(value) >= 0.9995 * factor:
            return f"{three_digits(value / factor)} {name}"
    return f"{value:.0f} {names[2][1:]}"


def three_digits(value: float) -> str:
    """At least three digits and never an exponent: `1.25`, `12.5`, `1000`."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """`35.6 ms`, `45 s`, `12 min`, `2.5 h`."""
    if 0 < abs(seconds) < 0.9995:
        return f"{three_digits(seconds * 1000)} ms"
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"
