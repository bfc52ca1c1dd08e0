"""The arithmetic behind the rule language: arrays [rows, seconds] in, one value per row or evaluation out.

Numbers are float64 with NaN for unknown. Conditions are int8: 0 false, 1 unknown, 2 true, so that `and` is the
minimum and `or` the maximum. Every result depends only on the samples of its own window, added up in a fixed
order: a live evaluation of one window gives the same bits as a pass over a whole job.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gpudiag.storage.sample import Floats

Trits = npt.NDArray[np.int8]
Ints = npt.NDArray[np.int64]
FALSE, UNKNOWN, TRUE = np.int8(0), np.int8(1), np.int8(2)
BLOCK_S = 30
COUNTER_REACH_S = 120
_FEW_WINDOWS = 6
_QUIET = {"invalid": "ignore", "divide": "ignore", "over": "ignore"}


def ratio(part: Floats, whole: Floats) -> Floats:
    """`part / whole`, NaN where there is no whole."""
    out = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    result: Floats = np.divide(part, whole, out=out, where=whole > 0)
    return result


def compare(sign: str, left: Floats, right: Floats) -> Trits:
    """A comparison; unknown where either side is."""
    operation: Callable[[Floats, Floats], npt.NDArray[np.bool_]] = {
        "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    }[sign]  # fmt: skip
    with np.errstate(invalid="ignore"):
        result = np.asarray(operation(left, right)).astype(np.int8)
    result *= 2
    unknown = np.isnan(left) | np.isnan(right)
    if unknown.any():
        result[np.broadcast_to(unknown, result.shape)] = UNKNOWN
    return result


def sums(
    values: npt.NDArray[np.generic], ends: Ints, over: int, block: int, stride: int
) -> npt.NDArray[np.generic]:
    """Sums of `values` [rows, n] over the `over` seconds before each of `ends`, which are `stride` apart.

    `block` divides `over` and `stride`; blocks are summed first, second by second, then added oldest first.
    """
    return _fold(np.add, values, ends, over, block, stride)


def extremes(values: Floats, ends: Ints, over: int, block: int, stride: int, highest: bool) -> Floats:
    """Highest or lowest known value of each window; infinite when there is none."""
    empty = -np.inf if highest else np.inf
    filled = np.where(np.isnan(values), empty, values)
    return _fold(np.maximum if highest else np.minimum, filled, ends, over, block, stride)  # type: ignore[return-value]


def _fold(
    operation: np.ufunc, values: npt.NDArray[np.generic], ends: Ints, over: int, block: int, stride: int
) -> npt.NDArray[np.generic]:
    begin = int(ends[0]) - over
    length = int(ends[-1]) - begin
    if len(ends) <= _FEW_WINDOWS:
        parts = values[:, begin : begin + length].reshape(len(values), length // block, block)
        windows = np.lib.stride_tricks.sliding_window_view(_in_order(operation, parts), over // block, axis=1)
        return _in_order(operation, windows[:, :: stride // block])
    blocks = values[:, begin : begin + length : block].copy()
    for k in range(1, block):
        operation(blocks, values[:, begin + k : begin + length : block], out=blocks)
    step = stride // block
    count = len(ends)
    result = blocks[:, : (count - 1) * step + 1 : step].copy()
    for k in range(1, over // block):
        operation(result, blocks[:, k : k + (count - 1) * step + 1 : step], out=result)
    return result


def _in_order(operation: np.ufunc, parts: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Few windows (live): the same additions in the same order, in one call instead of one per second."""
    if parts.dtype.kind == "i":  # whole numbers: no order matters
        whole: npt.NDArray[np.generic] = operation.reduce(parts, axis=2, dtype=parts.dtype)
        return whole
    last: npt.NDArray[np.generic] = operation.accumulate(parts, axis=2, dtype=parts.dtype)[:, :, -1]
    return last


def rows_at(values: npt.NDArray[np.generic], rows: Ints, first: Ints, width: int) -> npt.NDArray[np.generic]:
    """`values[rows[k], first[k] : first[k] + width]` for every k, as [len(rows), width]."""
    views = np.lib.stride_tricks.sliding_window_view(values, width, axis=1)
    return np.asarray(views[rows, first])


def quantile(rows: Floats, q: float) -> Floats:
    """Linear-interpolated quantile of each row's known values, NaN where there are none."""
    ordered = np.sort(rows, axis=1)
    known = np.count_nonzero(~np.isnan(ordered), axis=1)
    return _pick(ordered, known, q)


def _pick(ordered: Floats, known: Ints, q: float) -> Floats:
    place = q * np.maximum(known - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(known - 1, 0))
    index = np.arange(len(ordered))
    a, b = ordered[index, low], ordered[index, high]
    return np.where(known > 0, a + (b - a) * (place - low), np.nan)


def runs(condition: Trits) -> tuple[Ints, Ints, Ints]:
    """Row, first column and length of each run of TRUE in [rows, n]."""
    true = np.zeros((condition.shape[0], condition.shape[1] + 2), dtype=np.int8)
    true[:, 1:-1] = condition == TRUE
    edges = np.diff(true, axis=1)
    row, begin = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    return row, begin, end - begin


def segments(condition: Trits, shortest: float, longest: float) -> Trits:
    """Keep runs that last `shortest` to `longest` seconds (0: any length); unknown stays unknown."""
    result = np.where(condition == UNKNOWN, UNKNOWN, FALSE)
    row, begin, length = runs(condition)
    fits = length >= shortest
    if longest:
        fits &= length <= longest
    row, begin, length = row[fits], begin[fits], length[fits]
    if len(length):
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        result[np.repeat(row, length), np.repeat(begin, length) + within] = TRUE
    return result


def spread(condition: Trits, before: int, after: int) -> Trits:
    """TRUE from `before` seconds ahead of each TRUE to `after` seconds behind it; the edges see what they have."""
    true = np.zeros((condition.shape[0], condition.shape[1] + 1), dtype=np.int32)
    np.cumsum(condition == TRUE, axis=1, out=true[:, 1:])
    n = condition.shape[1]
    low = np.maximum(np.arange(n) - after, 0)
    high = np.minimum(np.arange(n) + before + 1, n)
    near = true[:, high] > true[:, low]
    return np.where(near, TRUE, np.where(condition == UNKNOWN, UNKNOWN, FALSE))


def sustained(condition: Trits, seconds: int) -> Trits:
    """TRUE where the condition was TRUE in this and the `seconds - 1` seconds before."""
    n = condition.shape[1]
    index = np.arange(n)
    broken = np.maximum.accumulate(np.where(condition == TRUE, -1, index), axis=1)
    long = index - broken >= seconds
    return np.where(long, TRUE, np.where(condition == UNKNOWN, UNKNOWN, FALSE))


def trailing_mean(values: Floats, seconds: int) -> Floats:
    """Mean of the known values of the last `seconds` seconds, added oldest first."""
    n = values.shape[1]
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    total, count = np.zeros(values.shape), np.zeros(values.shape)
    for k in range(min(seconds, n) - 1, -1, -1):
        total[:, k:] += filled[:, : n - k]
        count[:, k:] += known[:, : n - k]
    return ratio(total, count)


def shifted(values: Floats, seconds: int) -> Floats:
    """The series `seconds` earlier."""
    result = np.full(values.shape, np.nan)
    if seconds < values.shape[1]:
        result[:, seconds:] = values[:, : values.shape[1] - seconds]
    return result


def increments(values: Floats) -> Floats:
    """Growth of a counter at each known second since the known one before it, at most two minutes back.

    A fall means that the counter began again at zero. Unknown where there is no value to compare with.
    """
    n = values.shape[1]
    known = ~np.isnan(values)
    index = np.arange(n)
    latest = np.maximum.accumulate(np.where(known, index, -1), axis=1)
    before = np.concatenate((np.full((len(values), 1), -1), latest[:, :-1]), axis=1)
    previous = np.take_along_axis(values, np.maximum(before, 0), axis=1)
    with np.errstate(invalid="ignore"):
        grown = values - previous
        grown = np.where(grown < 0, values, grown)
    usable = known & (before >= 0) & (index - before <= COUNTER_REACH_S)
    return np.where(usable, grown, np.nan)


def block_maxima(rows: Floats) -> Floats:
    """Maxima of 30 s blocks counted back from the end of each row, [rows, width // 30]; NaN for an empty block."""
    width = rows.shape[1] // BLOCK_S * BLOCK_S
    blocks = rows[:, rows.shape[1] - width :].reshape(len(rows), -1, BLOCK_S)
    filled = np.where(np.isnan(blocks), -np.inf, blocks).max(axis=2)
    return np.where(np.isinf(filled), np.nan, filled)


def pair_slopes(blocks: Floats) -> Floats:
    """Slope per second of every pair of blocks, [rows, pairs]; NaN where one is missing."""
    i, j = np.triu_indices(blocks.shape[1], k=1)
    return (blocks[:, j] - blocks[:, i]) / ((j - i) * float(BLOCK_S))


def concordance(blocks: Floats) -> Floats:
    """Share of the known pairs that rise."""
    slopes = pair_slopes(blocks)
    known = np.count_nonzero(~np.isnan(slopes), axis=1)
    with np.errstate(invalid="ignore"):
        rising = np.count_nonzero(slopes > 0, axis=1)
    return ratio(rising.astype(np.float64), known.astype(np.float64))


def end_points(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """First, middle and last known value of each row, the middle the first known one from the centre on."""
    known = ~np.isnan(rows)
    index = np.arange(len(rows))
    any_known = known.any(axis=1)
    first = np.argmax(known, axis=1)
    last = known.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    half = known.shape[1] // 2
    middle = half + np.argmax(known[:, half:], axis=1)
    picked = (np.where(any_known, rows[index, at], np.nan) for at in (first, middle, last))
    a, b, c = picked
    return a, b, c


def acceleration(blocks: Floats) -> Floats:
    """Growth from the middle to the end, relative to the growth before; infinite when only the end grew."""
    first, middle, last = end_points(blocks)
    with np.errstate(**_QUIET):  # type: ignore[arg-type]
        early, late = middle - first, last - middle
        ratio = late / early
    return np.where(early > 0, ratio, np.where(late > 0, np.inf, 0.0) + 0 * early)


def correlation(a: Floats, b: Floats) -> Floats:
    """Pearson correlation of each pair of rows over the seconds both know; NaN without variation."""
    known = ~(np.isnan(a) | np.isnan(b))
    count = known.sum(axis=1, keepdims=True)
    with np.errstate(**_QUIET):  # type: ignore[arg-type]
        x = np.where(known, a - np.where(known, a, 0).sum(axis=1, keepdims=True) / count, 0)
        y = np.where(known, b - np.where(known, b, 0).sum(axis=1, keepdims=True) / count, 0)
        scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
        result = (x * y).sum(axis=1) / scale
    return np.where((scale > 0) & (count[:, 0] >= 10), result, np.nan)


def lagged(a: Floats, b: Floats, lag: int) -> Floats:
    """Correlation of `a` with `b` moved `lag` seconds later."""
    if lag >= 0:
        return correlation(a[:, lag:], b[:, : b.shape[1] - lag])
    return correlation(a[:, :lag], b[:, -lag:])


def best_lag(a: Floats, b: Floats, most: int) -> Floats:
    """The correlation largest in size over lags of -`most` to `most`."""
    all_lags = np.stack([lagged(a, b, lag) for lag in range(-most, most + 1)])
    size = np.where(np.isnan(all_lags), -1, np.abs(all_lags))
    best: Floats = np.take_along_axis(all_lags, size.argmax(axis=0)[None], axis=0)[0]
    return best


def dominant_period(rows: Floats) -> tuple[Floats, Floats]:
    """Period in seconds and autocorrelation at it (unknown and 0 when no lag reaches 0.5 after dipping below).

    The first peak of the autocorrelation at or above 0.9 of its highest peak, so that a multiple is not taken.
    """
    n = rows.shape[1]
    known = ~np.isnan(rows)
    count = known.sum(axis=1, keepdims=True)
    with np.errstate(**_QUIET):  # type: ignore[arg-type]
        centred = np.where(known, rows - np.where(known, rows, 0).sum(axis=1, keepdims=True) / count, 0)
        power = np.abs(np.fft.rfft(centred, 2 * n, axis=1)) ** 2
        acf = np.fft.irfft(power, axis=1)[:, : n // 2 + 1]
        acf = acf / acf[:, :1] * (n / (n - np.arange(acf.shape[1])))
    acf = np.nan_to_num(acf)
    periods, strengths = np.full(len(rows), np.nan), np.zeros(len(rows))
    for k, row in enumerate(acf):
        periods[k], strengths[k] = _first_peak(row)
    return periods, strengths


def _first_peak(acf: Floats) -> tuple[float, float]:
    below = np.flatnonzero(acf < 0.25)
    if not len(below):
        return float("nan"), 0.0
    inner = np.arange(max(int(below[0]), 1), len(acf) - 1)
    peaks = inner[(acf[inner] >= acf[inner - 1]) & (acf[inner] > acf[inner + 1]) & (acf[inner] >= 0.5)]
    if not len(peaks):
        return float("nan"), 0.0
    strong = peaks[acf[peaks] >= 0.9 * acf[peaks].max()]
    return float(strong[0]), float(acf[strong[0]])


def change_point(rows: Floats) -> tuple[Floats, Floats]:
    """Relative change of the mean where the cumulative sum strays most, and its age in seconds.

    0 and NaN unless the two means differ by five standard errors and each side has 10 samples.
    """
    n = rows.shape[1]
    known = ~np.isnan(rows)
    count = known.sum(axis=1, keepdims=True)
    filled = np.where(known, rows, 0.0)
    with np.errstate(**_QUIET):  # type: ignore[arg-type]
        mean = filled.sum(axis=1, keepdims=True) / count
        strays = np.abs(np.cumsum(np.where(known, rows - mean, 0), axis=1))
        cut = strays.argmax(axis=1)
        left = np.arange(n) <= cut[:, None]
        (n1, m1, v1), (n2, m2, v2) = (_moments(filled, known & side) for side in (left, ~left))
        clear = np.abs(m2 - m1) >= 5 * np.sqrt(v1 / n1 + v2 / n2)
        effect = (m2 - m1) / np.abs(m1)
    found = clear & (n1 >= 10) & (n2 >= 10) & np.isfinite(effect)
    return np.where(found, effect, 0.0), np.where(found, n - 1.0 - cut, np.nan)


def _moments(filled: Floats, part: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    count = part.sum(axis=1).astype(np.float64)
    mean = np.where(part, filled, 0).sum(axis=1) / count
    variance = np.where(part, (filled - mean[:, None]) ** 2, 0).sum(axis=1) / count
    return count, mean, variance


def without_self(values: Floats, groups: Ints, statistic: Callable[[Floats], Floats]) -> Floats:
    """For each row the statistic over the other rows of its group, [rows, n]; NaN when it is alone."""
    result = np.full(values.shape, np.nan)
    for row in range(len(values)):
        others = [k for k in range(len(values)) if k != row and groups[k] == groups[row]]
        if others:
            result[row] = statistic(values[others])
    return result


def over_rows(name: str, values: Floats) -> Floats:
    """`median`, `mean`, `max`, `min` or `spread` over axis 0 of the known values; NaN where none is known."""
    if name == "median":
        return _median_of_rows(values)
    if name == "spread":
        return 1.4826 * _median_of_rows(np.abs(values - _median_of_rows(values)))
    some = ~np.isnan(values).all(axis=0)
    safe = np.where(some, values, 0.0)
    functions: dict[str, Callable[..., Floats]] = {"mean": np.nanmean, "max": np.nanmax, "min": np.nanmin}
    return np.where(some, functions[name](safe, axis=0), np.nan)


def _median_of_rows(values: Floats) -> Floats:
    """Median over axis 0; sorting puts NaN last, which is many times faster than numpy's masked median here."""
    ordered = np.sort(values, axis=0)
    count = np.count_nonzero(~np.isnan(values), axis=0)
    columns = np.arange(values.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)
    return np.where(count > 0, 0.5 * (ordered[low, columns] + ordered[high, columns]), np.nan)
