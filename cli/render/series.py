"""Series of a job for its charts: read source by source and thinned so that every bucket keeps its extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpudiag.cli.progress import progress
from gpudiag.rules.model import Diagnosis
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.sample import JOB_PREFIX, NODE, Block, Floats, Source
from gpudiag.storage.store import Reader

GPU_CHARTS = (
    "sm_active_ratio",
    "gpu_util_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_hertz",
    "pcie_rx_bytes_per_second",
    "nvlink_rx_bytes_per_second",
)
NODE_CHARTS = (
    "cpu_busy_ratio",
    "memory_available_bytes",
    "pressure_io_some_ratio",
    "disk_read_bytes_per_second",
)
JOB_CHARTS = (
    "loader_cpu_ratio",
    "main_cpu_ratio",
    "job_memory_working_set_bytes",
    "job_write_bytes_per_second",
)
STRIPS = (
    "sm_active_ratio",
    "gpu_util_ratio",
    "memory_used_bytes",
    "temperature_celsius",
    "tensor_active_ratio",
)
_ENVELOPE_BUCKETS = 2000
_STRIP_BUCKETS = 2000
_STRIP_CELLS = 800_000  # over all strips; three 16-bit numbers each


@dataclass(frozen=True)
class Thinned:
    """Smallest, mean and largest value per bucket of time, NaN where nothing was measured; arrays [..., buckets]."""

    low: Floats
    mean: Floats
    high: Floats


@dataclass(frozen=True)
class Chart:
    """A metric over the job: its envelope over all sources and, for some, one strip per GPU ([GPUs, buckets])."""

    scope: str
    metric: str
    unit: str
    envelope: Thinned
    strips: Thinned | None = None


@dataclass(frozen=True)
class Charts:
    """Everything a chart page draws, on one time axis of UNIX milliseconds."""

    start_ms: int
    end_ms: int
    charts: tuple[Chart, ...] = field(default=())


def read_charts(reader: Reader, diagnosis: Diagnosis, label: str = "reading") -> Charts:
    """Read what the charts need, one source in memory at a time. Raises StoreError."""
    gpus = [report.source for report in diagnosis.devices]
    strips = STRIPS if len(gpus) <= 64 else STRIPS[:3]
    buckets = max(min(_STRIP_BUCKETS, _STRIP_CELLS // max(len(gpus) * len(strips), 1)), 100)
    window = (diagnosis.start_ms, max(diagnosis.end_ms, diagnosis.start_ms + 1))
    nodes = [Source(node, NODE) for node in diagnosis.nodes]
    jobs = [Source(node, JOB_PREFIX + diagnosis.job.key) for node in diagnosis.nodes]
    groups = (
        _Group("gpu", gpus, GPU_CHARTS, window, strips, buckets),
        _Group("job", jobs, JOB_CHARTS, window),
        _Group("node", nodes, NODE_CHARTS, window),
    )
    work = [(group, row, source) for group in groups for row, source in enumerate(group.sources)]
    for group, row, source in progress(work, len(work), label):
        group.add(row, reader.read(source, *window, group.metrics))
    return Charts(*window, tuple(chart for group in groups for chart in group.charts()))


def thin(times_ms: npt.NDArray[np.int64], values: Floats, window: tuple[int, int], buckets: int) -> Thinned:
    """Extremes and mean per bucket of the half-open window; times ascend, values may be NaN."""
    present = ~np.isnan(values) & (times_ms >= window[0]) & (times_ms < window[1])
    low, mean, high = (np.full(buckets, np.nan) for _ in range(3))
    if not present.any():
        return Thinned(low, mean, high)
    slot = (times_ms[present] - window[0]) * buckets // (window[1] - window[0])
    filled, first, count = np.unique(slot, return_index=True, return_counts=True)
    kept = values[present]
    low[filled] = np.minimum.reduceat(kept, first)
    high[filled] = np.maximum.reduceat(kept, first)
    mean[filled] = np.add.reduceat(kept, first) / count
    return Thinned(low, mean, high)


class _Group:
    """Sources of one scope: folds each into the envelopes and keeps its strips."""

    def __init__(
        self,
        scope: str,
        sources: Sequence[Source],
        metrics: Sequence[str],
        window: tuple[int, int],
        strips: Sequence[str] = (),
        buckets: int = 1,
    ) -> None:
        self.scope = scope
        self.sources = sources
        self.metrics = tuple(metrics)
        self._window = window
        self._buckets = buckets
        self._folds: dict[str, _Fold] = {}
        self._strips = {name: np.full((3, len(sources), buckets), np.nan) for name in strips}

    def add(self, row: int, block: Block) -> None:
        for metric, values in block.columns.items():
            fold = self._folds.setdefault(metric, _Fold())
            fold.add(thin(block.times_ms, values, self._window, _ENVELOPE_BUCKETS))
            if metric in self._strips:
                strip = thin(block.times_ms, values, self._window, self._buckets)
                self._strips[metric][:, row] = (strip.low, strip.mean, strip.high)

    def charts(self) -> list[Chart]:
        """Charts of the metrics that were measured, in their order."""
        found = []
        for metric in self.metrics:
            fold = self._folds.get(metric)
            if fold is None or np.isnan(fold.low).all():
                continue
            strips = self._strips.get(metric)
            found.append(
                Chart(
                    self.scope,
                    metric,
                    METRICS[(self.scope, metric)].unit,  # type: ignore[index]
                    fold.envelope(),
                    None if strips is None else Thinned(*strips),
                )
            )
        return found


class _Fold:
    """The envelope over several sources, built one source at a time."""

    def __init__(self) -> None:
        self.low = np.full(_ENVELOPE_BUCKETS, np.nan)
        self.high = np.full(_ENVELOPE_BUCKETS, np.nan)
        self._sum = np.zeros(_ENVELOPE_BUCKETS)
        self._count = np.zeros(_ENVELOPE_BUCKETS)

    def add(self, series: Thinned) -> None:
        self.low = np.fmin(self.low, series.low)
        self.high = np.fmax(self.high, series.high)
        present = ~np.isnan(series.mean)
        self._sum[present] += series.mean[present]
        self._count[present] += 1

    def envelope(self) -> Thinned:
        mean = np.full(_ENVELOPE_BUCKETS, np.nan)
        np.divide(self._sum, self._count, out=mean, where=self._count > 0)
        return Thinned(self.low, mean, self.high)
