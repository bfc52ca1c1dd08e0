"""Functions of the rule language that turn a series into a series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpudiag.rules import kernels
from gpudiag.rules.kernels import FALSE, TRUE, UNKNOWN, Ints, Trits
from gpudiag.rules.node import Node
from gpudiag.storage.sample import Floats

if TYPE_CHECKING:
    from gpudiag.rules.view import Values, View


def number_option(node: Node, option: str) -> float:
    value = node.options[option]
    return float(value) if isinstance(value, float | int) else float("nan")


def over_option(node: Node) -> int:
    return int(number_option(node, "over"))


def text_options(node: Node, option: str) -> tuple[str, ...]:
    value = node.options.get(option, ())
    return value if isinstance(value, tuple) else (str(value),)


def series_function(view: View, node: Node, first: int, last: int) -> Values:
    """A function that gives a value per second, for seconds `first` to `last`."""
    name = str(node.value)
    if name == "phase":
        return view.phase_condition(text_options(node, "name"))[:, first:last]
    if name == "per_second":
        return growth(view, node, first, last)
    reach, lag = _own_reach(node)
    child = view.series(node.children[0], first - reach, last + lag)
    return _apply(node, child)[:, reach : reach + last - first]


def matrix_function(view: View, node: Node, rows: Ints, columns: Ints, before: int, width: int) -> Values:
    """The same over the windows of (row, evaluation) pairs, for a series that depends on its window."""
    reach, lag = _own_reach(node)
    child = view.matrix(node.children[0], rows, columns, before + reach, width + reach + lag)
    return _apply(node, child)[:, reach : reach + width]


def _own_reach(node: Node) -> tuple[int, int]:
    child = node.children[0]
    return node.reach - child.reach, node.lag - child.lag


def _apply(node: Node, values: Values) -> Values:
    name = str(node.value)
    if name == "segments":
        return kernels.segments(as_condition(values), number_option(node, "min"), number_option(node, "max"))
    if name == "sustained":
        return kernels.sustained(as_condition(values), int(number_option(node, "seconds")))
    if name == "near":
        return kernels.spread(
            as_condition(values), int(number_option(node, "before")), int(number_option(node, "after"))
        )
    if name == "bits":
        return _bits(values, int(number_option(node, "mask")))
    seconds = int(number_option(node, "seconds"))
    if name == "smooth":
        return kernels.trailing_mean(values, max(seconds, 1))
    earlier = kernels.shifted(values, seconds)
    return earlier if name == "earlier" else values - earlier


def as_condition(values: Values) -> Trits:
    return values


def _bits(values: Values, mask: int) -> Trits:
    known = ~np.isnan(values)
    held = np.where(known, values, 0).astype(np.int64)
    return np.where(known, np.where(held & mask, TRUE, FALSE), UNKNOWN)


def growth(view: View, node: Node, first: int, last: int) -> Floats:
    """Growth of a counter; what it grew while the job was in another phase is left out, not lost track of."""
    metric = node.children[0]
    begin = first - kernels.COUNTER_REACH_S
    whole = view.leaf(str(metric.options["scope"]), str(metric.value), (), begin, last)
    grown = kernels.increments(whole)[:, first - begin :]
    phases = view.settings.phases
    return np.where(view.in_phases(phases)[:, first:last], grown, np.nan) if phases else grown
