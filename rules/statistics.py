"""Figures of one device over what was measured of it: distributions, a sparkline, the longest idle stretch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpudiag.rules.model import DeviceReport, Interval, Statistics
from gpudiag.rules.phase_machine import IDLE
from gpudiag.rules.samples import JobSamples
from gpudiag.storage.catalog import GPU_METRICS
from gpudiag.storage.sample import Floats, Source

SLICES = 120
SHORTEST_IDLE_S = 60
GAUGES = tuple(metric.name for metric in GPU_METRICS if metric.kind == "gauge")


def describe(samples: JobSamples, source: Source, headline: str, coverage: float) -> DeviceReport:
    """The device's row in the report."""
    statistics = _statistics(samples, source)
    active = samples.series(source, headline) if headline else np.full(samples.seconds, np.nan)
    return DeviceReport(
        source=source,
        device=samples.devices.get(source),
        coverage=coverage,
        statistics=statistics,
        origins={name: origin for name in statistics if (origin := samples.origin(source, name))},
        headline=headline,
        timeline=timeline(active),
        longest_idle=longest_idle(active, samples.start_ms),
    )


def _statistics(samples: JobSamples, source: Source) -> Mapping[str, Statistics]:
    found = {name: statistics_of(samples.series(source, name)) for name in GAUGES}
    return {name: figures for name, figures in found.items() if figures}


def statistics_of(values: Floats) -> Statistics | None:
    """Mean, extremes and quantiles of the measured seconds; `None` when there are none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    lowest, highest = float(known.min()), float(known.max())
    if lowest == highest:  # many metrics never change
        return Statistics(float(known.mean()), lowest, lowest, lowest, lowest, highest)
    at = [int(q * (len(known) - 1)) for q in (0.1, 0.5, 0.9)]
    known.partition(at)
    p10, p50, p90 = (float(known[i]) for i in at)
    return Statistics(float(known.mean()), lowest, p10, p50, p90, highest)


def timeline(values: Floats) -> tuple[float, ...]:
    """Mean per equal slice of the job, NaN where nothing was measured."""
    if not len(values):
        return ()
    edges = np.linspace(0, len(values), min(SLICES, len(values)) + 1).astype(int)[:-1]
    seen = ~np.isnan(values)
    counts = np.add.reduceat(seen.astype(float), edges)
    totals = np.add.reduceat(np.where(seen, values, 0.0), edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = np.where(counts > 0, totals / counts, np.nan)
    return tuple(means.tolist())


def longest_idle(active: Floats, start_ms: int) -> Interval | None:
    """The longest stretch without activity of at least a minute; a gap in the samples ends a stretch."""
    with np.errstate(invalid="ignore"):
        idle = active < IDLE
    edges = np.flatnonzero(np.diff(np.concatenate(([0], idle.view(np.int8), [0]))))
    lengths = edges[1::2] - edges[::2]
    if not len(lengths) or lengths.max() < SHORTEST_IDLE_S:
        return None
    longest = int(lengths.argmax())
    first, last = (start_ms + int(edges[2 * longest + side]) * 1000 for side in (0, 1))
    return Interval(first, last)
