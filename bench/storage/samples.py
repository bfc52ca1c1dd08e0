"""A day of eight GPUs, made up but with the statistics of sensors: the same samples for every store.

An hour idle, 22 hours of training with a checkpoint each 20 minutes and 80 input stalls, an hour idle. Ratios have
six noisy decimals as DCGM gives them, throughputs are noisy whole bytes, half of the columns hardly move. 0.7 % of the
samples and 0.3 % of the single values are missing; timestamps jitter by a few milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import numpy as np
import numpy.typing as npt

from gpudiag.storage.sample import Frame, Source

NODE = "node1"
GPUS = 8
_MIB2 = 2.0**21

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GpuDay:
    """One GPU's samples: `times_ms` [n], `columns[name]` [n], NaN where missing."""

    source: Source
    times_ms: npt.NDArray[np.int64]
    columns: dict[str, Floats]

    @property
    def values(self) -> int:
        """Number of values that are there."""
        return sum(int(np.count_nonzero(~np.isnan(column))) for column in self.columns.values())

    def frames(self, start_ms: int, end_ms: int) -> list[Frame]:
        """As a collector gives them."""
        low, high = np.searchsorted(self.times_ms, (start_ms, end_ms))
        names = list(self.columns)
        rows = zip(*(column[low:high].tolist() for column in self.columns.values()), strict=True)
        origins = {"sm_active_ratio": "dcgm"}
        return [
            Frame(
                self.source, time_ms, {n: v for n, v in zip(names, row, strict=True) if not isnan(v)}, origins
            )
            for time_ms, row in zip(self.times_ms[low:high].tolist(), rows, strict=True)
        ]


def days(start_ms: int, seconds: int = 86_400, seed: int = 0) -> list[GpuDay]:
    """The samples of all GPUs."""
    rng = np.random.default_rng(seed)
    busy = _busy(rng, seconds)
    return [
        _gpu(np.random.default_rng([seed, index]), index, start_ms, seconds, busy) for index in range(GPUS)
    ]


def _busy(rng: np.random.Generator, seconds: int) -> Floats:
    """How hard the job works, 0..1, per second: the same for all GPUs of the job."""
    busy = np.ones(seconds)
    busy[: seconds // 24] = busy[-seconds // 24 :] = 0.0
    for start in range(seconds // 24, seconds - seconds // 24, 1200):
        busy[start : start + 25] = 0.03
    for start in rng.integers(seconds // 24, seconds - seconds // 24, 80):
        busy[start : start + int(rng.integers(5, 40))] = 0.1
    return busy


def _gpu(rng: np.random.Generator, index: int, start_ms: int, seconds: int, busy: Floats) -> GpuDay:
    work = busy * (1 - 0.01 * index)

    def ratio(level: float, noise: float) -> Floats:
        values = np.where(work > 0, work * level + rng.normal(0, noise, seconds), 0.0)
        return np.round(np.clip(values, 0, 1), 6)

    def rate(level: float) -> Floats:
        return np.rint(
            np.abs(work * level * (1 + rng.normal(0, 0.25, seconds)) + rng.exponential(2e4, seconds))
        )

    milliwatts = np.rint(90_000 + 560_000 * work + rng.normal(0, 1, seconds) * (1500 + 20_000 * work))
    warm = _smooth(work, 120)
    constant = np.ones(seconds)
    columns = {
        "sm_active_ratio": ratio(0.9, 0.03), "sm_occupancy_ratio": ratio(0.45, 0.02),
        "tensor_active_ratio": ratio(0.5, 0.03), "dram_active_ratio": ratio(0.55, 0.03),
        "graphics_active_ratio": ratio(0.97, 0.01), "fp64_active_ratio": 0 * constant,
        "fp32_active_ratio": ratio(0.1, 0.01), "fp16_active_ratio": ratio(0.05, 0.005),
        "gpu_util_ratio": np.rint(100 * np.clip(work * 0.98 + rng.normal(0, 0.01, seconds), 0, 1)) / 100,
        "memory_util_ratio": np.rint(100 * np.clip(work * 0.5 + rng.normal(0, 0.02, seconds), 0, 1)) / 100,
        "memory_used_bytes": np.where(work > 0, 36_000, 250) * _MIB2 + _steps(rng, seconds) * _MIB2,
        "memory_reserved_bytes": 640 * 2.0**20 * constant, "memory_total_bytes": 80 * 2.0**30 * constant,
        "pcie_rx_bytes_per_second": rate(6e9), "pcie_tx_bytes_per_second": rate(3e9),
        "nvlink_rx_bytes_per_second": rate(1.3e11), "nvlink_tx_bytes_per_second": rate(1.3e11),
        "power_watts": milliwatts / 1000, "power_limit_watts": 700.0 * constant,
        "energy_joules_total": (5e12 + np.cumsum(milliwatts)) / 1000,
        "temperature_celsius": np.rint(34 + 30 * warm + index + rng.normal(0, 0.35, seconds)),
        "memory_temperature_celsius": np.rint(40 + 38 * warm + index + rng.normal(0, 0.35, seconds)),
        "sm_clock_hertz": 1e6 * (1980 - 15 * rng.binomial(3, 0.03, seconds)),
        "memory_clock_hertz": 2.619e9 * constant,
        "clock_event_reasons": np.where(work > 0, np.where(milliwatts > 690_000, 4.0, 0.0), 1.0),
        "pcie_link_generation": np.where(work > 0, 5.0, 1.0), "pcie_link_width": 16.0 * constant,
        "pcie_replays_total": 3.0 * constant, "ecc_corrected_total": 0 * constant, "processes": np.ceil(work),
    }  # fmt: skip
    times = start_ms + 1000 * np.arange(seconds) + rng.integers(0, 5, seconds)
    kept = rng.random(seconds) >= 0.007
    for column in columns.values():
        column[rng.random(seconds) < 0.003] = np.nan
    source = Source(NODE, f"GPU-{index:08x}-0000-0000-0000-000000000000")
    return GpuDay(source, times[kept], {name: column[kept] for name, column in columns.items()})


def _smooth(values: Floats, seconds: float) -> Floats:
    """First-order lag, as heat follows work: an exponential kernel of the given time constant."""
    length = int(8 * seconds)
    kernel = np.exp(-np.arange(length) / seconds)
    padded = np.concatenate([np.full(length, values[0]), values])
    size = 1 << (len(padded) + length).bit_length()
    spectrum = np.fft.rfft(padded, size) * np.fft.rfft(kernel / kernel.sum(), size)
    smooth: Floats = np.fft.irfft(spectrum, size)[length : length + len(values)]
    return smooth


def _steps(rng: np.random.Generator, seconds: int) -> Floats:
    """A staircase that moves a few times an hour."""
    moves = np.where(rng.random(seconds) < 0.001, rng.integers(-3, 5, seconds), 0)
    return np.abs(np.cumsum(moves)).astype(np.float64)
