"""Conversion into base units that keeps decimal values short: 95 percent is 0.95, not 0.9500000000000001.

A scale is what to multiply by, or when negative, what to divide by.
"""

from __future__ import annotations

PERCENT = -100
MILLI = -1000
NANO = -(10**9)
ONE = 1
KIB = 1 << 10
MIB = 1 << 20
MEGA = 10**6
_RATIO_DIGITS = 4  # a hundredth of a percent: finer is noise, and noise does not compress
_SECOND_DIGITS = 6


def convert(value: float, scale: int) -> float:
    """`value` in base units; ratios and times without digits beyond what was measured."""
    if scale > 0:
        return value * scale
    if scale == PERCENT:
        return round(value / 100, _RATIO_DIGITS)
    return round(value / -scale, _SECOND_DIGITS) if scale == NANO else value / -scale
