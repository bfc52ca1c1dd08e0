"""Where one device's time went, second by second: useful work, and at most one cause for what is missing.

All arrays are [seconds] on the job's 1-second grid. Method, start values and limits: `docs/waterfall.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpudiag.rules.host_evidence import HostEvidence
from gpudiag.rules.model import CAUSES
from gpudiag.rules.peers import PeerFold
from gpudiag.rules.smoothing import centred_mean, near
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Floats

Mask = npt.NDArray[np.bool_]
Causes = npt.NDArray[np.int8]
Series = Callable[[str], Floats]

CAUSE = {name: code for code, name in enumerate(CAUSES)}
LINK_BYTES = {1: 0.2e9, 2: 0.4e9, 3: 0.8e9, 4: 1.6e9, 5: 3.2e9, 6: 6.4e9}
SPIN_LEVEL = 0.1
_TRAFFIC_S = 600
_DEAD_ZONE = 0.05
_HEAT, _BRAKE, _POWER_CAP = 0x20 | 0x40, 0x80 | 0x08, 0x04
METRICS = (
    "sm_active_ratio", "graphics_active_ratio", "gpu_util_ratio", "tensor_active_ratio", "sm_clock_hertz",
    "clock_event_reasons", "memory_used_bytes", "memory_total_bytes", "memory_util_ratio", "pcie_rx_bytes_per_second",
    "nvlink_tx_bytes_per_second", "pcie_tx_bytes_per_second", "torch_alloc_retries_total", "pcie_link_generation", "pcie_link_width",
)  # fmt: skip


@dataclass(frozen=True)
class Signals:
    """What the waterfall needs of one device: `active` its one headline, `kernels` the share of each second
    in which any kernel ran (NaN when the headline cannot be told apart from it), `clock_loss` 0..1, `clock` while busy."""

    active: Floats
    kernels: Floats
    clock_loss: Floats
    work: Floats
    clock: Floats
    level: float
    series: Series
    device: Device | None


@dataclass(frozen=True)
class Shortfall:
    """One device's seconds: `cause` (index into `CAUSES`) of the part `share` (0..1) that was not useful."""

    cause: Causes
    share: Floats


def signals(series: Series, headline: str, training: Mask, device: Device | None) -> Signals:
    """Derive a device's signals; `training` marks the seconds whose level counts."""
    active = series(headline) if headline else np.full(len(training), np.nan)
    kernels = _kernels(series, headline)
    loss = clock_loss(series, active, training, device)
    with np.errstate(invalid="ignore", divide="ignore"):
        dense = np.where(kernels > 0.3, active / kernels, np.nan) if headline == "sm_active_ratio" else active
    level = _level(np.where(training, dense, np.nan))
    work = _work(series, headline, active, training)
    clock = np.where(training & (np.nan_to_num(active) > 0.2), series("sm_clock_hertz"), np.nan)
    return Signals(active, kernels, loss, np.where(training, work, np.nan), clock, level, series, device)


def _work(series: Series, headline: str, active: Floats, training: Mask) -> Floats:
    """What tells work from waiting in a collective, whose kernels keep SMs and utilisation up."""
    name = "tensor_active_ratio" if headline != "gpu_util_ratio" else "memory_util_ratio"
    better = series(name)
    return better if _level(np.where(training, better, np.nan)) > 0.05 else active


def _kernels(series: Series, headline: str) -> Floats:
    """The engine's activity as the share of time with a kernel; utilisation only says whether there was any."""
    if headline != "sm_active_ratio":
        return np.full(len(series("sm_active_ratio")), np.nan)
    engine = series("graphics_active_ratio")
    return engine if not np.isnan(engine).all() else series("gpu_util_ratio")


def _level(values: Floats) -> float:
    """What the device reaches when nothing holds it up: high in its upper cluster; 0 when unknown."""
    known = values[~np.isnan(values)]
    if not len(known):
        return 0.0
    top = np.quantile(known, 0.8)
    return float(np.quantile(known[known >= 0.8 * top], 0.85))


def clock_loss(series: Series, active: Floats, training: Mask, device: Device | None) -> Floats:
    """Share of busy time lost to clocks lowered for heat, brake or a cut power limit, [seconds].

    Against the device's own unhindered clock. The power cap counts only below 85 % of the maximum clock: a
    saturated device at its cap is healthy.
    """
    clock, reasons = series("sm_clock_hertz"), series("clock_event_reasons")
    if np.isnan(clock).all() or np.isnan(reasons).all():
        return np.zeros(len(active))
    bits = np.nan_to_num(reasons).astype(np.int64)
    forced = (bits & (_HEAT | _BRAKE)) != 0
    capped = ~forced & ((bits & _POWER_CAP) != 0)
    busy = training & (np.nan_to_num(active) > 0.2)
    free = clock[busy & ~forced & ~capped & ~np.isnan(clock)]
    maximum = device.max_sm_clock_hertz if device and device.max_sm_clock_hertz else 0.0
    reference = float(np.median(free)) if len(free) >= 60 else 0.95 * (maximum or float(np.nanmax(clock)))
    with np.errstate(invalid="ignore"):
        loss = np.clip(1 - clock / reference, 0.0, 1.0) if reference else np.zeros(len(clock))
        capped &= clock < 0.85 * maximum
    return np.where(busy & (forced | capped), np.nan_to_num(loss), 0.0)


def shortfall(gpu: Signals, training: Mask, host: HostEvidence, peers: PeerFold) -> Shortfall:
    """What is missing in each training second, and its one cause."""
    missing, gap = _missing(gpu, training)
    own_loss = np.where(training, np.maximum(gpu.clock_loss, peers.unexplained(gpu.clock)), 0.0)
    waits = _waits(gpu, training, peers, missing, own_loss)
    spins = training & ((gap < 0.5 * missing) | (waits.lag > 2 * gap))
    spinning = _spin_cause(gpu, host, waits, np.where(training, missing - gap, np.nan))
    cause = np.where(spins, spinning, _gap_cause(gpu, gap, host))
    missing = np.where(spins & (cause == CAUSE["host"]), np.maximum(missing, 1 - gpu.active / 0.8), missing)
    missing = np.where(
        spins & waits.clear & (waits.lag > 0), _shared_out(waits.lag, missing, training), missing
    )
    missing = np.where(spins | (cause == CAUSE["host"]), missing, np.minimum(missing, gap))
    narrow = spins & (cause == CAUSE["unattributed"]) & (np.nan_to_num(gpu.active) > 0.5 * gpu.level)
    missing = np.where(narrow, 0.0, missing)  # kernels of different width, with nothing that says they waited
    missing = np.where(missing < _DEAD_ZONE, 0.0, missing)
    lost_clock = own_loss * (1 - missing)
    throttled = training & (lost_clock > missing)
    share = np.where(throttled, lost_clock, missing)
    cause = np.where(throttled, CAUSE["throttle"], cause)
    return Shortfall(cause.astype(np.int8), np.where(training, np.clip(share, 0.0, 1.0), 0.0))


@dataclass(frozen=True)
class Waits:
    """How much of its time a device waits for slower ones, by their clocks (`hot`) or for whatever reason (`lag`)."""

    lag: Floats
    hot: Mask

    @property
    def clear(self) -> Mask:
        return self.lag > 0.05


def _waits(gpu: Signals, training: Mask, peers: PeerFold, missing: Floats, own_loss: Floats) -> Waits:
    """A step lasts as long as its slowest device: the others wait by the difference of the clocks, if they miss that much."""
    lag = np.where(training, peers.lag(gpu.work), 0.0)
    clocks = np.where(training & (peers.count >= 2), np.clip(peers.slowest() - own_loss, 0.0, 1.0), 0.0)
    misses = np.nan_to_num(centred_mean(np.where(training, missing, np.nan), 30))
    clocks = np.where(np.maximum(misses, lag) >= 0.5 * clocks, clocks, 0.0)
    return Waits(np.maximum(lag, clocks), (clocks > 0.03) & (clocks >= 0.5 * lag))


def _shared_out(lag: Floats, missing: Floats, training: Mask) -> Floats:
    """The minute's lag behind the peers, in the seconds in which work is missing."""
    mean = centred_mean(np.where(training, missing, np.nan), 60)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: Floats = np.where(mean > 0.2 * lag, missing * lag / mean, lag)
    return np.clip(scaled, 0.0, 1.0)


def _missing(gpu: Signals, training: Mask) -> tuple[Floats, Floats]:
    """Share of each second without useful work, and the part of it in which no kernel ran."""
    if gpu.level <= 0:
        nothing = np.zeros(len(training))
        return nothing, nothing
    active = np.nan_to_num(gpu.active)
    if np.isnan(gpu.kernels).all():
        missing = np.clip(1 - active / gpu.level, 0.0, 1.0)
        return missing, missing
    kernels = np.where(np.isnan(gpu.kernels), 1.0, gpu.kernels)
    spin = min(SPIN_LEVEL, gpu.level / 4)
    useful = np.clip((active - spin * kernels) / (gpu.level - spin), 0.0, 1.0)
    missing = 1 - np.minimum(useful, np.maximum(kernels, useful))
    return missing, np.clip(1 - kernels, 0.0, 1.0)


def _gap_cause(gpu: Signals, gap: Floats, host: HostEvidence) -> Causes:
    """Nothing ran: allocator, transfer, storage, CPUs, the main process, any input, in this order of proof."""
    scores = {
        "allocator": 1.2 * _allocator(gpu),
        "transfer": _transfer(gpu, gap),
        "input_disk": host.disk,
        "input_cpu": 0.9 * host.cpu,
        "input_other": 0.6 * host.input,
        "host": np.maximum(0.6 * host.main, 1.1 * host.swap),
    }
    return _best(scores, 0.2)


def _spin_cause(gpu: Signals, host: HostEvidence, waits: Waits, spinning: Floats) -> Causes:
    """Kernels ran without useful work: waiting for a peer, for links, or launching too slowly."""
    scores: dict[str, Floats] = {
        "throttle": 1.5 * (waits.clear & waits.hot).astype(np.float64),
        "straggler": 1.3 * waits.clear.astype(np.float64),
        "communication": _talking(gpu, host, spinning),
        "host": 0.8 * host.main,
    }
    return _best(scores, 0.2)


def _talking(gpu: Signals, host: HostEvidence, spinning: Floats) -> Floats:
    """Whether the links are busier while kernels run without work than while it is done: traffic alone may be overlapped."""
    both_ways = np.fmin(gpu.series("pcie_rx_bytes_per_second"), gpu.series("pcie_tx_bytes_per_second"))
    links = np.nan_to_num(gpu.series("nvlink_tx_bytes_per_second")) + np.nan_to_num(both_ways) + host.network
    waiting, working = np.clip(spinning, 0.01, 1.0), np.clip(1 - spinning, 0.01, 1.0)
    while_waiting = centred_mean(links * waiting, _TRAFFIC_S) / centred_mean(waiting, _TRAFFIC_S)
    while_working = centred_mean(links * working, _TRAFFIC_S) / centred_mean(working, _TRAFFIC_S)
    busier = np.clip((while_waiting / np.maximum(while_working, 1.0) - 0.7) / 0.6, 0.0, 1.0)
    talks: Floats = busier * np.clip(centred_mean(links, 30) / 0.5e9, 0.0, 1.0)
    return talks


def _best(scores: Mapping[str, Floats], least: float) -> Causes:
    names = list(scores)
    table = np.stack([np.nan_to_num(scores[name]) for name in names])
    winner = np.argmax(table, axis=0)
    codes = np.array([CAUSE[name] for name in names], np.int8)[winner]
    result: Causes = np.where(table.max(axis=0) >= least, codes, CAUSE["unattributed"]).astype(np.int8)
    return result


def _allocator(gpu: Signals) -> Floats:
    """Allocation retries, or memory that drops and refills by 5 % of the device near its limit."""
    retries = gpu.series("torch_alloc_retries_total")
    flushed = near(_rises(retries), 5)
    used = gpu.series("memory_used_bytes")
    total = gpu.device.memory_total_bytes if gpu.device and gpu.device.memory_total_bytes else np.nan
    with np.errstate(invalid="ignore"):
        jumps = np.abs(np.diff(used, prepend=used[:1])) > 0.05 * total
        full = centred_mean(used, 60) > 0.8 * total
    return (flushed | near(jumps & full, 5)).astype(float)


def _rises(counter: Floats) -> Mask:
    """Seconds in which a counter went up; a missing second takes the value before it."""
    known = np.maximum.accumulate(np.where(np.isnan(counter), 0.0, counter))
    rises: Mask = np.diff(known, prepend=known[:1]) > 0
    return rises


def _transfer(gpu: Signals, gap: Floats) -> Floats:
    """The copies from the host fill at least a third of the gaps at the link's own speed."""
    received = centred_mean(gpu.series("pcie_rx_bytes_per_second"), 30)
    waiting = np.maximum(centred_mean(gap, 30), 0.05)
    with np.errstate(invalid="ignore"):
        return np.clip(2.0 * received / (link_bytes(gpu) * waiting) - 0.4, 0.0, 1.0)


def link_bytes(gpu: Signals) -> float:
    """Payload bytes per second of the device's PCIe link at its best generation and width."""
    device = gpu.device
    generation = (device and device.max_pcie_link_generation) or 4
    width = (device and device.max_pcie_link_width) or 16
    return LINK_BYTES.get(generation, 6.4e9) * width
