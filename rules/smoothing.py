"""Means over moving stretches of a 1-second grid; missing seconds take no part."""

from __future__ import annotations

import numpy as np

from gpudiag.storage.sample import Floats


def centred_mean(values: Floats, seconds: int) -> Floats:
    """Mean of the `seconds` around each second, [n]; NaN where none of them was measured."""
    seen = ~np.isnan(values)
    if not seen.any():
        return np.full(len(values), np.nan)
    totals = np.concatenate(([0.0], np.cumsum(np.where(seen, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(seen)))
    count = _within(counts, seconds)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = np.where(count > 0, _within(totals, seconds) / count, np.nan)
    return mean


def _within(totals: Floats, seconds: int) -> Floats:
    """Differences of running totals [n + 1] over the `seconds` around each second, cut off at both ends; [n]."""
    n, half = len(totals) - 1, seconds // 2
    if n < half + seconds:
        index = np.arange(n)
        first = np.maximum(index - half, 0)
        short: Floats = totals[np.minimum(first + seconds, n)] - totals[first]
        return short
    out: Floats = np.empty(n, dtype=totals.dtype)
    out[:half] = totals[seconds] - totals[0]
    out[half : n - seconds + half + 1] = totals[seconds:] - totals[: n - seconds + 1]
    out[n - seconds + half + 1 :] = totals[n] - totals[n - seconds + 1 : n - half]
    return out


def near(
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]], seconds: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Seconds at most `seconds` away from one where `mask` holds."""
    if not mask.any():
        return mask
    totals = np.concatenate(([0], np.cumsum(mask)))
    index = np.arange(len(mask))
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        totals[np.minimum(index + seconds + 1, len(mask))] > totals[np.maximum(index - seconds, 0)]
    )
    return found
