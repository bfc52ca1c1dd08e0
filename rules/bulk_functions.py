"""Functions that turn a series into a value per evaluation, for all evaluations at once: sums over blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.rules import kernels
from gpudiag.rules.kernels import TRUE, UNKNOWN
from gpudiag.rules.node import Node
from gpudiag.rules.series_functions import growth, over_option
from gpudiag.storage.sample import Floats

if TYPE_CHECKING:
    from gpudiag.rules.view import Bools, Values, View

DEVICE_WINDOW_S = 300


class _Windows:
    """Sums over the windows of all evaluations."""

    def __init__(self, view: View, over: int) -> None:
        self.view = view
        self.over = over
        self.stride = view.settings.step
        self.block = int(np.gcd(over, self.stride))
        self.first = int(view.ends[0]) - over
        self.ends = view.ends - self.first

    def series(self, node: Node) -> Values:
        return self.view.series(node, self.first, int(self.view.ends[-1]))

    def count(self, condition: Bools) -> Floats:
        """How many seconds are set."""
        all_alike = bool(condition.all()) or not condition.any()
        if all_alike and condition.size:  # the usual case: nothing is missing, or nothing was measured
            return np.full((len(condition), len(self.ends)), float(self.over if condition[0, 0] else 0))
        total = kernels.sums(condition.astype(np.int32), self.ends, self.over, self.block, self.stride)
        return total.astype(np.float64)

    def sum(self, values: Floats) -> Floats:
        return np.asarray(
            kernels.sums(values, self.ends, self.over, self.block, self.stride), dtype=np.float64
        )

    def extreme(self, values: Floats, highest: bool) -> Floats:
        return kernels.extremes(values, self.ends, self.over, self.block, self.stride, highest)

    def enough(self, known: Floats, values: Floats) -> Floats:
        """Unknown where too little was measured."""
        return np.where(known >= self.view.required(self.over), values, np.nan)


def _bulk_mean(view: View, node: Node) -> Floats:
    windows = _Windows(view, over_option(node))
    values = windows.series(node.children[0])
    known = ~np.isnan(values)
    count = windows.count(known)
    return windows.enough(count, kernels.ratio(windows.sum(np.where(known, values, 0.0)), count))


def _bulk_extreme(highest: bool) -> Callable[[View, Node], Floats]:
    def extreme(view: View, node: Node) -> Floats:
        windows = _Windows(view, over_option(node))
        values = np.asarray(windows.series(node.children[0]), dtype=np.float64)
        return windows.enough(windows.count(~np.isnan(values)), windows.extreme(values, highest))

    return extreme


def _bulk_share(view: View, node: Node) -> Floats:
    windows = _Windows(view, over_option(node))
    condition = windows.series(node.children[0])
    known = windows.count(condition != UNKNOWN)
    return windows.enough(known, kernels.ratio(windows.count(condition == TRUE), known))


def _bulk_seconds(view: View, node: Node) -> Floats:
    windows = _Windows(view, over_option(node))
    condition = windows.series(node.children[0])
    return windows.enough(windows.count(condition != UNKNOWN), windows.count(condition == TRUE))


def _bulk_samples(view: View, node: Node) -> Floats:
    windows = _Windows(view, over_option(node))
    return windows.count(~np.isnan(windows.series(node.children[0])))


def _bulk_overlap(view: View, node: Node) -> Floats:
    windows = _Windows(view, over_option(node))
    first, second = (windows.series(child) for child in node.children)
    both_known = (first != UNKNOWN) & (second != UNKNOWN)
    mine = (first == TRUE) & both_known
    shared = windows.count(mine & (second == TRUE))
    return windows.enough(windows.count(both_known), kernels.ratio(shared, windows.count(mine)))


def _bulk_mean_while(view: View, node: Node) -> Floats:
    windows = _Windows(view, over_option(node))
    values, condition = (windows.series(child) for child in node.children)
    known = ~np.isnan(values) & (condition != UNKNOWN)
    mine = known & (condition == TRUE)
    total = windows.sum(np.where(mine, values, 0.0))
    return windows.enough(windows.count(known), kernels.ratio(total, windows.count(mine)))


def _bulk_increase(per_second: bool) -> Callable[[View, Node], Floats]:
    def increase(view: View, node: Node) -> Floats:
        windows = _Windows(view, over_option(node))
        grown = growth(view, node, windows.first, int(view.ends[-1]))
        known = ~np.isnan(grown)
        count = windows.count(known)
        total = windows.sum(np.where(known, grown, 0.0))
        return windows.enough(count, kernels.ratio(total, count) if per_second else total)

    return increase


BULK: dict[str, Callable[[View, Node], Floats]] = {
    "mean": _bulk_mean,
    "max": _bulk_extreme(highest=True),
    "min": _bulk_extreme(highest=False),
    "share": _bulk_share,
    "seconds": _bulk_seconds,
    "samples": _bulk_samples,
    "overlap": _bulk_overlap,
    "mean_while": _bulk_mean_while,
    "increase": _bulk_increase(per_second=False),
    "rate": _bulk_increase(per_second=True),
}


def highest_known(view: View, metric: str, attribute: str) -> Floats:
    """The highest value of a metric in the last five minutes before each evaluation, else the device's attribute."""
    return view.kept(f"highest {metric} {attribute}", lambda: _highest_known(view, metric, attribute))


def _highest_known(view: View, metric: str, attribute: str) -> Floats:
    windows = _Windows(view, DEVICE_WINDOW_S)
    values = view.leaf("gpu", metric, (), windows.first, int(view.ends[-1]))
    highest = windows.extreme(values, highest=True)
    return np.where(np.isinf(highest), view.attribute(attribute), highest)


def count_seconds(view: View, condition: Bools, over: int) -> Floats:
    """How many seconds of each window are set, of a condition over the whole stretch."""
    windows = _Windows(view, over)
    return windows.count(condition[:, windows.first : int(view.ends[-1])])


def count_known(view: View, scope: str, metric: str, over: int) -> Floats:
    """How many seconds of each window have a value."""
    windows = _Windows(view, over)
    values = view.leaf(scope, metric, (), windows.first, int(view.ends[-1]))
    return windows.count(~np.isnan(values))
