"""Jobs that are not training: an inference server, a notebook, an interactive debugging session."""

from __future__ import annotations

import numpy as np
from bench.scenarios.plan import Plan
from bench.scenarios.steps import STATES, TICKS, Floats


def activity(kind: str, plan: Plan, gpus: int, rng: np.random.Generator) -> list[Floats]:
    """Per GPU the share of each 50 ms tick in each state, [states, seconds * 20]."""
    makers = {"inference": _inference, "notebook": _notebook}
    return makers[kind](plan, gpus, rng)


def _inference(plan: Plan, gpus: int, rng: np.random.Generator) -> list[Floats]:
    """Requests arrive at a rate that drifts over the day; all GPUs of the server work on each."""
    ticks = plan.seconds * TICKS
    minutes = plan.seconds // 60 + 2
    rate = 0.35 * np.exp(np.cumsum(0.12 * rng.standard_normal(minutes)) * 0.5)
    rate = np.interp(np.arange(ticks) / TICKS / 60, np.arange(minutes), np.clip(rate, 0.05, 0.9))
    starts = rng.random(ticks) < rate / TICKS
    busy = np.zeros(ticks)
    for first in np.flatnonzero(starts):
        busy[first : first + int(rng.exponential(0.6) * TICKS) + 2] = 1.0
    busy[: int(plan.warmup * TICKS)] = 0.0
    return [_as("eval", busy) for _ in range(gpus)]


def _notebook(plan: Plan, gpus: int, rng: np.random.Generator) -> list[Floats]:
    """A person thinks, runs a cell, thinks again; both take heavy-tailed times."""
    busy = np.zeros(plan.seconds * TICKS)
    now = plan.warmup
    while now < plan.seconds:
        run = min(600.0, 8 * (rng.pareto(1.2) + 0.3))
        busy[int(now * TICKS) : int((now + run) * TICKS)] = 1.0
        now += run + min(1500.0, 40 * (rng.pareto(1.1) + 0.3))
    return [_as("compute", busy if gpu == 0 else np.zeros_like(busy)) for gpu in range(gpus)]


def _as(state: str, busy: Floats) -> Floats:
    out = np.zeros((len(STATES), len(busy)))
    out[STATES.index(state)] = busy
    return out
