"""Functions that turn a series into a value per evaluation, only for the rows and evaluations asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.rules import kernels
from gpudiag.rules.kernels import TRUE, UNKNOWN, Ints, Trits
from gpudiag.rules.node import Node
from gpudiag.rules.series_functions import as_condition, number_option, over_option
from gpudiag.storage.sample import Floats

if TYPE_CHECKING:
    from gpudiag.rules.view import Values, View

MINUTE_S = 60


def _matrix(view: View, node: Node, rows: Ints, columns: Ints, child: int = 0) -> Values:
    over = over_option(node)
    return view.matrix(node.children[child], rows, columns, over, over)


def _known_enough(view: View, node: Node, known: Ints, values: Floats) -> Floats:
    return np.where(known >= view.required(over_option(node)), values, np.nan)


Reduce = Callable[[Floats, Node], Floats]
ReduceCondition = Callable[[Trits, Node], Floats]


def _numbers(reduce: Reduce) -> Callable[[View, Node, Ints, Ints], Floats]:
    """A row function from one that reduces each row of numbers."""

    def rows_function(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
        values = np.asarray(_matrix(view, node, rows, columns), dtype=np.float64)
        return _known_enough(view, node, np.count_nonzero(~np.isnan(values), axis=1), reduce(values, node))

    return rows_function


def _conditions(reduce: ReduceCondition) -> Callable[[View, Node, Ints, Ints], Floats]:
    """A row function from one that reduces each row of a condition."""

    def rows_function(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
        condition = as_condition(_matrix(view, node, rows, columns))
        return _known_enough(
            view, node, np.count_nonzero(condition != UNKNOWN, axis=1), reduce(condition, node)
        )

    return rows_function


def _pairs(reduce: Callable[[Floats, Floats, Node], Floats]) -> Callable[[View, Node, Ints, Ints], Floats]:
    """A row function from one that reduces two rows of numbers."""

    def rows_function(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
        a, b = (np.asarray(_matrix(view, node, rows, columns, k), dtype=np.float64) for k in (0, 1))
        known = np.count_nonzero(~(np.isnan(a) | np.isnan(b)), axis=1)
        return _known_enough(view, node, known, reduce(a, b, node))

    return rows_function


def _filled(values: Floats) -> Floats:
    return np.where(np.isnan(values), 0.0, values)


def _mean(values: Floats, node: Node) -> Floats:
    return kernels.ratio(
        _filled(values).sum(axis=1), np.count_nonzero(~np.isnan(values), axis=1).astype(np.float64)
    )


def _deviation(values: Floats, node: Node) -> Floats:
    centred = (values - _mean(values, node)[:, None]) ** 2
    return np.sqrt(_mean(centred, node))


def _share(condition: Trits, node: Node) -> Floats:
    known = np.count_nonzero(condition != UNKNOWN, axis=1).astype(np.float64)
    return kernels.ratio(np.count_nonzero(condition == TRUE, axis=1).astype(np.float64), known)


def _run_statistic(statistic: str) -> ReduceCondition:
    def reduce(condition: Trits, node: Node) -> Floats:
        row, _, length = kernels.runs(condition)
        result = np.zeros(len(condition))
        if statistic == "count":
            return np.bincount(row, minlength=len(condition)).astype(np.float64)
        for k in np.unique(row):
            mine = length[row == k]
            result[k] = mine.max() if statistic == "longest" else np.median(mine)
        return result

    return reduce


def _overlap(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
    first, second = (_matrix(view, node, rows, columns, k) for k in (0, 1))
    both_known = (first != UNKNOWN) & (second != UNKNOWN)
    mine = both_known & (first == TRUE)
    shared = np.count_nonzero(mine & (second == TRUE), axis=1).astype(np.float64)
    share = kernels.ratio(shared, np.count_nonzero(mine, axis=1).astype(np.float64))
    return _known_enough(view, node, np.count_nonzero(both_known, axis=1), share)


def _mean_while(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
    values, condition = (_matrix(view, node, rows, columns, k) for k in (0, 1))
    known = ~np.isnan(values) & (condition != UNKNOWN)
    mine = np.where(known & (condition == TRUE), values, np.nan)
    return _known_enough(view, node, np.count_nonzero(known, axis=1), _mean(mine, node))


def _slope_quantile(blocks: Floats, q: float) -> Floats:
    return kernels.quantile(kernels.pair_slopes(blocks), q)


def _time_to(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
    values = np.asarray(_matrix(view, node, rows, columns), dtype=np.float64)
    blocks = kernels.block_maxima(values)
    slope = _slope_quantile(blocks, number_option(node, "q"))
    target = view.pair_values(node.children[1], rows, columns)
    left = target - kernels.end_points(blocks)[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(left <= 0, 0.0, np.where(slope > 0, left / slope, np.inf))
    seconds = np.where(np.isnan(slope) | np.isnan(left), np.nan, seconds)
    return _known_enough(view, node, np.count_nonzero(~np.isnan(values), axis=1), seconds)


def _delta(values: Floats, node: Node) -> Floats:
    first, _, last = kernels.end_points(values)
    return last - first


def _rise(values: Floats, node: Node) -> Floats:
    first, _, last = kernels.end_points(kernels.block_maxima(values))
    return last - first


def _share_extreme(highest: bool) -> Callable[[View, Node, Ints, Ints], Floats]:
    """Share of the window's minutes in which a GPU is the highest (lowest) of its group by mean."""

    def rows_function(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
        everyone = range(len(view.rows))
        wanted, at = np.unique(columns, return_inverse=True)
        means = np.stack(
            [_minute_means(view, node, np.full(len(wanted), row), wanted) for row in everyone]
        )  # [gpus, times, minutes]
        shares = np.stack([_wins(means, view.stretch.groups(), row, highest) for row in everyone])
        return np.asarray(shares[rows, at.reshape(-1)])

    return rows_function


def _minute_means(view: View, node: Node, rows: Ints, columns: Ints) -> Floats:
    values = np.asarray(_matrix(view, node, rows, columns), dtype=np.float64)
    width = values.shape[1] // MINUTE_S * MINUTE_S
    minutes = values[:, values.shape[1] - width :].reshape(len(values), -1, MINUTE_S)
    known = np.count_nonzero(~np.isnan(minutes), axis=2).astype(np.float64)
    mean = kernels.ratio(_filled(minutes).sum(axis=2), known)
    return np.where(known >= view.required(MINUTE_S), mean, np.nan)


def _wins(means: Floats, groups: Ints, row: int | np.intp, highest: bool) -> Floats:
    peers = means[groups == groups[row]]
    comparable = np.count_nonzero(~np.isnan(peers), axis=0) >= 2
    best = kernels.over_rows("max" if highest else "min", peers.reshape(len(peers), -1)).reshape(
        comparable.shape
    )
    usable = comparable & ~np.isnan(means[row])
    wins = np.count_nonzero(usable & (means[row] == best), axis=1).astype(np.float64)
    return kernels.ratio(wins, np.count_nonzero(usable, axis=1).astype(np.float64))


ROWS: dict[str, Callable[[View, Node, Ints, Ints], Floats]] = {
    "mean": _numbers(_mean),
    "max": _numbers(lambda values, node: kernels.quantile(values, 1.0)),
    "min": _numbers(lambda values, node: kernels.quantile(values, 0.0)),
    "first": _numbers(lambda values, node: kernels.end_points(values)[0]),
    "last": _numbers(lambda values, node: kernels.end_points(values)[2]),
    "quantile": _numbers(lambda values, node: kernels.quantile(values, number_option(node, "q"))),
    "median": _numbers(lambda values, node: kernels.quantile(values, 0.5)),
    "deviation": _numbers(_deviation),
    "share": _conditions(_share),
    "seconds": _conditions(
        lambda condition, node: np.count_nonzero(condition == TRUE, axis=1).astype(np.float64)
    ),
    "samples": lambda view, node, rows, columns: np.count_nonzero(
        ~np.isnan(_matrix(view, node, rows, columns)), axis=1
    ).astype(np.float64),
    "episodes": _conditions(_run_statistic("count")),
    "longest": _conditions(_run_statistic("longest")),
    "typical_length": _conditions(_run_statistic("typical")),
    "overlap": _overlap,
    "mean_while": _mean_while,
    "delta": _numbers(_delta),
    "correlation": _pairs(lambda a, b, node: kernels.lagged(a, b, int(number_option(node, "lag")))),
    "best_correlation": _pairs(
        lambda a, b, node: kernels.best_lag(a, b, int(number_option(node, "max_lag")))
    ),
    "period": _numbers(lambda values, node: kernels.dominant_period(values)[0]),
    "period_strength": _numbers(lambda values, node: kernels.dominant_period(values)[1]),
    "change_point": _numbers(lambda values, node: kernels.change_point(values)[0]),
    "change_age": _numbers(lambda values, node: kernels.change_point(values)[1]),
    "slope": _numbers(lambda values, node: _slope_quantile(kernels.block_maxima(values), 0.5)),
    "concordance": _numbers(lambda values, node: kernels.concordance(kernels.block_maxima(values))),
    "rise": _numbers(_rise),
    "acceleration": _numbers(lambda values, node: kernels.acceleration(kernels.block_maxima(values))),
    "time_to": _time_to,
    "share_highest": _share_extreme(highest=True),
    "share_lowest": _share_extreme(highest=False),
}
