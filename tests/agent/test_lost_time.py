from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.lost_time import LostTime
from gpudiag.agent.metrics import lost_time
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.sampler import Sampler
from gpudiag.storage.sample import Source
from gpudiag.storage.store import StoredFinding

GPU = Source("n1", "GPU-a")
KEY = "local/42/1767225600"


def finding(
    source: Source, lost: float | None, rule: str = "input/slow", job_key: str = KEY
) -> StoredFinding:
    return StoredFinding(rule, source, 1, None, "warning", job_key, {"lost_ratio": lost})


def test_a_finding_on_a_gpu_costs_its_share_of_that_gpu() -> None:
    lost = LostTime()
    lost.add([finding(GPU, 0.25)], {KEY: ("GPU-a", "GPU-b")}, 8.0)
    lost.add([finding(GPU, 0.5)], {KEY: ("GPU-a", "GPU-b")}, 2.0)
    assert lost.totals() == {("input/slow", "GPU-a"): 3.0}


@pytest.mark.parametrize("device", ["node", f"job:{KEY}"])
def test_one_on_the_job_or_its_node_costs_each_of_the_jobs_gpus(device: str) -> None:
    lost = LostTime()
    lost.add([finding(Source("n1", device), 0.5)], {KEY: ("GPU-a", "GPU-b")}, 2.0)
    assert lost.totals() == {("input/slow", "GPU-a"): 1.0, ("input/slow", "GPU-b"): 1.0}


def test_a_rule_that_names_no_loss_or_whose_job_is_over_is_absent_not_zero() -> None:
    lost = LostTime()
    lost.add([finding(GPU, None), StoredFinding("x/y", GPU, 1, None, "info")], {}, 10.0)
    lost.add([finding(Source("n1", "node"), 0.5, job_key="")], {}, 10.0)
    lost.add([finding(GPU, 0.5)], {"local/43/1": ("GPU-a",)}, 10.0)
    assert lost.totals() == {}


class JudgeThatFinds:
    open: Sequence[StoredFinding] = ()

    def observe(self, *_: object) -> Sequence[StoredFinding]:
        self.open = [finding(GPU, 0.5, job_key="")]
        return []


def test_the_agent_counts_from_tick_to_tick_while_the_finding_is_open(
    clock: ManualClock, memory_store: Any
) -> None:
    judge = JudgeThatFinds()
    sampler = Sampler([], Recorder(memory_store.open, "n1", clock), clock, "n1", judge=judge)
    assert sampler.tick().lost_seconds == {}
    for _ in range(3):
        clock.sleep(2)
        snapshot = sampler.tick()
    (family,) = lost_time(snapshot.lost_seconds)
    assert (family.type, family.name) == ("counter", "gpudiag_finding_lost_gpu_seconds")
    assert [(one.labels, one.value) for one in family.samples] == [
        ({"rule": "input/slow", "uuid": "GPU-a"}, 3.0)
    ]
