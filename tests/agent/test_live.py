"""The live judge: how often it looks must not change what it finds."""

from __future__ import annotations

import pytest

from gpudiag.agent.live import LiveJudge
from gpudiag.agent.runner import Runner
from gpudiag.agent.simulation.node import NODE_NAME, SimulatedNode
from gpudiag.agent.simulation.script import Script, Stretch
from gpudiag.rules.loader import builtin
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Source

START = 1_772_528_340_000
SHORT = Script(
    length=2400, leak_from=1700, compile_from=100, train_from=300, loader_stall=Stretch(400, 1500), crash_at=2100, steps_up=((1600, 1.0),) * 3
)  # fmt: skip


def lived(every_ms: int) -> dict[tuple[str, Source, int], tuple[int | None, str]]:
    """Findings as they were last told, by rule, source and begin."""
    node = SimulatedNode(START, SHORT)
    judge = LiveJudge(builtin(), NODE_NAME, every_ms)
    runners = [Runner(collector, node.clock) for collector in node.collectors]
    devices: dict[Source, Device] = {}
    told: dict[tuple[str, Source, int], tuple[int | None, str]] = {}
    while node.clock.monotonic() < SHORT.seconds:
        now_ms = node.clock.now_ms()
        readings = [runner.run(now_ms) for runner in runners]
        devices.update((device.source, device) for reading in readings for device in reading.devices)
        node.scheduler.reconcile(now_ms, devices)
        frames = [frame for reading in readings for frame in reading.frames]
        for one in judge.observe(now_ms, frames, (), node.scheduler.running, devices):
            told[one.rule, one.source, one.start_ms] = one.end_ms, one.severity
        node.clock.sleep(5.0)
    return told


@pytest.fixture(scope="module")
def each_ten_seconds() -> dict[tuple[str, Source, int], tuple[int | None, str]]:
    return lived(10_000)


def test_the_stall_is_found_live_and_over_when_the_job_is(
    each_ten_seconds: dict[tuple[str, Source, int], tuple[int | None, str]],
) -> None:
    assert any(rule == "input/cpu-bound-loader" for rule, _, _ in each_ten_seconds)
    assert all(end_ms is not None for end_ms, _ in each_ten_seconds.values())


@pytest.mark.parametrize("every_ms", [60_000, 300_000])
def test_judging_several_points_at_once_gives_the_same_findings(
    each_ten_seconds: dict[tuple[str, Source, int], tuple[int | None, str]], every_ms: int
) -> None:
    assert lived(every_ms) == each_ten_seconds
