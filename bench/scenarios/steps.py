"""The step model: what each GPU of a synchronous job does, in 50 ms ticks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TICKS = 20
STATES = (
    "input", "h2d", "compute", "wait", "comm", "optimiser", "checkpoint", "eval", "allocator", "host", "launch",
)  # fmt: skip


@dataclass(frozen=True)
class Pace:
    """Functions of time (seconds [n] -> value [n]) that shape the steps; `compute` is per GPU."""

    input: Callable[[Floats], Floats]
    h2d: Callable[[Floats], Floats]
    comm: Callable[[Floats], Floats]
    launch: Callable[[Floats], Floats]
    bubble: Callable[[Floats], Floats]
    optimiser: float
    compute: tuple[Callable[[Floats], Floats], ...]


@dataclass(frozen=True)
class Interrupts:
    """Times at which the job stops between two steps, for how long, and in which state."""

    at: Floats
    length: Floats
    state: npt.NDArray[np.int64]


def durations(
    begin: float,
    end: float,
    step: float,
    spread: float,
    pace: Pace,
    stops: Interrupts,
    rng: np.random.Generator,
) -> tuple[Floats, Floats, Interrupts]:
    """Durations [steps, states, gpus] in seconds, start times [steps] of the steps that fit, and when stops really began.

    What a step costs depends on when it starts, and the other way round: four rounds settle both.
    """
    count = int((end - begin) / step * 1.1) + 2
    jitter = 1 + spread * rng.standard_normal((count, 1))
    private = 1 + 0.006 * rng.standard_normal((count, len(pace.compute)))
    starts = begin + step * np.arange(count)
    table = np.empty(0)
    for _ in range(4):
        table = _fill(starts, step, jitter, private, pace)
        _interrupt(table, starts, stops)
        starts = begin + np.concatenate(([0.0], np.cumsum(table[:-1, :, 0].sum(axis=1))))
    fits = starts < end
    return table[fits], starts[fits], _settled(table, starts, stops)


def _fill(starts: Floats, step: float, jitter: Floats, private: Floats, pace: Pace) -> Floats:
    gpus = len(pace.compute)
    table = np.zeros((len(starts), len(STATES), gpus))
    work = step * jitter * np.maximum(0.5, private)
    compute = np.stack([share(starts) for share in pace.compute], axis=1) * work
    slowest = compute.max(axis=1, keepdims=True)
    table[:, STATES.index("input")] = (step * pace.input(starts))[:, None]
    table[:, STATES.index("h2d")] = (step * pace.h2d(starts))[:, None]
    table[:, STATES.index("compute")] = compute
    table[:, STATES.index("wait")] = slowest - compute + (step * pace.bubble(starts))[:, None]
    table[:, STATES.index("comm")] = (step * pace.comm(starts))[:, None] * jitter
    table[:, STATES.index("launch")] = (step * pace.launch(starts))[:, None]
    table[:, STATES.index("optimiser")] = pace.optimiser * step
    return table


def _interrupt(table: Floats, starts: Floats, stops: Interrupts) -> None:
    rows = np.clip(np.searchsorted(starts, stops.at), 0, len(starts) - 1)
    for row, length, state in zip(rows, stops.length, stops.state, strict=True):
        table[row, state] += length


def _settled(table: Floats, starts: Floats, stops: Interrupts) -> Interrupts:
    """A stop waits for the step it falls into, and for what comes before it there."""
    rows = np.clip(np.searchsorted(starts, stops.at), 0, len(starts) - 1)
    before = np.cumsum(table[:, :, 0], axis=1)[rows, stops.state] - table[rows, stops.state, 0]
    return Interrupts(starts[rows] + before, stops.length, stops.state)


def fractions(table: Floats, gpu: int, begin: float, seconds: int) -> Floats:
    """Share of each 50 ms tick from second 0 that the GPU spends in each state, [states, seconds * 20]."""
    own = table[:, :, gpu]
    edges = begin + np.concatenate(([0.0], np.cumsum(own.ravel())))
    ticks = np.arange(seconds * TICKS + 1) / TICKS
    out = np.zeros((len(STATES), seconds * TICKS))
    for state in range(len(STATES)):
        if own[:, state].any():
            part = np.zeros_like(own)
            part[:, state] = own[:, state]
            spent = np.concatenate(([0.0], np.cumsum(part.ravel())))
            out[state] = np.diff(np.interp(ticks, edges, spent)) * TICKS
    return out
