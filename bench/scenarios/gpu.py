"""What one GPU does and draws in every 50 ms tick, from the share of the tick it spends in each state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from bench.scenarios.plan import Plan, window
from bench.scenarios.spec import Generation, Scenario
from bench.scenarios.steps import STATES, TICKS, Floats

SIGNALS = ("sm", "engine", "tensor", "dram", "fp32", "power")
_LEVELS = {
    "input": (0.0, 0.0, 0.0, 0.0, 0.0, 0.06),
    "h2d": (0.005, 0.03, 0.0, 0.06, 0.0, 0.1),
    "wait": (0.13, 1.0, 0.0, 0.012, 0.01, 0.3),
    "comm": (0.15, 1.0, 0.0, 0.10, 0.02, 0.36),
    "optimiser": (0.90, 0.99, 0.0, 0.72, 0.22, 0.62),
    "checkpoint": (0.0, 0.0, 0.0, 0.01, 0.0, 0.08),
    "eval": (0.62, 0.96, 0.34, 0.30, 0.05, 0.62),
    "allocator": (0.0, 0.0, 0.0, 0.0, 0.0, 0.07),
    "host": (0.0, 0.0, 0.0, 0.0, 0.0, 0.06),
    "launch": (0.04, 0.72, 0.01, 0.03, 0.01, 0.18),
}


@dataclass(frozen=True)
class Ticks:
    """Signals of one GPU, [6, ticks], and its transfer rates in bytes per second, [ticks]."""

    signals: Floats
    received: Floats
    sent: Floats
    link: Floats

    def signal(self, name: str) -> Floats:
        return self.signals[SIGNALS.index(name)]


def link_bytes(generation: Generation, width: int = 16) -> float:
    """Bytes per second a PCIe link carries in practice, about 80 % of its nominal rate."""
    return 0.8e9 * 2.0 ** (generation.link_generation - 3) * width


def ticks(
    scenario: Scenario, plan: Plan, generation: Generation, shares: Floats, rng: np.random.Generator
) -> Ticks:
    """Signals and transfers of a GPU whose state shares are [states, ticks]."""
    work = scenario.workload
    levels = {**_LEVELS, "compute": (*work.compute, work.power)}
    table = np.array([levels[state] for state in STATES])
    signals = table.T @ shares
    _warming(scenario, plan, signals, rng)
    slow = 1 + 0.012 * np.repeat(rng.standard_normal(plan.seconds // 30 + 1), 30 * TICKS)[: signals.shape[1]]
    signals[:5] = np.clip(signals[:5] * slow, 0, 1)
    wire = link_bytes(generation)
    at = dict(zip(STATES, shares, strict=True))
    received = wire * (0.9 * at["h2d"]) + 4e6 * at["compute"]
    sent = 0.35 * wire * at["checkpoint"] * _first_half(at["checkpoint"]) + 2e6 * at["compute"]
    peak = 18e9 * generation.nvlinks * 0.55
    link = (
        peak * (at["comm"] + scenario.workload.link_load * at["compute"])
        if scenario.workload.gpus > 1
        else 0 * wire
    )
    if any(fault.kind == "comm_pcie" for fault in scenario.faults) or not generation.nvlinks:
        busy = at["comm"] * (0.6 * wire if scenario.workload.gpus > 1 else 0.0)
        received, sent, link = received + busy, sent + busy, 0.0 * at["comm"]
    return Ticks(signals, received, sent, np.asarray(link) + 0.0 * at["comm"])


def _first_half(writing: Floats) -> Floats:
    """State goes to the host first, then to storage: 1 in the first 40 % of each stop."""
    on = writing > 0.5
    edges = np.flatnonzero(np.diff(np.concatenate(([0], on.astype(int), [0]))))
    out = np.zeros(len(writing))
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        out[first : first + max(1, int(0.4 * (last - first)))] = 1.0
    return out


def _warming(scenario: Scenario, plan: Plan, signals: Floats, rng: np.random.Generator) -> None:
    """Before training: bursts of trial kernels between compilation, or steps of growing size."""
    first, last = int(plan.warmup * TICKS), int(plan.train * TICKS)
    length = last - first
    if length <= 0 or (scenario.kind != "training_like" and scenario.kind in ("inference", "notebook")):
        return
    compiling = scenario.workload.warmup_kind == "compile"
    duty = 0.18 if compiling else 0.55
    every = 5 * TICKS
    bursts = np.repeat(rng.random(length // every + 1) < duty, every)[:length]
    level = np.repeat(rng.uniform(0.3, 0.9, length // every + 1), every)[:length]
    shape = np.array([*scenario.workload.compute, scenario.workload.power])
    signals[:, first:last] = shape[:, None] * (bursts * level)


def clock_now(scenario: Scenario, plan: Plan, gpu: int, busy: Floats) -> tuple[Floats, Floats, Floats]:
    """Clock as a share of the maximum, reason bits, and heat above normal in kelvin, [seconds] each."""
    t = np.arange(plan.seconds, dtype=float)
    factor = plan.clocks[gpu](t)
    capped = scenario.workload.power > 0.93
    natural = 0.88 if capped else 0.965
    bits = np.where(busy > 0.1, 4.0 if capped else 0.0, 1.0)
    heat = np.zeros(len(t))
    for fault in scenario.faults:
        if fault.devices and gpu not in fault.devices:
            continue
        first, last = window(fault, plan.train, plan.end)
        on = (t >= first) & (t < last) & (busy > 0.1)
        if fault.kind == "thermal":
            bits = np.where(on, 0x20 if fault.size < 0.35 else 0x60, bits)
            heat = np.where((t >= first) & (t < last), 22.0, heat)
        elif fault.kind == "brake":
            bits = np.where(on & (factor < 0.6), 0x88, bits)
        elif fault.kind == "power_limit":
            bits = np.where(on, 4, bits)
    clock = np.where(busy > 0.02, natural * factor, 0.35)
    return clock, bits, heat
