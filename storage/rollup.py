"""Per-minute rows of the headline metrics: what SQL tools and Grafana read, kept long after the chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpudiag.storage.layout import Column
from gpudiag.storage.piece import Piece
from gpudiag.storage.sample import Floats, Millis
from gpudiag.storage.schema import MINUTE_MS

HEADLINES = {
    "gpu": frozenset({
        "sm_active_ratio", "gpu_util_ratio", "tensor_active_ratio", "memory_used_bytes", "power_watts",
        "temperature_celsius",
    }),
    "node": frozenset({"cpu_busy_ratio", "cpu_iowait_ratio", "memory_available_bytes", "pressure_io_some_ratio"}),
    "job": frozenset({"job_cpu_busy_ratio", "job_memory_working_set_bytes", "loader_cpu_ratio"}),
}  # fmt: skip

Minute = tuple[int, float, float, float, int]  # UNIX minute, mean, min, max, count


def headlines(piece: Piece) -> Iterator[tuple[Column, list[Minute]]]:
    """The rows of each headline column of a sorted piece; minutes without a value have no row."""
    wanted = HEADLINES[piece.source.scope]
    for column, values in zip(piece.layout.columns, piece.columns, strict=True):
        if column[0] in wanted:
            minutes = per_minute(piece.times, values)
            if minutes:
                yield column, minutes


def per_minute(times_ms: Millis, values: Floats) -> list[Minute]:
    """Mean, minimum, maximum and count of what was measured in each minute, in the metric's unit."""
    measured = ~np.isnan(values)
    minutes, values = times_ms[measured] // MINUTE_MS, values[measured]
    if not len(values):
        return []
    starts = np.flatnonzero(np.diff(minutes, prepend=minutes[0] - 1))
    counts = np.diff(starts, append=len(values))
    means = np.add.reduceat(values, starts) / counts
    columns = (
        minutes[starts],
        means,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
        counts,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))
