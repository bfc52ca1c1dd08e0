"""Eight simulated GPUs: synchronous steps, clocks and heat, memory; arrays of (seconds, GPUs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpudiag.agent.simulation.course import Course
from gpudiag.agent.simulation.script import GIB, GPUS, Script
from gpudiag.storage.sample import Floats

FULL_CLOCK = 1980e6  # hertz, as an H100 SXM boosts
IDLE_CLOCK = 345e6
MEMORY_CLOCK = 2619e6
POWER_LIMIT = 700.0
_COMPUTE = 0.88  # share of a step that scales with the clock; the rest is exposed communication
_REASON_IDLE, _REASON_SOFT_HEAT, _REASON_HARD_HEAT = 0x1, 0x20, 0x40
_AMBIENT = 31.0
_SOFT_HEAT, _HARD_HEAT = 86.0, 90.0


@dataclass(frozen=True)
class Heat:
    """Clock relative to full, temperature in Celsius and the reasons the driver gives."""

    clock: Floats
    celsius: Floats
    reasons: Floats


@dataclass(frozen=True)
class Steps:
    """Share of each second that a GPU computes, and that it spins waiting for others."""

    computing: Floats
    spinning: Floats


def simulate(script: Script, course: Course, rng: np.random.Generator) -> Mapping[str, Floats]:
    """Every GPU metric as an array of (seconds, GPUs), in base units."""
    heat = _heat(script, course, rng)
    steps = _steps(course, heat.clock)
    noise = _Noise(rng, (script.seconds, GPUS))
    power = _power(steps, heat, course, noise)
    memory = _memory(script, course, rng)
    return {
        **_activity(steps, course, noise),
        **_traffic(steps, course, noise),
        **_board(heat, course, power),
        "memory_used_bytes": memory,
        "memory_reserved_bytes": np.full_like(memory, 0.55 * GIB),
        "memory_total_bytes": np.full_like(memory, script.gpu_memory),
        "processes": np.repeat(course.process[:, None], GPUS, axis=1).astype(float),
        **{name: np.zeros_like(memory) for name in _QUIET},
        "pcie_link_generation": np.full_like(memory, 5.0),
        "pcie_link_width": np.full_like(memory, 16.0),
    }


_QUIET = (
    "ecc_corrected_total", "ecc_uncorrected_total", "pcie_replays_total", "nvlink_errors_total",
    "remap_pending", "remap_failed", "throttle_power_seconds_total",
)  # fmt: skip


class _Noise:
    """Relative and absolute measurement noise of one shape."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        self._rng = rng
        self._shape = shape

    def scale(self, spread: float) -> Floats:
        return self._rng.normal(1.0, spread, self._shape)

    def share(self, values: Floats, spread: float) -> Floats:
        """Values of 0..1 with relative noise, kept inside."""
        return np.clip(values * self.scale(spread), 0.0, 1.0)


def _steps(course: Course, clock: Floats) -> Steps:
    """All ranks finish a step together: the slowest sets its length, the others spin in the collective."""
    own = _COMPUTE / clock
    step = own.max(axis=1, keepdims=True) + (1 - _COMPUTE)
    together = course.training | course.compiling
    computing = np.where(together[:, None], own / step, 1.0) * course.running[:, None]
    spinning = np.where(together[:, None], (1 - own / step) * course.running[:, None], 0.0)
    return Steps(computing, spinning + 0.9 * course.saving[:, None])


def _activity(steps: Steps, course: Course, noise: _Noise) -> Mapping[str, Floats]:
    depth = np.where(course.evaluating, 0.62, 1.0)[:, None]
    sm = 0.97 * steps.computing * depth + 0.06 * steps.spinning
    busy = np.clip(steps.computing + steps.spinning, 0.0, 1.0)
    return {
        "sm_active_ratio": noise.share(sm, 0.015),
        "sm_occupancy_ratio": noise.share(0.46 * steps.computing * depth + 0.02 * steps.spinning, 0.02),
        "tensor_active_ratio": noise.share(0.58 * steps.computing * depth, 0.02),
        "dram_active_ratio": noise.share(0.44 * steps.computing * depth + 0.01 * steps.spinning, 0.02),
        "graphics_active_ratio": noise.share(busy, 0.003),
        "fp32_active_ratio": noise.share(0.09 * steps.computing * depth, 0.03),
        "fp16_active_ratio": noise.share(0.05 * steps.computing * depth, 0.03),
        "gpu_util_ratio": np.round(np.clip(np.where(busy > 0.02, busy * 1.02, 0.0), 0.0, 1.0), 2),
        "memory_util_ratio": np.round(0.5 * busy, 2),
    }


def _traffic(steps: Steps, course: Course, noise: _Noise) -> Mapping[str, Floats]:
    batches = 0.35e9 * course.copied * (course.training | course.evaluating)
    weights = 2.5e9 * course.loading
    state = 0.62e9 * course.saving
    together = (course.training | course.compiling)[:, None] * course.running[:, None]
    stretch = steps.computing / _COMPUTE  # a slower step moves the same bytes in more time
    links = 110e9 * together * np.minimum(stretch.max(axis=1, keepdims=True), 1.0)
    links = links * np.where(steps.spinning > 0.3, 0.75, 1.0) + 1e6
    return {
        "pcie_rx_bytes_per_second": (batches + weights)[:, None] * noise.scale(0.08) + 2e5,
        "pcie_tx_bytes_per_second": (0.02 * batches + state)[:, None] * noise.scale(0.05) + 1e5,
        "nvlink_rx_bytes_per_second": links * noise.scale(0.02),
        "nvlink_tx_bytes_per_second": links * noise.scale(0.02),
    }


def _power(steps: Steps, heat: Heat, course: Course, noise: _Noise) -> Floats:
    depth = np.where(course.evaluating, 0.72, 1.0)[:, None]
    idle = np.where(course.process, 118.0, 72.0)[:, None]
    drawn = idle + 545.0 * steps.computing * depth * heat.clock**2.2 + 95.0 * steps.spinning
    return np.minimum(drawn * noise.scale(0.012), POWER_LIMIT)


def _board(heat: Heat, course: Course, power: Floats) -> Mapping[str, Floats]:
    asleep = (heat.reasons == _REASON_IDLE) & ~course.process[:, None]
    throttled = (heat.reasons.astype(int) & (_REASON_SOFT_HEAT | _REASON_HARD_HEAT)) != 0
    clock = np.where(asleep, IDLE_CLOCK, np.round(heat.clock * FULL_CLOCK / 15e6) * 15e6)
    return {
        "power_watts": power,
        "power_limit_watts": np.full_like(power, POWER_LIMIT),
        "energy_joules_total": 4.1e9 + np.cumsum(power, axis=0),
        "temperature_celsius": np.round(heat.celsius),
        "memory_temperature_celsius": np.round(heat.celsius + 9.0),
        "temperature_margin_celsius": np.round(_HARD_HEAT - heat.celsius),
        "sm_clock_hertz": clock,
        "memory_clock_hertz": np.full_like(power, MEMORY_CLOCK),
        "clock_event_reasons": heat.reasons,
        "throttle_thermal_seconds_total": np.cumsum(throttled, axis=0) * 0.8,
    }


def _heat(script: Script, course: Course, rng: np.random.Generator) -> Heat:
    """First-order heating with a governor that trades clock for temperature, second by second."""
    second = np.arange(script.seconds) - script.idle_before
    resistance = np.tile(rng.uniform(0.054, 0.060, GPUS), (script.seconds, 1))
    blocked = (second >= script.hot.start) & (second < script.hot.end)
    resistance[blocked, script.hot_gpu] *= 2.8
    load = np.where(course.training | course.evaluating, 660.0, np.where(course.compiling, 420.0, 130.0))
    watts = np.where(course.process, load * np.maximum(course.running, 0.18), 75.0)
    celsius, clock = np.empty_like(resistance), np.ones_like(resistance)
    now, speed = np.full(GPUS, 34.0), np.ones(GPUS)
    for index in range(script.seconds):
        target = _AMBIENT + resistance[index] * watts[index] * speed**2.2
        now = now + (target - now) / 45.0
        speed = np.clip(speed + np.clip((_SOFT_HEAT - now) * 0.01, -0.03, 0.004), 0.5, 1.0)
        celsius[index], clock[index] = now, speed
    reasons = np.where(clock < 0.995, float(_REASON_SOFT_HEAT), 0.0)
    reasons += np.where(celsius > _HARD_HEAT, float(_REASON_HARD_HEAT), 0.0)
    reasons[(course.running == 0.0) & ~course.saving] = _REASON_IDLE
    return Heat(clock, celsius + rng.normal(0.0, 0.3, celsius.shape), reasons)


def _memory(script: Script, course: Course, rng: np.random.Generator) -> Floats:
    """Device memory in use: context, weights, activations, then the staircase and the leak."""
    second = np.arange(script.seconds) - script.idle_before
    weights = np.interp(second, (120, 200), (0.6, 16.0))
    warm = np.interp(second, (230, 300, 420, 560, 700, 815), (0.0, 12.0, 22.0, 26.0, 29.0, 30.0))
    gib = np.tile(
        (np.where(second >= 120, weights, 0.0) + np.where(second >= 230, np.floor(warm), 0.0))[:, None], GPUS
    )
    gib += np.where(second >= 230, 1.0, 0.0)[:, None] * rng.uniform(-0.4, 0.4, GPUS)
    for step, height in script.steps_up:
        grown = (second >= step) & (second < script.staircase.end)
        gib += grown[:, None] * height * rng.uniform(0.94, 1.06, GPUS)
    room = script.gpu_memory / GIB - gib[second == script.crash_at - 1, script.leaking_gpu].item()
    gib[:, script.leaking_gpu] += room * _leak(script, second, rng)
    used = np.minimum(gib * GIB, script.gpu_memory - 0.05 * GIB)
    used = np.floor(used / (2 * 1024**2)) * 2 * 1024**2
    idle = 0.42 * GIB
    return np.where(course.process[:, None], np.maximum(used, idle), idle)


def _leak(
    script: Script, second: np.ndarray[tuple[int], np.dtype[np.int64]], rng: np.random.Generator
) -> Floats:
    """Growth from 0 to 1 between the leak's begin and the crash: a segment of uneven size every few seconds."""
    grows = (second >= script.leak_from) & (second < script.crash_at) & (rng.random(len(second)) < 1 / 8)
    grown: Floats = np.cumsum(np.where(grows, rng.gamma(4.0, 1.0, len(second)), 0.0))
    share: Floats = grown / grown[-1]
    return share
