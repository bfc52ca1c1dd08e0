"""Memory of a GPU over a job: weights, warm-up, leaks, fragmentation, growing lengths; and the allocator's view."""

from __future__ import annotations

import numpy as np
from bench.scenarios.plan import Plan, window
from bench.scenarios.spec import Fault, Scenario
from bench.scenarios.steps import STATES, Floats

_CONTEXT = 0.006


def used_ratio(scenario: Scenario, plan: Plan, evaluating: Floats, rng: np.random.Generator) -> Floats:
    """Memory in use relative to the device, [seconds]."""
    t = np.arange(plan.seconds, dtype=float)
    peak = scenario.workload.memory
    used = np.where(t < plan.start, 0.0, _CONTEXT)
    loading = np.clip((t - plan.start - 15) / max(1.0, plan.warmup - plan.start - 20), 0, 1)
    used = used + np.where(t >= plan.start + 15, 0.55 * peak * loading, 0.0)
    used = used + 0.45 * peak * _warm(scenario, plan, t)
    for fault in scenario.faults:
        used = used + _fault(fault, scenario, plan, t, rng)
    if scenario.kind == "variable_lengths":
        used = used + _records(plan, t, rng, 0.9 - peak)
    if scenario.kind != "inference":
        used = used + np.where(evaluating > 0.5, 0.03, 0.0)
    return np.clip(np.where(t >= plan.seconds - 2, 0.0, used), 0.0, 0.998)


def _warm(scenario: Scenario, plan: Plan, t: Floats) -> Floats:
    if scenario.workload.warmup_kind == "preallocate":
        return (t >= plan.start + 20).astype(float)
    length = max(30.0, plan.train - plan.warmup)
    share = np.clip((t - plan.warmup) / length, 0, 1)
    return np.where(t < plan.warmup, 0.0, np.ceil(share * 6) / 6)


def _fault(fault: Fault, scenario: Scenario, plan: Plan, t: Floats, rng: np.random.Generator) -> Floats:
    first, last = window(fault, plan.train, plan.end)
    left = 1.0 - scenario.workload.memory - _CONTEXT
    if fault.kind == "leak":
        onset = plan.end - 60 * fault.size
        rise = np.clip((t - onset) / (60 * fault.size), 0, 1)
        return left * np.floor(rise * 400) / 400
    if fault.kind == "fragmentation":
        return _staircase(first, last, t, rng) * (0.955 - scenario.workload.memory)
    if fault.kind == "thrash":
        flushes = plan.stops.at[plan.stops.state == STATES.index("allocator")]
        since = t - np.concatenate(([first], flushes))[np.searchsorted(flushes, t, side="right")]
        saw = np.clip(since / 25.0, 0, 1)
        return np.where((t >= first) & (t < last), (0.97 - scenario.workload.memory) - 0.14 * (1 - saw), 0.0)
    if fault.kind == "curriculum":
        stage = np.floor(np.clip((t - first) / (last - first), 0, 0.999) * 5) / 4
        return np.where(t >= first, stage * fault.size, 0.0)
    return np.zeros(len(t))


def _staircase(first: float, last: float, t: Floats, rng: np.random.Generator) -> Floats:
    """Rises in ever smaller steps at irregular times and stays."""
    times = np.sort(first + (last - first) * rng.uniform(0, 0.75, 12) ** 1.3)
    weight = 0.75 ** np.arange(12)
    heights = np.concatenate(([0.0], np.cumsum(weight) / weight.sum()))
    return heights[np.searchsorted(times, t, side="right")]


def _records(plan: Plan, t: Floats, rng: np.random.Generator, room: float) -> Floats:
    """The longest batch so far decides: records get rarer as time goes on."""
    lengths = rng.gumbel(0.25, 0.07, len(t))
    lengths[t < plan.train] = 0.0
    return room * np.clip(np.maximum.accumulate(lengths), 0, 1)


def allocator(scenario: Scenario, plan: Plan, used: Floats, total: float) -> dict[str, Floats]:
    """What PyTorch's allocator counts, when the job carries the hook: bytes, and retries so far."""
    t = np.arange(plan.seconds, dtype=float)
    reserved = np.maximum(0.0, used - 0.012) * total
    fragments = [f for f in scenario.faults if f.kind in ("fragmentation", "thrash")]
    live = np.minimum(reserved, 0.93 * scenario.workload.memory * total) if fragments else 0.95 * reserved
    retries = np.zeros(len(t))
    if fragments:
        flushes = plan.stops.at[plan.stops.state == STATES.index("allocator")]
        retries += np.searchsorted(flushes, t, side="right")
    return {
        "torch_reserved_bytes": reserved,
        "torch_allocated_bytes": live,
        "torch_inactive_split_bytes": 0.9 * (reserved - live),
        "torch_alloc_retries_total": retries,
        "torch_ooms_total": np.zeros(len(t)),
    }
