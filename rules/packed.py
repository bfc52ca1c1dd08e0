"""Columns of the grid in as few bytes as give back every bit: what several passes over a job's devices share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpudiag.storage.sample import Floats

_FACTORS = (2.0**-20, *(10.0**decimals for decimals in range(7)))
_SIZES = (np.uint8, np.uint16, np.uint32)
_EXACT = 2.0**53
_FEW = 64  # values, from all over the column, looked at before all are


@dataclass(frozen=True)
class Packed:
    """`codes` [seconds]: whole numbers from `lowest` on, times `1 / factor`, the type's highest for missing.

    As they are (float64) with `factor` 0; a single missing one (zero stride) where nothing was measured.
    """

    codes: npt.NDArray[Any]
    lowest: float = 0.0
    factor: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.codes.nbytes if self.codes.strides[0] else self.codes.itemsize

    def values(self, first: int = 0, last: int | None = None) -> Floats:
        """float64 [last - first], NaN where missing; not to be written to."""
        codes = self.codes[first:last]
        if not self.factor:
            return codes
        values: Floats = (codes.astype(np.float64) + self.lowest) / self.factor
        values[codes == np.iinfo(codes.dtype).max] = np.nan
        values.flags.writeable = False
        return values


def pack(values: Floats) -> Packed:
    """The smallest exact form of `values` [seconds] among these."""
    missing = np.isnan(values)
    first = int(np.argmin(missing)) if len(values) else 0
    if not len(values) or missing[first]:
        return Packed(nothing(len(values)))
    few = values[first :: len(values) // _FEW + 1]
    few = few[~np.isnan(few)]
    for factor in _FACTORS:
        if _whole(few, factor) is None or (whole := _whole(values, factor, missing)) is None:
            continue
        np.copyto(whole, whole[first], where=missing)
        lowest = float(whole.min())
        span = float(whole.max()) - lowest
        kind = next((size for size in _SIZES if span < np.iinfo(size).max), None)
        if kind is None:
            break
        whole -= lowest
        codes = whole.astype(kind)
        np.copyto(codes, np.iinfo(kind).max, where=missing)
        return Packed(codes, lowest, factor)
    return Packed(values)


def nothing(seconds: int) -> Floats:
    """A column in which nothing was measured; it takes no memory."""
    return np.broadcast_to(np.float64(np.nan), (seconds,))


def _whole(values: Floats, factor: float, missing: npt.NDArray[np.bool_] | None = None) -> Floats | None:
    """`values` times `factor` when that gives whole numbers that give every bit back, but for those missing; else None."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole: Floats = np.rint(values * factor)
        whole += 0.0  # no negative zero: an offset would lose its sign
        differ = (whole / factor).view(np.int64) != values.view(np.int64)
        differ |= np.abs(whole) >= _EXACT
    if differ.any() and (missing is None or (differ & ~missing).any()):
        return None
    return whole
