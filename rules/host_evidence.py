"""How strongly the host of a job points at each cause of waiting, each second, from 0 (not) to 1 (clearly)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpudiag.rules.smoothing import centred_mean
from gpudiag.storage.sample import Floats

JOB_METRICS = (
    "loader_cpu_ratio", "job_cpu_busy_ratio", "job_cpu_throttled_ratio", "job_pressure_cpu_some_ratio",
    "job_pressure_io_some_ratio", "loader_dstate_ratio", "main_cpu_ratio", "input_wait_ratio",
)  # fmt: skip
_NETWORK = ("infiniband_tx_bytes_per_second", "infiniband_rx_bytes_per_second", "network_tx_bytes_per_second")
NODE_METRICS = (
    "disk_read_await_seconds", "nfs_read_rtt_seconds", "pressure_io_some_ratio", "swap_in_bytes_per_second", *_NETWORK,
)  # fmt: skip
_SMOOTH_S = 30


@dataclass(frozen=True)
class HostEvidence:
    """Evidence [seconds] that GPUs of a node wait for CPUs, for storage, for the main process or for any input.

    `swap` is how strongly the node reads memory back from swap; `network` the bytes per second it exchanges.
    """

    cpu: Floats
    disk: Floats
    main: Floats
    input: Floats
    swap: Floats
    network: Floats


def host_evidence(job: Callable[[str], Floats], node: Callable[[str], Floats]) -> HostEvidence:
    """Read one node's evidence; `job` and `node` give series [seconds] of the job on the node, and of the node."""

    def smooth(series: Callable[[str], Floats], name: str) -> Floats:
        return centred_mean(series(name), _SMOOTH_S)

    workers = smooth(job, "loader_cpu_ratio")
    cpu = _strongest(
        _ramp(workers, 0.7, 0.95),
        _ramp(smooth(job, "job_cpu_busy_ratio"), 0.7, 0.95),
        _ramp(smooth(job, "job_cpu_throttled_ratio"), 0.05, 0.3),
        _ramp(smooth(job, "job_pressure_cpu_some_ratio"), 0.15, 0.5),
    )
    disk = _strongest(
        _ramp(smooth(job, "job_pressure_io_some_ratio"), 0.1, 0.4),
        _ramp(smooth(job, "loader_dstate_ratio"), 0.15, 0.5),
        _ramp(smooth(node, "disk_read_await_seconds"), 0.01, 0.05),
        _ramp(smooth(node, "nfs_read_rtt_seconds"), 0.01, 0.05),
        0.8 * _ramp(smooth(node, "pressure_io_some_ratio"), 0.15, 0.5),
    )
    main = _ramp(smooth(job, "main_cpu_ratio"), 0.85, 0.98) * (1 - np.nan_to_num(_ramp(workers, 0.5, 0.9)))
    waits = _ramp(smooth(job, "input_wait_ratio"), 0.05, 0.2)
    swap = _ramp(smooth(node, "swap_in_bytes_per_second"), 1e6, 2e7)
    return HostEvidence(cpu, disk, main, waits, swap, _network(node))


def _network(node: Callable[[str], Floats]) -> Floats:
    return sum((np.nan_to_num(centred_mean(node(name), _SMOOTH_S)) for name in _NETWORK), np.zeros(1))


def _ramp(values: Floats, none: float, full: float) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.clip((np.nan_to_num(values) - none) / (full - none), 0.0, 1.0)


def _strongest(*parts: Floats) -> Floats:
    best: Floats = np.maximum.reduce(parts)
    return best
