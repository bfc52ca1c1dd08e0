"""What a new agent makes of the jobs that the one before had."""

from __future__ import annotations

from attributed_node import Node, recorded, restarted, slurm_process


def test_a_job_survives_a_restart_of_the_agent_with_its_key(node: Node) -> None:
    slurm_process(node, 42, 900)
    node.tick((0, 900))
    key = node.job("42").key
    again = restarted(node, node.now_ms)
    again.tick((0, 900), seconds=300)
    assert again.job("42").key == key
    assert len(again.gpus(again.job("42"))) == 1


def test_a_job_that_ended_while_the_agent_was_down_ends_with_its_last_sample(node: Node) -> None:
    slurm_process(node, 42, 900)
    node.tick((0, 900))
    last_ms = node.now_ms
    node.host.end(900)
    node.host.remove("sys/fs/cgroup/system.slice/slurmstepd.scope/job_42")
    again = restarted(node, last_ms)
    again.tick(seconds=3600)
    assert again.job("42").end_ms == last_ms
    assert {one.end_ms for one in again.allocations.values()} == {last_ms}


def test_a_missed_epilog_while_the_agent_was_down_ends_the_job_too(node: Node) -> None:
    node.prolog("42", 0)
    slurm_process(node, 42, 900)
    node.tick((0, 900))
    last_ms = node.now_ms
    node.host.end(900)
    node.host.remove("sys/fs/cgroup/system.slice/slurmstepd.scope/job_42")
    again = restarted(node, last_ms)
    again.tick(seconds=3600)
    again.tick()
    assert again.job("42").end_ms == last_ms


def test_an_epilog_while_the_agent_was_down_gives_the_exact_end(node: Node) -> None:
    hook = node.prolog("42", 0)
    node.tick()
    node.epilog(hook, end_ms=node.now_ms + 5000)
    again = restarted(node, node.now_ms)
    again.tick(seconds=3600)
    assert again.job("42").end_ms == hook.start_ms + 6000


def test_a_recorded_command_survives_a_restart_of_the_agent(node: Node) -> None:
    recorded(node, 700, ("index:0",))
    node.tick()
    again = restarted(node, node.now_ms)
    again.tick(seconds=60)
    assert again.job("42").end_ms is None
    assert len(again.jobs) == 1
