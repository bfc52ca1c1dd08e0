"""Three detectors in common use, on the same samples: seconds of the job at which each would have alarmed.

`utilisation`: mean GPU utilisation of ten minutes below 30 %, the low band of several tools. `one_sample`: a class
decided from one refresh, looked at once a minute, in the manner of terminal monitors: waiting for input when
SM activity is below 30 % with PCIe traffic over 1 GB/s, idle when it is below 5 %. `least_squares`: a straight line
through five minutes of used memory that reaches the limit within half an hour.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from bench.scenarios.build import Recording

from gpudiag.storage.sample import Block

Floats = npt.NDArray[np.float64]

NAMES = ("utilisation", "one_sample", "least_squares")
_LEAST_AGE_S = 300


def alarms(recording: Recording) -> dict[str, tuple[float, ...]]:
    """Per baseline the seconds at which an alarm began, over all GPUs."""
    found: dict[str, set[float]] = {name: set() for name in NAMES}
    for source, device in recording.devices.items():
        block = recording.blocks[source]
        found["utilisation"] |= _begins(_utilisation(block), 60)
        found["one_sample"] |= _begins(_one_sample(block), 60)
        found["least_squares"] |= _begins(_least_squares(block, float(device.memory_total_bytes or 0)), 30)
    return {name: tuple(sorted(times)) for name, times in found.items()}


def _begins(on: npt.NDArray[np.bool_], step: int) -> set[float]:
    edges = np.flatnonzero(on & ~np.concatenate(([False], on[:-1])))
    return {float(edge * step) for edge in edges if edge * step >= _LEAST_AGE_S}


def _column(block: Block, name: str) -> Floats:
    return np.nan_to_num(block.columns.get(name, np.full(len(block), np.nan)))


def _utilisation(block: Block) -> npt.NDArray[np.bool_]:
    name = "gpu_util_ratio" if "gpu_util_ratio" in block.columns else "graphics_active_ratio"
    totals = np.concatenate(([0.0], np.cumsum(_column(block, name))))
    ends = np.arange(60, len(totals), 60)
    starts = np.maximum(ends - 600, 0)
    return np.asarray((totals[ends] - totals[starts]) / (ends - starts) < 0.30)


def _one_sample(block: Block) -> npt.NDArray[np.bool_]:
    name = "sm_active_ratio" if "sm_active_ratio" in block.columns else "gpu_util_ratio"
    active, received = _column(block, name)[::60], _column(block, "pcie_rx_bytes_per_second")[::60]
    return np.asarray(((active < 0.30) & (received > 1e9)) | (active < 0.05))


def _least_squares(block: Block, total: float) -> npt.NDArray[np.bool_]:
    used = _column(block, "memory_used_bytes")
    ends = np.arange(300, len(used), 30)
    out = np.zeros(len(ends) + 10, bool)
    t = np.arange(300) - 149.5
    for number, end in enumerate(ends):
        slope = float((t * used[end - 300 : end]).sum() / (t * t).sum())
        if slope > 0 and (total - used[end - 1]) / slope < 1800:
            out[number + 10] = True
    return out
