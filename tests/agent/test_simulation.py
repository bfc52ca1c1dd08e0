"""The simulated node: physics that a real one would show, and nothing of the rules."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.runner import Runner
from gpudiag.agent.simulation import gpus, host
from gpudiag.agent.simulation.course import Course, plan
from gpudiag.agent.simulation.node import SimulatedNode
from gpudiag.agent.simulation.script import GIB, Script
from gpudiag.storage.sample import Floats

ROOT = Path(__file__).resolve().parents[2]
START = 1_772_528_340_000
SCRIPT = Script()


def at(metric: Floats, start: int, end: int) -> Floats:
    """Seconds of the job."""
    return metric[start + SCRIPT.idle_before : end + SCRIPT.idle_before]


@pytest.fixture(scope="module")
def course() -> Course:
    return plan(SCRIPT, np.random.default_rng(SCRIPT.seed))


@pytest.fixture(scope="module")
def board(course: Course) -> dict[str, Floats]:
    return dict(gpus.simulate(SCRIPT, course, np.random.default_rng(SCRIPT.seed)))


def test_shares_nothing_with_the_rules() -> None:
    for path in (ROOT / "agent" / "simulation").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith("gpudiag.rules") for name in names), path


def test_every_value_is_one_the_agent_believes() -> None:
    node = SimulatedNode(START)
    runners = [Runner(collector, node.clock) for collector in node.collectors]
    for second in range(0, SCRIPT.seconds, 97):
        for runner in runners:
            runner.run(START + second * 1000)
    assert [dict(runner.outcome.rejected) for runner in runners] == [{}, {}, {}]
    assert [runner.outcome.failures for runner in runners] == [0, 0, 0]


def test_the_same_script_gives_the_same_job() -> None:
    frames = [[*SimulatedNode(START).collectors[0].collect(START + 3_000_000)] for _ in range(2)]
    assert frames[0] == frames[1]


def test_gpus_wait_for_a_loader_whose_workers_are_busy(course: Course, board: dict[str, Floats]) -> None:
    job = host.simulate_job(SCRIPT, course, np.random.default_rng(1))
    starved = (SCRIPT.loader_stall.start, SCRIPT.loader_stall.end)
    before = (SCRIPT.train_from, SCRIPT.loader_stall.start)
    assert at(board["sm_active_ratio"], *starved).mean() < 0.6 * at(board["sm_active_ratio"], *before).mean()
    assert at(job["loader_cpu_ratio"], *starved).mean() > 1.5 * at(job["loader_cpu_ratio"], *before).mean()
    assert at(job["job_cpu_busy_ratio"], *starved).mean() < 0.5, "the job has CPUs left"


def test_memory_climbs_in_steps_and_stays(board: dict[str, Floats]) -> None:
    used = at(board["memory_used_bytes"], SCRIPT.staircase.start + 1, SCRIPT.staircase.end)
    rises = np.diff(used, axis=0)
    assert (rises >= 0).all()
    assert set((rises > 0).sum(axis=0).tolist()) == {len(SCRIPT.steps_up) - 1}
    assert used[-1].min() > 0.88 * SCRIPT.gpu_memory


def test_one_gpu_leaks_until_it_is_full(board: dict[str, Floats]) -> None:
    used = at(board["memory_used_bytes"], SCRIPT.leak_from, SCRIPT.crash_at)
    assert used[-1, SCRIPT.leaking_gpu] > 0.99 * SCRIPT.gpu_memory
    others = np.delete(used, SCRIPT.leaking_gpu, axis=1)
    assert np.ptp(others, axis=0).max() < 0.1 * GIB


def test_a_hot_gpu_slows_all_and_works_most(board: dict[str, Floats]) -> None:
    hot = (SCRIPT.hot.start + 200, SCRIPT.hot.end)
    clock = at(board["sm_clock_hertz"], *hot).mean(axis=0)
    tensor = at(board["tensor_active_ratio"], *hot).mean(axis=0)
    others = [index for index in range(8) if index != SCRIPT.hot_gpu]
    assert clock[SCRIPT.hot_gpu] < 0.85 * clock[others].min()
    assert tensor[SCRIPT.hot_gpu] > 1.1 * tensor[others].max(), "the slow one never waits"
    assert at(board["throttle_thermal_seconds_total"], *hot)[-1, SCRIPT.hot_gpu] > 100
    assert at(board["throttle_thermal_seconds_total"], *hot)[-1, others].max() == 0


def test_counters_never_fall(board: dict[str, Floats]) -> None:
    assert (np.diff(board["energy_joules_total"], axis=0) > 0).all()


def test_a_checkpoint_moves_memory_to_the_disk(course: Course, board: dict[str, Floats]) -> None:
    job = host.simulate_job(SCRIPT, course, np.random.default_rng(1))
    first = SCRIPT.checkpoints[0]
    assert at(board["pcie_tx_bytes_per_second"], first.start, first.end).sum() > 60e9
    assert at(job["job_write_bytes_per_second"], first.start, first.end).sum() > 60e9
    assert at(board["sm_active_ratio"], first.start, first.end).max() < 0.1


def test_the_scheduler_tells_of_the_job_twice() -> None:
    node = SimulatedNode(START)
    told = []
    for second in range(0, SCRIPT.seconds, 10):
        jobs, allocations, _ = node.scheduler.reconcile(START + second * 1000, {})
        told += [(one.state, len(allocations)) for one in jobs]
    assert told == [("running", 8), ("failed", 8)]
    assert node.scheduler.running == ()


def test_the_recording_ends() -> None:
    node = SimulatedNode(START)
    with pytest.raises(NothingToCollect):
        list(node.collectors[1].collect(START + SCRIPT.seconds * 1000))
