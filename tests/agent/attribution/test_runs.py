"""The same number again: requeued, used anew, an array, a heterogeneous job."""

from __future__ import annotations

from attributed_node import Node, make_node, slurm_process
from fake_host import FakeHost


def test_a_requeued_job_is_a_new_run(node: Node) -> None:
    first = node.prolog("42", 0)
    node.tick()
    node.epilog(first, code=1)
    node.tick()
    second = node.prolog("42", 1)
    node.tick()
    runs = node.runs("42")
    assert [run.start_ms for run in runs] == [first.start_ms, second.start_ms]
    assert runs[0].key != runs[1].key
    assert set(node.gpus(runs[1])) == {"GPU-1"}


def test_a_requeue_while_the_agent_was_down_ends_the_first_run(node: Node) -> None:
    node.prolog("42", 0)
    second = node.prolog("42", 0, start_ms=node.now_ms + 120_000)
    node.tick(seconds=130)
    first, again = node.runs("42")
    assert first.end_ms == second.start_ms == again.start_ms
    assert again.end_ms is None


def test_a_restart_count_in_the_environment_tells_two_runs_apart(node: Node) -> None:
    slurm_process(node, 42, 900, SLURM_JOB_ID="42", SLURM_RESTART_COUNT="0")
    node.tick((0, 900))
    node.host.end(900)
    slurm_process(node, 42, 901, SLURM_JOB_ID="42", SLURM_RESTART_COUNT="1")
    node.tick((0, 901))
    assert [run.restart for run in node.runs("42")] == [0, 1]


def test_a_number_used_again_by_another_user_is_another_job(host: FakeHost) -> None:
    node = make_node(host)
    path = host.job_cgroup_v1(42, uid=1000, pids=[900])
    host.process(900, cgroup=f"9:memory:{path}/step_0\n")
    node.tick((0, 900))
    host.end(900)
    for controller in ("freezer", "memory", "cpuset", "cpu,cpuacct"):
        host.remove(f"sys/fs/cgroup/{controller}{path}")
    path = host.job_cgroup_v1(42, uid=2000, pids=[901])
    host.process(901, cgroup=f"9:memory:{path}/step_0\n")
    node.tick((1, 901), seconds=5)
    first, second = node.runs("42")
    assert first.end_ms is not None
    assert set(node.gpus(second)) == {"GPU-1"}


def test_the_same_number_years_later_has_another_key(node: Node) -> None:
    first = node.prolog("42", 0)
    node.epilog(first)
    node.tick()
    node.tick(seconds=3e7)
    node.prolog("42", 0, user="bob")
    node.tick()
    assert len({run.key for run in node.runs("42")}) == 2


def test_an_array_task_is_shown_as_people_write_it(node: Node) -> None:
    slurm_process(node, 3, 900, SLURM_JOB_ID="3", SLURM_ARRAY_JOB_ID="2", SLURM_ARRAY_TASK_ID="7")
    node.tick((0, 900))
    assert (node.job("3").id, node.job("3").raw_id) == ("2_7", "3")


def test_the_array_task_that_has_the_arrays_own_number_is_still_a_task(node: Node) -> None:
    slurm_process(node, 42, 900, SLURM_JOB_ID="42", SLURM_ARRAY_JOB_ID="42", SLURM_ARRAY_TASK_ID="10")
    node.tick((0, 900))
    assert node.job("42").id == "42_10"


def test_parts_of_a_heterogeneous_job_are_shown_with_their_offset(node: Node) -> None:
    groups = {"SLURM_JOB_ID_HET_GROUP_0": "42", "SLURM_JOB_ID_HET_GROUP_1": "43"}
    slurm_process(node, 43, 900, SLURM_JOB_ID="43", **groups)
    node.tick((0, 900))
    assert node.job("43").id == "42+1"
