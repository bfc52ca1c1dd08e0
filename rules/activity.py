"""What a job as a whole was doing each second, folded over its devices one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpudiag.storage.sample import Floats

HEADLINES = ("sm_active_ratio", "graphics_active_ratio", "gpu_util_ratio")

GPU_FIELDS: dict[str, str] = {
    "tensor_active_ratio": "mean",
    "dram_active_ratio": "mean",
    "memory_util_ratio": "mean",
    "gpu_util_ratio": "max",
    "nvlink_tx_bytes_per_second": "sum",
    "pcie_tx_bytes_per_second": "max",
    "pcie_rx_bytes_per_second": "max",
    "processes": "max",
    "torch_allocated_bytes": "max",
}
HOST_FIELDS: dict[str, tuple[str, str]] = {
    "job_write_bytes_per_second": ("job", "sum"),
    "job_read_bytes_per_second": ("job", "sum"),
    "job_processes": ("job", "sum"),
    "main_cpu_ratio": ("job", "max"),
    "job_cpu_busy_ratio": ("job", "max"),
    "loader_dstate_ratio": ("job", "max"),
    "loader_workers": ("job", "max"),
    "steps_per_second": ("job", "max"),
    "step_seconds": ("job", "max"),
    "disk_write_bytes_per_second": ("node", "sum"),
    "disk_read_bytes_per_second": ("node", "sum"),
    "network_rx_bytes_per_second": ("node", "sum"),
}
_FOLDS: dict[str, str] = {
    "active": "mean", "peak": "max", "low": "min", "measured": "sum", "memory_ratio": "mean",
    **GPU_FIELDS, **{field: how for field, (_, how) in HOST_FIELDS.items()},
}  # fmt: skip
FIELDS = tuple(_FOLDS)


@dataclass(frozen=True)
class Activity:
    """Per second of the job: `values[field]` [n] over all its devices and nodes, NaN where nothing was measured.

    `active`, `peak`, `low` are mean, highest and lowest headline (SM activity, else engine activity, else
    utilisation) of the devices; `measured` counts them; `memory_ratio` is the mean memory in use. The other
    fields are metrics of the catalog, folded as `GPU_FIELDS` and `HOST_FIELDS` say.
    """

    start_ms: int
    values: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.values["active"])

    def __getitem__(self, field: str) -> Floats:
        return self.values[field]

    def between(self, first: int, last: int) -> Activity:
        """Seconds `first` to `last` (exclusive)."""
        return Activity(self.start_ms + first * 1000, {k: v[first:last] for k, v in self.values.items()})

    def then(self, later: Activity) -> Activity:
        """This stretch followed by `later`, which must start where this one ends."""
        joined = {k: np.concatenate([v, later.values[k]]) for k, v in self.values.items()}
        return Activity(self.start_ms, joined)


class ActivityFold:
    """Gathers an `Activity` of `seconds` seconds; memory does not depend on the number of devices."""

    def __init__(self, start_ms: int, seconds: int) -> None:
        self._start_ms = start_ms
        self._seconds = seconds
        self._totals: dict[str, Floats] = {}  # of the fields that were measured
        self._counts: dict[str, Floats] = {}

    def add_device(self, series: Callable[[str], Floats], memory_total_bytes: float | None) -> None:
        """Fold in one device; `series(metric)` is [seconds], NaN where missing or not allocated."""
        active = headline_by_second(series)
        for field in ("active", "peak", "low"):
            self._fold(field, active)
        self._fold("measured", np.where(np.isnan(active), np.nan, 1.0))
        self._fold("memory_ratio", _memory_ratio(series, memory_total_bytes))
        for field in GPU_FIELDS:
            self._fold(field, series(field))

    def add_host(self, scope: str, series: Callable[[str], Floats]) -> None:
        """Fold in the series of one node (`scope` "node") or of the job on one node ("job")."""
        for field, (wanted, _) in HOST_FIELDS.items():
            if wanted == scope:
                self._fold(field, series(field))

    def add(self, other: ActivityFold) -> None:
        """Fold in what was gathered elsewhere of other devices in the same seconds."""
        for field, total in other._totals.items():
            self._add(field, total, other._counts.get(field))

    def result(self) -> Activity:
        """The activity of everything added so far."""
        values = dict.fromkeys(FIELDS, np.full(self._seconds, np.nan)) | self._totals
        for field, counts in self._counts.items():
            values[field] = values[field] / np.maximum(counts, 1)
        return Activity(self._start_ms, values)

    def _fold(self, field: str, values: Floats) -> None:
        seen = ~np.isnan(values)
        if seen.any():
            self._add(field, values, seen if _FOLDS[field] == "mean" else None)

    def _add(self, field: str, values: Floats, counts: Floats | npt.NDArray[np.bool_] | None) -> None:
        total, how = self._totals.get(field), _FOLDS[field]
        if total is None:
            self._totals[field] = values.copy()
            if counts is not None:
                self._counts[field] = counts.astype(np.float64)
            return
        if how in ("max", "min"):
            (np.fmax if how == "max" else np.fmin)(total, values, out=total)
            return
        total[:] = np.where(np.isnan(total), values, total + np.where(np.isnan(values), 0.0, values))
        if counts is not None:
            self._counts[field] += counts


def headline_by_second(series: Callable[[str], Floats]) -> Floats:
    """The best activity signal of each second, [seconds]: for telling phases apart, not for means."""
    best = series(HEADLINES[0])
    for name in HEADLINES[1:]:
        if not np.isnan(best).any():
            break
        best = np.where(np.isnan(best), series(name), best)
    return best


def headline_of(present: Sequence[str]) -> str:
    """The device's one headline metric among those it has, `""` when it has none."""
    return next((name for name in HEADLINES if name in present), "")


def _memory_ratio(series: Callable[[str], Floats], total_bytes: float | None) -> Floats:
    used = series("memory_used_bytes")
    if not total_bytes:
        total = series("memory_total_bytes")
        return used / np.where(total > 0, total, np.nan)
    return used / total_bytes
