"""Functions that turn values per evaluation, events and facts of the job into values per evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.rules import estimate, kernels
from gpudiag.rules.kernels import FALSE, TRUE, UNKNOWN
from gpudiag.rules.node import Node
from gpudiag.rules.series_functions import over_option, text_options
from gpudiag.storage.sample import Floats

if TYPE_CHECKING:
    from gpudiag.rules.view import Bools, Values, View


def _child(view: View, node: Node, need: Bools, k: int = 0) -> Values:
    return view.window(node.children[k], need)


def _default(view: View, node: Node, need: Bools) -> Values:
    value = _child(view, node, need)
    unknown = (value == UNKNOWN) if node.boolean else np.isnan(value)
    if not (unknown & need).any():
        return value
    return np.where(unknown, _child(view, node, need, 1), value)


def _known(view: View, node: Node, need: Bools) -> Values:
    value = _child(view, node, need)
    unknown = (value == UNKNOWN) if node.children[0].boolean else np.isnan(value)
    return np.where(unknown, FALSE, TRUE)


def _peers(statistic: str) -> Callable[[View, Node, Bools], Values]:
    def function(view: View, node: Node, need: Bools) -> Values:
        whole = _all_rows(view, node.children[0], need)
        return kernels.without_self(whole, view.stretch.groups(), lambda v: kernels.over_rows(statistic, v))

    return function


def _gpus(statistic: str) -> Callable[[View, Node, Bools], Values]:
    def function(view: View, node: Node, need: Bools) -> Values:
        whole = _all_rows(view.gpus(), node.children[0], need)
        if not len(whole):
            return np.full((1, 1), np.nan)
        return kernels.over_rows(statistic, whole)[None, :]

    return function


def _gpus_count(view: View, node: Node, need: Bools) -> Values:
    whole = _all_rows(view.gpus(), node.children[0], need)
    known = (whole != UNKNOWN).any(axis=0)
    return np.where(known, np.count_nonzero(whole == TRUE, axis=0).astype(np.float64), np.nan)[None, :]


def _all_rows(view: View, node: Node, need: Bools) -> Values:
    """A value of every row at the times asked for."""
    columns = need.any(axis=0, keepdims=True)
    everyone = np.broadcast_to(columns, (len(view.rows), columns.shape[1]))
    values = view.window(node, everyone)
    return np.broadcast_to(values, (len(view.rows), columns.shape[1]))


def _peers_count(view: View, node: Node, need: Bools) -> Values:
    groups = view.stretch.groups()
    return np.array([[float(np.count_nonzero(groups == group) - 1)] for group in groups])


def _gpu_total(view: View, node: Node, need: Bools) -> Values:
    return np.array([[float(len(view.stretch.gpus))]])


def _node_total(view: View, node: Node, need: Bools) -> Values:
    return np.array([[float(view.stretch.nodes)]])


def _job_age(view: View, node: Node, need: Bools) -> Values:
    now = view.ends + view.settings.lag + view.stretch.start_s
    return (now - view.stretch.job_start_s).astype(np.float64)[None, :]


def _tag(view: View, node: Node, need: Bools) -> Values:
    return np.full((1, 1), TRUE if node.options["name"] in view.stretch.job.tags else FALSE)


def _events(whole_job: bool) -> Callable[[View, Node, Bools], Values]:
    def function(view: View, node: Node, need: Bools) -> Values:
        if whole_job:
            mine = [tuple(e.source.device for e in view.stretch.events)]
            return np.stack([_count_events(view, node, set(devices)) for devices in mine])
        return np.stack([_count_events(view, node, {row.device}) for row in view.rows])

    return function


def _count_events(view: View, node: Node, devices: set[str]) -> Floats:
    if not view.stretch.events:
        return np.zeros(len(view.ends))
    kind, codes = str(node.options["kind"]), {int(float(code)) for code in text_options(node, "code")}
    seconds = np.array(
        sorted(
            event.time_ms // 1000 - view.stretch.start_s
            for event in view.stretch.events
            if event.kind == kind and event.source.device in devices and (not codes or event.code in codes)
        ),
        dtype=np.int64,
    )
    before = np.searchsorted(seconds, view.ends - over_option(node), side="left")
    return (np.searchsorted(seconds, view.ends, side="left") - before).astype(np.float64)


def _extreme_of_two(highest: bool) -> Callable[[View, Node, Bools], Values]:
    choose = np.fmax if highest else np.fmin
    return lambda view, node, need: choose(_child(view, node, need), _child(view, node, need, 1))


def _each(function: np.ufunc) -> Callable[[View, Node, Bools], Values]:
    return lambda view, node, need: function(_child(view, node, need))


def _square_root(view: View, node: Node, need: Bools) -> Values:
    value = _child(view, node, need)
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.where(value >= 0, value, np.nan))


def _batch_growth(view: View, node: Node, need: Bools) -> Values:
    peak, capacity = np.broadcast_arrays(_child(view, node, need), _child(view, node, need, 1))
    known = ~(np.isnan(peak) | np.isnan(capacity))
    growth = np.full(peak.shape, np.nan)
    growth[known] = [
        estimate.batch_growth(float(c), float(p)) for c, p in zip(capacity[known], peak[known], strict=True)
    ]
    return growth


PLAIN: dict[str, Callable[[View, Node, Bools], Values]] = {
    "default": _default,
    "known": _known,
    "larger": _extreme_of_two(highest=True),
    "smaller": _extreme_of_two(highest=False),
    "size": _each(np.abs),
    "round_down": _each(np.floor),
    "round_up": _each(np.ceil),
    "square_root": _square_root,
    "batch_growth": _batch_growth,
    "peers_median": _peers("median"),
    "peers_mean": _peers("mean"),
    "peers_max": _peers("max"),
    "peers_min": _peers("min"),
    "peers_spread": _peers("spread"),
    "peers_count": _peers_count,
    "gpus_mean": _gpus("mean"),
    "gpus_median": _gpus("median"),
    "gpus_max": _gpus("max"),
    "gpus_min": _gpus("min"),
    "gpus_count": _gpus_count,
    "gpus": _gpu_total,
    "nodes": _node_total,
    "job_age": _job_age,
    "tag": _tag,
    "events": _events(whole_job=False),
    "job_events": _events(whole_job=True),
}
