"""When a job began and ended on this node, and that each run is one row."""

from __future__ import annotations

import pytest
from attributed_node import FakeScontrol, Node, make_node, slurm_process
from fake_host import FakeHost


def test_the_epilog_gives_the_exact_end_and_the_exit_code(node: Node) -> None:
    hook = node.prolog("42", 0)
    node.tick()
    end_ms = node.now_ms + 400
    node.epilog(hook, code=3, end_ms=end_ms)
    node.tick()
    job = node.job("42")
    assert (job.end_ms, job.state, job.exit_code) == (end_ms, "failed", 3)
    assert {one.end_ms for one in node.allocations.values()} == {end_ms}
    assert not list(node.hooks.iterdir())
    assert not node.attribution.running
    assert not node.events


@pytest.mark.parametrize("seconds", [45, 49 * 3600, 31 * 86_400])
def test_jobs_of_any_length_keep_their_start_and_end(node: Node, seconds: int) -> None:
    hook = node.prolog("42", 0)
    node.tick()
    node.tick(seconds=seconds - 1)
    node.epilog(hook)
    node.tick()
    job = node.job("42")
    assert (job.start_ms, job.end_ms) == (hook.start_ms, hook.start_ms + seconds * 1000)


def test_jobs_that_are_over_leave_nothing_behind_in_memory(host: FakeHost) -> None:
    host.unified()
    node = make_node(host, scontrol=FakeScontrol(silent=True))
    for number in range(200):
        hook = node.prolog(str(number), number % 4, cluster="c1", start_exact=True)
        slurm_process(node, number, 1000 + number)
        node.tick((number % 4, 1000 + number))
        host.end(1000 + number)
        host.remove(f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{number}")
        node.epilog(hook)
        node.tick()
    node.tick(seconds=120)
    node.tick()
    assert len([job for job in node.jobs.values() if job.end_ms is not None]) == 200
    state = vars(node.attribution)
    assert [len(state[name]) for name in ("_runs", "_ended", "_events", "running")] == [0, 0, 0, 0]


def test_a_job_shorter_than_a_tick_is_recorded(node: Node) -> None:
    hook = node.prolog("42", 0)
    node.epilog(hook, end_ms=hook.start_ms + 300)
    node.tick()
    job = node.job("42")
    assert (job.start_ms, job.end_ms) == (hook.start_ms, hook.start_ms + 300)
    assert set(node.gpus(job)) == {"GPU-0"}


def test_two_jobs_back_to_back_within_one_tick_are_two(node: Node) -> None:
    first = node.prolog("42", 0)
    node.tick()
    node.epilog(first, end_ms=node.now_ms + 200)
    second = node.prolog("43", 0, start_ms=node.now_ms + 400)
    node.tick()
    before, after = node.job("42"), node.job("43")
    assert before.end_ms == first.start_ms + 1000 + 200
    assert (after.start_ms, after.end_ms) == (second.start_ms, None)
    assert node.gpus(before)["GPU-0"].end_ms is not None


def test_a_directory_that_nobody_removed_is_no_job(node: Node) -> None:
    node.host.job_cgroup_v2("job_42", [])
    node.tick()
    assert not node.jobs


def test_a_gap_between_two_steps_does_not_end_the_job(node: Node) -> None:
    slurm_process(node, 42, 900)
    node.tick((0, 900))
    node.host.end(900)
    node.host.remove("sys/fs/cgroup/system.slice/slurmstepd.scope/job_42")
    node.tick(seconds=10)
    slurm_process(node, 42, 901)
    node.tick((0, 901), seconds=15)
    node.tick((0, 901), seconds=20)
    assert node.job("42").end_ms is None


def test_a_driver_that_stops_listing_processes_ends_no_job(node: Node) -> None:
    node.host.process(900, cgroup="0::/\n", environ={"SLURM_JOB_ID": "42"})
    node.tick((0, 900))
    for _ in range(5):
        node.tick(seconds=60)
    assert node.job("42").end_ms is None
    node.host.end(900)
    node.tick(seconds=60)
    assert node.job("42").end_ms is not None
