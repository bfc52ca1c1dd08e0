"""What a site may change of a rule without copying it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpudiag.rules.document import Place
from gpudiag.rules.model import PHASES, SEVERITIES
from gpudiag.rules.reading import Reading
from gpudiag.rules.units import Unit

MATURITIES = ("sandbox", "incubating", "stable", "deprecated")
_KEYS = (
    "id",
    "enabled",
    "severity",
    "maturity",
    "phases",
    "window",
    "for",
    "cooldown",
    "min_age",
    "coverage",
    "unless_tags",
    "params",
)


def window(reading: Reading) -> int:
    """The seconds of `window`."""
    return reading.seconds("window", 300, least=10, most=7200, multiple=10)


@dataclass(frozen=True)
class Override:
    """Changed fields of the rule `id`, and changed parameters."""

    id: str
    fields: dict[str, Any]
    params: dict[str, tuple[float, Unit, Place]]


def read_override(reading: Reading) -> Override | None:
    """One entry of `override`, None when it is wrong."""
    reading.only(_KEYS)
    reading.need(("id",))
    given = reading.entry.items
    fields: dict[str, Any] = {
        "enabled": reading.flag("enabled", True),
        "severity": reading.choice("severity", SEVERITIES, "info"),
        "maturity": reading.choice("maturity", MATURITIES, "stable"),
        "phases": reading.words("phases", PHASES),
        "window": window(reading),
        "for": reading.seconds("for", 0),
        "cooldown": reading.seconds("cooldown", 0),
        "min_age": reading.seconds("min_age", 0),
        "coverage": reading.ratio("coverage", 0.5),
        "unless_tags": reading.words("unless_tags"),
    }
    changed = {("hold" if name == "for" else name): value for name, value in fields.items() if name in given}
    params = reading.quantities("params")
    return Override(reading.text("id"), changed, params) if reading.ok else None
