"""What the columns of `nvidia-smi --query-gpu` mean: names, units, markers for missing values.

Names and their older spellings are those of `nvidia-smi --help-query-gpu`, drivers 418 to 595.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gpudiag.storage.catalog import metric

Combine = Literal["first", "sum", "bits"]

# older or shorter spelling -> the name used below
_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "gpu_index": "index",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
    "gpu.power.draw": "power.draw",
    "gpu.power.draw.average": "power.draw.average",
    "gpu.power.draw.instant": "power.draw.instant",
    "gpu.power.requested_limit": "power.limit",
    "gpu.power.current_limit": "enforced.power.limit",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
}
_REASON_BITS = {
    "clocks_event_reasons.gpu_idle": 0x1,
    "clocks_event_reasons.applications_clocks_setting": 0x2,
    "clocks_event_reasons.sw_power_cap": 0x4,
    "clocks_event_reasons.hw_slowdown": 0x8,
    "clocks_event_reasons.sync_boost": 0x10,
    "clocks_event_reasons.sw_thermal_slowdown": 0x20,
    "clocks_event_reasons.hw_thermal_slowdown": 0x40,
    "clocks_event_reasons.hw_power_brake_slowdown": 0x80,
}
# a mask put together without one of these would claim "not throttled" for a reason nobody asked about
_NEEDED_BITS = frozenset(name for name, bit in _REASON_BITS.items() if bit not in (0x1, 0x2, 0x10))
IDENTITY = ("timestamp", "hostname", "index", "uuid", "pci.bus_id", "name", "driver_version", "compute_cap")
LIMITS = (
    "clocks.max.sm",
    "clocks.max.memory",
    "pcie.link.gen.max",
    "pcie.link.gen.gpumax",
    "pcie.link.width.max",
)


@dataclass(frozen=True)
class Recipe:
    """How one metric of the catalog is read: from the first column with a value, or from all of them together."""

    metric: str
    columns: tuple[str, ...]
    combine: Combine = "first"


_COUNTERS = "clocks_event_reasons_counters"
RECIPES = (
    Recipe("gpu_util_ratio", ("utilization.gpu",)),
    Recipe("memory_util_ratio", ("utilization.memory",)),
    Recipe("memory_used_bytes", ("memory.used",)),
    Recipe("memory_reserved_bytes", ("memory.reserved",)),
    Recipe("memory_total_bytes", ("memory.total",)),
    Recipe("power_watts", ("power.draw", "power.draw.average", "power.draw.instant")),
    Recipe("power_limit_watts", ("enforced.power.limit", "power.limit")),
    Recipe("temperature_celsius", ("temperature.gpu",)),
    Recipe("memory_temperature_celsius", ("temperature.memory",)),
    Recipe("temperature_margin_celsius", ("temperature.gpu.tlimit",)),
    Recipe("sm_clock_hertz", ("clocks.current.sm", "clocks.current.graphics")),
    Recipe("memory_clock_hertz", ("clocks.current.memory",)),
    Recipe("clock_event_reasons", ("clocks_event_reasons.active",)),
    Recipe("clock_event_reasons", tuple(_REASON_BITS), "bits"),
    Recipe("throttle_power_seconds_total", (f"{_COUNTERS}.sw_power_cap",)),
    Recipe(
        "throttle_thermal_seconds_total",
        (f"{_COUNTERS}.sw_thermal_slowdown", f"{_COUNTERS}.hw_thermal_slowdown"),
        "sum",
    ),
    Recipe("throttle_brake_seconds_total", (f"{_COUNTERS}.hw_power_brake_slowdown",)),
    Recipe("pcie_link_generation", ("pcie.link.gen.gpucurrent", "pcie.link.gen.current")),
    Recipe("pcie_link_width", ("pcie.link.width.current",)),
    Recipe("ecc_corrected_total", ("ecc.errors.corrected.volatile.total",)),
    Recipe("ecc_uncorrected_total", ("ecc.errors.uncorrected.volatile.total",)),
    Recipe("remapped_rows_corrected_total", ("remapped_rows.correctable",)),
    Recipe("remapped_rows_uncorrected_total", ("remapped_rows.uncorrectable",)),
    Recipe("remap_pending", ("remapped_rows.pending",)),
    Recipe("remap_failed", ("remapped_rows.failure",)),
    Recipe(
        "retired_pages_total",
        ("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count"),
        "sum",
    ),
    Recipe("recovery_action", ("gpu_recovery_action",)),
)
KNOWN = frozenset((*IDENTITY, *LIMITS, *(column for recipe in RECIPES for column in recipe.columns)))

# unit as printed -> (base unit, multiplier, divisor); 57 / 100 is 0.57 where 57 * 0.01 is not
_UNITS = {
    "%": ("ratio", 1, 100),
    "B": ("bytes", 1, 1),
    "KiB": ("bytes", 2**10, 1),
    "MiB": ("bytes", 2**20, 1),
    "GiB": ("bytes", 2**30, 1),
    "mW": ("watts", 1, 1000),
    "W": ("watts", 1, 1),
    "kHz": ("hertz", 1000, 1),
    "MHz": ("hertz", 1_000_000, 1),
    "us": ("seconds", 1, 1_000_000),
    "ms": ("seconds", 1, 1000),
    "s": ("seconds", 1, 1),
    "C": ("celsius", 1, 1),
}
_PRINTED = {"ratio": "%", "bytes": "MiB", "watts": "W", "hertz": "MHz", "seconds": "us", "celsius": "C"}
_WORDS = {
    "not active": 0.0,
    "active": 1.0,
    "no": 0.0,
    "yes": 1.0,
    "none": 0.0,
    "reset": 1.0,
    "gpu reset": 1.0,
    "reboot": 2.0,
    "node reboot": 2.0,
    "drain p2p": 3.0,
    "drain and reset": 4.0,
}
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|[A-Za-z]*)")
_MISSING = frozenset(("", "n/a", "na", "nan", "-", "err!", "unknown error", "not supported"))


def canonical(header: str) -> tuple[str, str]:
    """Name and unit of a column as printed (`memory.used [MiB]`), older spellings replaced."""
    name, _, unit = header.strip().partition("[")
    name = name.strip().lower().replace("clocks_throttle_reasons", "clocks_event_reasons")
    return _ALIASES.get(name, name), unit.rstrip("] ").strip()


def is_missing(cell: str) -> bool:
    """`[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU is lost]` and the like: nothing was measured."""
    return cell.startswith("[") or cell.lower() in _MISSING


@lru_cache(maxsize=100_000)  # the cells of a log repeat themselves: this halves the time
def number(cell: str, unit: str = "", base: str = "") -> float:
    """A cell in base units, NaN when missing. `unit` is the header's; a unit in the cell has precedence.

    Raises `ValueError` for a text that is no number or whose unit does not measure `base`.
    """
    if is_missing(cell):
        return math.nan
    if (word := _WORDS.get(cell.lower())) is not None:
        return word
    if cell[:2].lower() == "0x":
        return float(int(cell, 16))
    match = _NUMBER.fullmatch(cell)
    if match is None:
        raise ValueError(f"{cell!r} is no number")
    return _scaled(float(match[1]), match[2] or unit or _PRINTED.get(base, ""), base)


def _scaled(value: float, unit: str, base: str) -> float:
    if not unit and base not in _PRINTED:
        return value
    measures, multiplier, divisor = _UNITS.get(unit, ("", 1, 1))
    if measures != base:
        raise ValueError(f"unit {unit!r} does not measure {base or 'a plain number'}")
    return value * multiplier / divisor


@dataclass(frozen=True)
class Slot:
    """Where a recipe finds its numbers in a row: (cell position, unit of the header) per column present."""

    recipe: Recipe
    base: str
    minimum: float
    maximum: float
    cells: tuple[tuple[int, str], ...]

    def value(self, row: Sequence[str]) -> float:
        """The metric in base units, NaN when missing; raises `ValueError`."""
        if self.recipe.combine == "first":
            return self._first(row)
        values = [number(row[at], unit, self.base) for at, unit in self.cells]
        if self.recipe.combine == "sum":
            return sum(values)
        if any(map(math.isnan, values)):
            return math.nan
        bits = (_REASON_BITS[name] for name in self.recipe.columns)
        return float(sum(bit for bit, active in zip(bits, values, strict=True) if active))

    def _first(self, row: Sequence[str]) -> float:
        for at, unit in self.cells:
            value = number(row[at], unit, self.base)
            if not math.isnan(value):
                return value
        return math.nan


def slots(positions: Mapping[str, tuple[int, str]]) -> tuple[Slot, ...]:
    """The metrics that a header with these columns (name -> position, unit) can give."""
    found: dict[str, Slot] = {}
    for recipe in RECIPES:
        slot = _slot(recipe, positions)
        if slot is not None:
            found.setdefault(recipe.metric, slot)
    return tuple(found.values())


def _slot(recipe: Recipe, positions: Mapping[str, tuple[int, str]]) -> Slot | None:
    present = tuple(name for name in recipe.columns if name in positions)
    if not present or not _suffices(recipe, present):
        return None
    recipe = Recipe(recipe.metric, present, recipe.combine)
    entry = metric("gpu", recipe.metric)
    cells = tuple(positions[name] for name in present)
    return Slot(recipe, entry.unit, entry.minimum, entry.maximum, cells)


def _suffices(recipe: Recipe, present: tuple[str, ...]) -> bool:
    if recipe.combine == "bits":
        return set(present) >= _NEEDED_BITS
    return recipe.combine == "first" or present == recipe.columns
