"""What the scheduler says when it is asked, and when it does not answer."""

from __future__ import annotations

import pytest
from attributed_node import SECOND, FakeScontrol, make_node, slurm_process
from fake_host import FakeHost

from gpudiag.agent.attribution.facts import Facts


def test_the_key_has_the_schedulers_start_so_that_all_nodes_agree(host: FakeHost) -> None:
    host.unified()
    start_ms = host.clock.now_ms() - 7 * SECOND
    known = Facts(
        raw_id="42", name="train", user="ada", start_ms=start_ms, state="running", devices=("minor:1",)
    )
    node = make_node(host, scontrol=FakeScontrol({"42": known}))
    slurm_process(node, 42, 900)
    node.tick()
    assert not node.jobs  # no key yet: it would be another one than on the other nodes
    node.tick()
    job = node.job("42")
    assert job.key == f"c1/42/{start_ms // 1000}"
    assert (job.name, job.user, job.start_ms) == ("train", "ada", start_ms)
    assert node.gpus(job)["GPU-1"].known_from == "scheduler"
    assert node.gpus(job)["GPU-1"].start_ms == start_ms


def test_a_silent_scheduler_delays_a_job_but_loses_nothing(host: FakeHost) -> None:
    host.unified()
    scontrol = FakeScontrol(silent=True)
    node = make_node(host, scontrol=scontrol)
    slurm_process(node, 42, 900)
    first_ms = node.now_ms
    node.tick((0, 900))
    assert not node.jobs
    node.tick((0, 900), seconds=31)
    assert abs(node.job("42").start_ms - first_ms) <= SECOND
    assert node.gpus(node.job("42"))["GPU-0"].start_ms == node.job("42").start_ms


def test_the_scheduler_is_asked_once_per_job_not_per_tick(host: FakeHost) -> None:
    host.unified()
    scontrol = FakeScontrol({"42": Facts(raw_id="42", start_ms=host.clock.now_ms(), state="running")})
    node = make_node(host, scontrol=scontrol)
    slurm_process(node, 42, 900)
    for _ in range(300):
        node.tick((0, 900))
    assert scontrol.asked == ["42"]


def test_the_final_state_comes_from_the_scheduler(host: FakeHost) -> None:
    host.unified()
    start_ms = host.clock.now_ms()
    scontrol = FakeScontrol({"42": Facts(raw_id="42", start_ms=start_ms, state="running")})
    node = make_node(host, scontrol=scontrol)
    slurm_process(node, 42, 900)
    node.tick((0, 900))
    node.tick((0, 900))
    scontrol.known["42"] = Facts(raw_id="42", start_ms=start_ms, state="oom", exit_code=137)
    node.host.end(900)
    node.host.remove("sys/fs/cgroup/system.slice/slurmstepd.scope/job_42")
    for _ in range(5):
        node.tick(seconds=15)
    job = node.job("42")
    assert (job.state, job.exit_code) == ("oom", 137)
    assert job.end_ms is not None


def test_an_answer_about_the_next_run_is_not_the_end_of_this_one(host: FakeHost) -> None:
    host.unified()
    start_ms = host.clock.now_ms()
    scontrol = FakeScontrol({"42": Facts(raw_id="42", start_ms=start_ms, state="running")})
    node = make_node(host, scontrol=scontrol)
    hook = node.prolog("42", 0)
    node.tick()
    node.tick()
    scontrol.known["42"] = Facts(raw_id="42", start_ms=start_ms + 200 * SECOND, state="failed", exit_code=9)
    node.epilog(hook, code=0)
    for _ in range(10):
        node.tick(seconds=10)
    assert (node.job("42").state, node.job("42").exit_code) == ("completed", 0)


@pytest.mark.parametrize(("code", "state"), [(0, "cancelled"), (1, "failed")])
def test_a_run_taken_off_by_a_requeue_is_not_called_completed(host: FakeHost, code: int, state: str) -> None:
    host.unified()
    start_ms = host.clock.now_ms()
    scontrol = FakeScontrol({"42": Facts(raw_id="42", start_ms=start_ms, state="running", restart=0)})
    node = make_node(host, scontrol=scontrol)
    hook = node.prolog("42", 0)
    for _ in range(3):
        node.tick()
    scontrol.known["42"] = Facts(raw_id="42", start_ms=start_ms + 120 * SECOND, restart=1)
    node.epilog(hook, code=code)
    for _ in range(3):
        node.tick()
    job = node.job("42")
    assert (job.state, job.exit_code, job.restart) == (state, code or None, 0)
    assert job.meta["scheduler_state"] == "REQUEUED"


def test_an_interactive_allocation_without_any_process_lasts_while_the_scheduler_says_so(
    host: FakeHost,
) -> None:
    host.unified()
    start_ms = host.clock.now_ms()
    scontrol = FakeScontrol({"42": Facts(raw_id="42", start_ms=start_ms, state="running")})
    node = make_node(host, scontrol=scontrol)
    node.prolog("42", 0)
    for _ in range(20):
        node.tick(seconds=60)
    assert node.job("42").end_ms is None
    scontrol.known["42"] = Facts(raw_id="42", start_ms=start_ms, state="cancelled")
    for _ in range(4):
        node.tick(seconds=61)
    assert node.job("42").state == "cancelled"
