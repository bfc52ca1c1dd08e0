"""Evaluates checked expressions over a stretch of samples, for many evaluation times at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpudiag.rules import bulk_functions, kernels, row_functions, series_functions, value_functions
from gpudiag.rules.kernels import FALSE, TRUE, UNKNOWN, Ints, Trits
from gpudiag.rules.model import PHASES
from gpudiag.rules.node import Node
from gpudiag.rules.stretch import NO_PHASE, Codes, Stretch
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Floats

Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]  # numbers (float64) or conditions (int8), as the node says
Leaves = dict[tuple[str, ...], tuple[int, Values]]  # metrics by first second loaded
NOTHING = np.empty((0, 0))
MIN_SAMPLES = 10
ROWS_AT_ONCE = 2048
# payload of one PCIe lane in bytes/s: what large copies reach, about 80 % of the raw rate
LANE_BYTES_PER_SECOND = {1: 0.2e9, 2: 0.4e9, 3: 0.8e9, 4: 1.6e9, 5: 3.15e9, 6: 6.3e9}


@dataclass(frozen=True)
class Settings:
    """What the values of an expression depend on besides the expression: whose rows, which phases, when.

    `step` is the distance of evaluation times and `lag` how long before an evaluation its windows end, in seconds.
    """

    scope: str
    phases: tuple[str, ...]
    step: int
    lag: int
    coverage: float


class View:
    """Values of expressions under one `Settings`; what two rules have in common is computed once.

    `ends` [evaluations] are the indices in the stretch at which windows end. Arrays are [rows, seconds] or
    [rows, evaluations], with a single row for what all rows share.
    """

    def __init__(self, stretch: Stretch, settings: Settings, ends: Ints, leaves: Leaves) -> None:
        self.stretch = stretch
        self.settings = settings
        self.ends = ends
        self.rows = stretch.rows(settings.scope)
        self._leaves = leaves
        self._series: dict[str, tuple[int, int, Values]] = {}
        self._windows: dict[str, tuple[Values, Bools]] = {}
        self._gpus: View | None = None

    def gpus(self) -> View:
        """The same times seen from the GPUs."""
        if self.settings.scope == "gpu":
            return self
        if self._gpus is None:
            s = self.settings
            settings = Settings("gpu", s.phases, s.step, s.lag, s.coverage)
            self._gpus = View(self.stretch, settings, self.ends, self._leaves)
        return self._gpus

    def everywhere(self) -> Bools:
        """A mask that asks for every row and time."""
        return np.ones((len(self.rows), len(self.ends)), dtype=bool)

    # --- per evaluation -------------------------------------------------------------------------------

    def window(self, node: Node, need: Bools) -> Values:
        """Values of a `window` or `const` node [rows or 1, evaluations or 1], right where `need` is set."""
        if node.op in ("and", "or"):
            return self._logic(node, need)
        if node.op == "number":
            return np.full((1, 1), float(node.value))
        if node.op == "truth":
            return np.full((1, 1), TRUE if node.value else FALSE)
        if node.op == "device":
            return self._device(str(node.value))
        if node.op == "call":
            return self._call(node, need)
        return elementwise(node, [self.window(child, need) for child in node.children])

    def _logic(self, node: Node, need: Bools) -> Values:
        """Cheap terms first; dear ones only where they can still matter."""
        settled = FALSE if node.op == "and" else TRUE
        merge = np.minimum if node.op == "and" else np.maximum
        result: Values | None = None
        open_ = need
        for child in sorted(node.children, key=lambda child: child.cost):
            value = self.window(child, open_)
            result = value if result is None else merge(result, value)
            open_ = np.logical_and(open_, result != settled)
            if not open_.any():
                break
        assert result is not None
        return result

    def _call(self, node: Node, need: Bools) -> Values:
        name = str(node.value)
        if name in value_functions.PLAIN:
            return value_functions.PLAIN[name](self, node, need)
        if name in bulk_functions.BULK and not any(child.windowed for child in node.children):
            cached = self._windows.get(node.key)
            if cached is None:
                cached = bulk_functions.BULK[name](self, node), np.ones((1, 1), dtype=bool)
                self._windows[node.key] = cached
            return cached[0]
        return self._row_by_row(node, need)

    def _row_by_row(self, node: Node, need: Bools) -> Values:
        """A dear function, only for the rows and times asked for and not known yet."""
        if not self._own_rows(node):
            need = np.asarray(need.any(axis=0, keepdims=True), dtype=bool)
        values, done = self._windows.get(node.key) or (
            np.full(need.shape, np.nan),
            np.zeros(need.shape, dtype=bool),
        )
        rows, columns = np.nonzero(need & ~done)
        function = row_functions.ROWS[str(node.value)]
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            values[rows[part], columns[part]] = function(self, node, rows[part], columns[part])
        self._windows[node.key] = values, done | need
        return values

    def _own_rows(self, node: Node) -> bool:
        """Whether the rows differ: something in the expression belongs to a GPU."""
        return self.settings.scope == "gpu" and any(
            part.op == "device"
            or (part.op == "metric" and part.options["scope"] == "gpu")
            or (part.op == "call" and str(part.value).startswith(("peers_", "share_", "events")))
            for part in node
        )

    def at(self, values: Values, rows: Ints, columns: Ints) -> Values:
        """Pick (row, evaluation) pairs from something that may have one row or one column."""
        r = rows if values.shape[0] > 1 else np.zeros_like(rows)
        c = columns if values.shape[1] > 1 else np.zeros_like(columns)
        return values[r, c]

    def pair_values(self, node: Node, rows: Ints, columns: Ints) -> Values:
        """A window node at (row, evaluation) pairs."""
        need = np.zeros((len(self.rows), len(self.ends)), dtype=bool)
        need[rows if len(self.rows) > 1 else 0, columns] = True
        return self.at(self.window(node, need), rows, columns)

    def _device(self, name: str) -> Floats:
        if name == "link_peak":
            return self._link_peak()
        known = self.attribute(name)
        metric = {"memory_total": "memory_total_bytes", "power_limit": "power_limit_watts"}.get(name)
        if metric is None or not np.isnan(known).any():
            return known
        measured = bulk_functions.highest_known(self, metric, name)
        return np.where(np.isnan(known), measured, known)

    def kept(self, key: str, compute: Callable[[], Floats]) -> Floats:
        """What `compute` gives for all rows and evaluations, computed once."""
        if key not in self._windows:
            self._windows[key] = compute(), np.ones((1, 1), dtype=bool)
        return self._windows[key][0]

    def attribute(self, name: str) -> Floats:
        """A constant of each row's device, [rows, 1], NaN where unknown."""
        return np.array([[_attribute(self.stretch.devices.get(row), name)] for row in self.rows])

    def _link_peak(self) -> Floats:
        return self.kept("link peak", self._find_link_peak)

    def _find_link_peak(self) -> Floats:
        generation = bulk_functions.highest_known(self, "pcie_link_generation", "max_link_generation")
        width = bulk_functions.highest_known(self, "pcie_link_width", "max_link_width")
        lane = np.full(generation.shape, np.nan)
        for number, payload in LANE_BYTES_PER_SECOND.items():
            lane[generation == number] = payload
        return lane * width

    # --- per second -----------------------------------------------------------------------------------

    def series(self, node: Node, first: int, last: int) -> Values:
        """Values of a `series` node that depends on no window, seconds `first` to `last` of the stretch."""
        if node.shape != "series":
            return self.window(node, np.zeros((1, 1), dtype=bool))
        cached = self._series.get(node.key)
        if cached is not None and cached[0] <= first and last <= cached[1]:
            return cached[2][:, first - cached[0] : last - cached[0]]
        values = self._compute_series(node, first, last)
        if node.op != "metric":
            self._series[node.key] = first, last, values
        return values

    def _compute_series(self, node: Node, first: int, last: int) -> Values:
        if node.op == "metric":
            scope, metric = str(node.options["scope"]), str(node.value)
            return self.leaf(scope, metric, self.settings.phases, first, last)
        if node.op == "call":
            return series_functions.series_function(self, node, first, last)
        return elementwise(node, [self.series(child, first, last) for child in node.children])

    def leaf(self, scope: str, metric: str, phases: tuple[str, ...], first: int, last: int) -> Values:
        """A metric of every row in seconds `first` to `last`, unknown outside the phases."""
        key = (scope, metric, *phases)
        begin, values = self._leaves.get(key, (self.stretch.seconds + 1, NOTHING))
        if first < begin:
            begin = first if self.stretch.partial else 0
            if phases:
                inside = self.in_phases(phases)[:, begin:]
                whole = self.leaf(scope, metric, (), begin, self.stretch.seconds)
                values = np.where(inside, whole, np.nan)
            else:
                sources = self.stretch.rows(scope)
                values = np.stack([self.stretch.column(source, metric, begin) for source in sources])
            self._leaves[key] = begin, values
        return values[:, first - begin : last - begin]

    def sampled(self, scope: str, metric: str, over: int) -> Bools:
        """Whether the metric has a sample, in whatever phase, in the `over` seconds before each end."""
        key = f"sampled {scope} {metric} {over}"
        if key not in self._windows:
            count = bulk_functions.count_known(self, scope, metric, over)
            rows = scope == self.settings.scope or len(count) == 1
            any_row = count if rows else count.max(axis=0, keepdims=True)
            self._windows[key] = any_row > 0, np.ones((1, 1), dtype=bool)
        return self._windows[key][0]

    def in_phases(self, phases: tuple[str, ...]) -> Bools:
        """Seconds in one of these phases, [1, seconds]."""
        key = ("phases", *phases)
        if key not in self._leaves:
            codes = [PHASES.index(phase) for phase in phases]
            self._leaves[key] = 0, np.isin(self.stretch.phases, codes)[None, :]
        return self._leaves[key][1]

    def seconds_in_phases(self, over: int) -> Floats:
        """Seconds of each window in the phases of the settings, [evaluations]."""
        key = f"seconds in phases {over}"
        if key not in self._windows:
            seconds = bulk_functions.count_seconds(self, self.in_phases(self.settings.phases), over)
            self._windows[key] = seconds, np.ones((1, 1), dtype=bool)
        counted: Floats = self._windows[key][0][0]
        return counted

    def phase_condition(self, phases: tuple[str, ...]) -> Trits:
        """The same as a condition: unknown where there is no label."""
        codes: Codes = self.stretch.phases
        known = np.where(self.in_phases(phases)[0], TRUE, FALSE)
        return np.where(codes == NO_PHASE, UNKNOWN, known)[None, :]

    def matrix(self, node: Node, rows: Ints, columns: Ints, before: int, width: int) -> Values:
        """A series in the windows of (row, evaluation) pairs: `width` seconds from `before` ahead of each end."""
        if not node.windowed:
            return self._gather(node, rows, columns, before, width)
        if node.op == "call":
            return series_functions.matrix_function(self, node, rows, columns, before, width)
        return elementwise(
            node, [self._operand(child, rows, columns, before, width) for child in node.children]
        )

    def _operand(self, node: Node, rows: Ints, columns: Ints, before: int, width: int) -> Values:
        if node.shape == "series":
            return self.matrix(node, rows, columns, before, width)
        return self.pair_values(node, rows, columns)[:, None]

    def _gather(self, node: Node, rows: Ints, columns: Ints, before: int, width: int) -> Values:
        starts = self.ends[columns] - before
        low, high = int(starts.min()), int(starts.max()) + width
        values = self.series(node, low, high)
        own = rows if values.shape[0] > 1 else np.zeros_like(rows)
        return kernels.rows_at(values, own, starts - low, width)

    def required(self, over: int) -> int:
        """How many seconds of a window must be known before anything is said about it."""
        return max(min(MIN_SAMPLES, over), math.ceil(self.settings.coverage * over))


def elementwise(node: Node, operands: list[Values]) -> Values:
    """An operator applied value by value."""
    op = node.op
    if op == "not":
        return TRUE - operands[0]
    if op == "negative":
        return -operands[0]
    if op in ("and", "or"):
        merge = np.minimum if op == "and" else np.maximum
        result = operands[0]
        for operand in operands[1:]:
            result = merge(result, operand)
        return result
    left, right = operands
    if op in ("<", "<=", ">", ">=", "==", "!="):
        return kernels.compare(op, left, right)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if op == "/":
            quotient = left / right
            return np.where(right == 0, np.nan, quotient)
        combined: Values = {"+": np.add, "-": np.subtract, "*": np.multiply}[op](left, right)
    return combined


def _attribute(device: Device | None, name: str) -> float:
    field = {
        "memory_total": "memory_total_bytes",
        "power_limit": "power_limit_watts",
        "max_clock": "max_sm_clock_hertz",
        "max_link_generation": "max_pcie_link_generation",
        "max_link_width": "max_pcie_link_width",
        "nvlink_count": "nvlink_count",
    }[name]
    value = getattr(device, field) if device else None
    return float("nan") if value is None else float(value)
