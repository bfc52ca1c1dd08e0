"""The course of a job: when it starts, warms up, stops for checkpoints and evaluation, and what is wrong when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from bench.scenarios.spec import Fault, Scenario, Workload
from bench.scenarios.steps import STATES, Floats, Interrupts, Pace

Shape = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Plan:
    """Seconds at which the stretches of the job begin; training runs from `train` to `end`."""

    seconds: int
    start: float
    warmup: float
    train: float
    end: float
    pace: Pace
    stops: Interrupts
    clocks: tuple[Shape, ...]


def window(fault: Fault, begin: float, end: float) -> tuple[float, float]:
    """Clock of the fault in seconds of the job: its shares are of the training stretch."""
    return begin + fault.start * (end - begin), begin + fault.end * (end - begin)


def plan(scenario: Scenario, rng: np.random.Generator) -> Plan:
    """Lay out the job."""
    work = scenario.workload
    seconds = int(work.hours * 3600)
    slow = sum(f.size for f in scenario.faults if f.kind == "slow_start")
    warmup = work.before + work.startup + slow
    train = warmup + work.warmup
    tail = work.tail + sum(f.size for f in scenario.faults if f.kind == "idle_tail")
    end = seconds - tail
    hung = [window(f, train, end)[0] for f in scenario.faults if f.kind == "hung"]
    killed = [
        window(f, train, end)[0] + 60 * f.size for f in scenario.faults if f.kind in ("leak", "host_leak")
    ]
    stopped = min([end, *hung, *killed])
    seconds = int(min([seconds, *(moment + 5 for moment in killed)]))
    pace, clocks = _pace(scenario, train, end)
    stops = _stops(scenario, train, stopped, rng)
    return Plan(seconds, work.before, warmup, train, stopped, pace, stops, clocks)


def _total(faults: Sequence[Fault], kinds: str, begin: float, end: float, base: float = 0.0) -> Shape:
    active = [(window(f, begin, end), f.size) for f in faults if f.kind in kinds.split()]

    def shape(t: Floats) -> Floats:
        value = np.full(len(t), base)
        for (first, last), size in active:
            value += np.where((t >= first) & (t < last), size, 0.0)
        return value

    return shape


def _pace(scenario: Scenario, begin: float, end: float) -> tuple[Pace, tuple[Shape, ...]]:
    """A share `s` of the time lost to waiting lengthens a step by `s / (1 - s)` of its useful part."""
    work, faults = scenario.workload, scenario.faults
    base = 1 - _usual_comm(work) - work.h2d - work.optimiser
    share = _total(faults, "cpu_steady disk_steady main_bound", begin, end)
    copies, talk = _total(faults, "transfer", begin, end), _total(faults, "comm comm_pcie", begin, end)
    launches = _total(faults, "launch", begin, end)

    bubbles = _total(faults, "bubble", begin, end)

    def longer(shape: Shape, usual: float = 0.0) -> Shape:
        return lambda t: (
            usual + shape(t) / (1 - np.minimum(0.9, share(t) + copies(t) + talk(t) + launches(t)))
        )

    clocks = tuple(_clock(scenario, gpu, begin, end) for gpu in range(work.gpus * work.nodes))
    burdens = tuple(_burden(scenario, gpu, begin, end) for gpu in range(work.gpus * work.nodes))

    def slowed(clock: Shape, burden: Shape) -> Shape:
        return lambda t: base * burden(t) / clock(t)

    compute = tuple(slowed(clock, burden) for clock, burden in zip(clocks, burdens, strict=True))
    pace = Pace(
        longer(share),
        longer(copies, work.h2d),
        longer(talk, _usual_comm(work)),
        longer(launches),
        longer(bubbles),
        work.optimiser,
        compute,
    )
    return pace, clocks


def _usual_comm(work: Workload) -> float:
    return work.comm if work.gpus * work.nodes > 1 else 0.0


def _hits(fault: Fault, gpu: int) -> bool:
    return not fault.devices or gpu in fault.devices


def _clock(scenario: Scenario, gpu: int, begin: float, end: float) -> Shape:
    """Clock as a share of what the device would run at."""
    mine = [f for f in scenario.faults if _hits(f, gpu)]
    level = [f for f in mine if f.kind in ("thermal", "power_limit", "low_clock")]
    brakes = [(f, window(f, begin, end)) for f in mine if f.kind == "brake"]
    steady = _total(level, "thermal power_limit low_clock", begin, end)

    def clock(t: Floats) -> Floats:
        value = 1 - steady(t)
        for fault, (first, last) in brakes:
            on = (t >= first) & (t < last) & ((t % 60.0) < 60.0 * fault.size)
            value = np.where(on, 0.45, value)
        return value

    return clock


def _burden(scenario: Scenario, gpu: int, begin: float, end: float) -> Shape:
    """Work per step relative to the others: stragglers have more of it, rotating with `moving` ones."""
    fixed = _total([f for f in scenario.faults if _hits(f, gpu)], "straggler imbalance", begin, end, 1.0)
    gpus = scenario.workload.gpus * scenario.workload.nodes
    moving = [(window(f, begin, end), f.size) for f in scenario.faults if f.kind == "moving_straggler"]

    def burden(t: Floats) -> Floats:
        value = fixed(t)
        for (first, last), size in moving:
            value += np.where((t >= first) & (t < last) & ((t // 20).astype(int) % gpus == gpu), size, 0.0)
        return value

    return burden


def _stops(scenario: Scenario, begin: float, end: float, rng: np.random.Generator) -> Interrupts:
    work = scenario.workload
    rows: list[tuple[float, float, str]] = []
    if work.eval_every:
        times = np.arange(begin + work.eval_every, end - work.eval_length, work.eval_every)
        rows += [(t, work.eval_length, "eval") for t in times]
    if work.checkpoint_every:
        times = np.arange(begin + work.checkpoint_every, end - 60, work.checkpoint_every)
        rows += [(t, work.checkpoint_length * rng.uniform(0.85, 1.15), "checkpoint") for t in times]
    for fault in scenario.faults:
        rows += _stops_of(fault, *window(fault, begin, end), min(end, window(fault, begin, end)[1]), rng)
    rows.sort()
    at, length, state = zip(*rows, strict=True) if rows else ((), (), ())
    codes = np.array([STATES.index(name) for name in state], int)
    return Interrupts(np.array(at, float), np.array(length, float), codes)


_STOP_STATES = {
    "cpu_gappy": ("input", 40.0), "disk_gappy": ("input", 55.0), "checkpoint": ("checkpoint", 420.0),
    "thrash": ("allocator", 25.0), "gc": ("host", 150.0), "fragmentation": ("allocator", 400.0),
    "swap": ("host", 30.0),
}  # fmt: skip


def _stops_of(
    fault: Fault, first: float, _last: float, end: float, rng: np.random.Generator
) -> list[tuple[float, float, str]]:
    """Stops that take `size` of the time, at irregular intervals (checkpoints: regular ones)."""
    if fault.kind not in _STOP_STATES or fault.size <= 0:
        return []
    state, every = _STOP_STATES[fault.kind]
    rows, now = [], first
    while now < end:
        gap = every if state == "checkpoint" else every * rng.uniform(0.5, 1.5)
        length = fault.size / (1 - fault.size) * gap
        rows.append((now, length if state == "checkpoint" else length * rng.uniform(0.7, 1.3), state))
        now += gap + length
    return rows
