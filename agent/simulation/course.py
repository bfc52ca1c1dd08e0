"""The course of the simulated job: per second, what the whole job is doing and how much of it is stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpudiag.agent.simulation.script import Script, Stretch
from gpudiag.storage.sample import Floats

Flags = npt.NDArray[np.bool_]
_TENTHS = 10


@dataclass(frozen=True)
class Course:
    """Arrays of one value per second of the simulation.

    `running` share of the second in which steps ran (0..1), `copied` batches copied to the GPUs relative to
    normal; the flags say which activity the second belongs to.
    """

    allocated: Flags
    process: Flags
    loading: Flags
    compiling: Flags
    training: Flags
    evaluating: Flags
    saving: Flags
    starved: Flags
    running: Floats
    copied: Floats


def plan(script: Script, rng: np.random.Generator) -> Course:
    """Lay the script out second by second."""
    second = np.arange(script.seconds) - script.idle_before
    allocated = (second >= 0) & (second < script.length)
    process = (second >= script.processes_from) & (second < script.crash_at)
    loading = process & (second < script.compile_from)
    compiling = process & (second >= script.compile_from) & (second < script.train_from)
    saving = process & _inside(second, script.checkpoints)
    evaluating = process & _inside(second, script.evaluations) & ~saving
    training = process & (second >= script.train_from) & ~saving & ~evaluating
    starved = training & _inside(second, (script.loader_stall,))
    running, copied = np.ones(script.seconds), np.ones(script.seconds)
    running[starved], copied[starved] = _starve(int(starved.sum()), rng)
    running[training] *= 1.0 - _allocator_stops(script, second, rng)[training]
    running[compiling] = _compile_bursts(int(compiling.sum()), rng)
    active = training | evaluating | compiling
    return Course(
        allocated, process, loading, compiling, training, evaluating, saving, starved,
        np.where(active, running, 0.0), np.where(training | evaluating, copied, 0.0),
    )  # fmt: skip


def _inside(second: npt.NDArray[np.int64], stretches: Iterable[Stretch]) -> Flags:
    inside = np.zeros(len(second), dtype=bool)
    for stretch in stretches:
        inside |= (second >= stretch.start) & (second < stretch.end)
    return inside


def _starve(seconds: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Workers finish their batches together, the GPUs eat those and then wait for the next lot.

    Tenths of seconds: a lot of four batches takes about 12 s to decode and 6.5 s to train on.
    """
    running = np.zeros(seconds * _TENTHS)
    copied = np.zeros(seconds * _TENTHS)
    at = 0
    while at < len(running):
        eaten = int(rng.normal(65, 5))
        running[at : at + eaten] = 1.0
        copied[at : at + 12] = 4.0
        at += max(int(rng.normal(120, 9)), eaten + 10)
    return _per_second(running), _per_second(copied)


def _per_second(tenths: Floats) -> Floats:
    means: Floats = tenths.reshape(-1, _TENTHS).mean(axis=1)
    return means


def _allocator_stops(script: Script, second: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """Share of each second in which a failed allocation emptied the cache and tried again, on all ranks."""
    stopped = np.zeros(len(second))
    for step, _ in script.steps_up:
        index = step + script.idle_before
        stopped[index : index + 2] = (1.0, float(rng.uniform(0.2, 0.9)))
    crowded = np.flatnonzero((second >= script.steps_up[-3][0]) & (second < script.staircase.end))
    for index in crowded[rng.random(len(crowded)) < 1 / 40]:
        stopped[index] = float(rng.uniform(0.5, 1.0))
    return stopped


def _compile_bursts(seconds: int, rng: np.random.Generator) -> Floats:
    """Short trial runs between long stretches of compilation, more and more of them."""
    share = np.linspace(0.1, 0.8, seconds)
    lots: Floats = np.repeat(rng.random(seconds // 10 + 1), 10)[:seconds]
    return np.where(lots < share, rng.uniform(0.5, 0.9, seconds), 0.0)
