"""Slurm's control groups: named by SLUID, several slurmd, version one."""

from __future__ import annotations

from attributed_node import Node, cgroup_line, make_node
from fake_host import FakeHost

SLUID = "sEKNKTV3WPV500"


def test_a_sluid_becomes_the_number_that_the_environment_tells(node: Node) -> None:
    node.host.job_cgroup_v2(SLUID, [900])
    node.host.process(900, cgroup=cgroup_line(SLUID), environ={"SLURM_JOB_ID": "42"})
    node.tick((0, 900))
    job = node.job("42")
    assert (job.id, job.meta["sluid"]) == ("42", SLUID)
    assert set(node.gpus(job)) == {"GPU-0"}


def test_a_sluid_that_nobody_resolves_is_the_jobs_name(node: Node) -> None:
    node.host.job_cgroup_v2(SLUID, [900])
    node.host.process(900, cgroup=cgroup_line(SLUID))
    node.tick((0, 900))
    assert node.job(SLUID).id == SLUID


def test_the_prolog_ties_a_sluid_to_its_number(node: Node) -> None:
    node.prolog("42", 0, 1, sluid=SLUID)
    node.host.job_cgroup_v2(SLUID, [900])
    node.host.process(900, cgroup=cgroup_line(SLUID))
    node.tick((0, 900))
    assert [job.raw_id for job in node.jobs.values()] == ["42"]
    assert set(node.gpus(node.job("42"))) == {"GPU-0", "GPU-1"}


def test_several_slurmd_on_one_node(node: Node) -> None:
    for number, scope in ((42, "a_slurmstepd.scope"), (43, "b_slurmstepd.scope")):
        node.host.job_cgroup_v2(f"job_{number}", [900 + number], scope=scope)
        node.host.process(900 + number, cgroup=f"0::/system.slice/{scope}/job_{number}/step_0/user/task_0\n")
    node.tick((0, 942), (1, 943))
    assert {job.raw_id for job in node.jobs.values()} == {"42", "43"}


def test_cgroup_version_one(host: FakeHost) -> None:
    node = make_node(host)
    path = host.job_cgroup_v1(42, pids=[900], root="slurm_n1")
    host.process(900, cgroup=f"9:memory:{path}/step_0/task_0\n6:freezer:{path}/step_0\n")
    node.tick((0, 900))
    assert set(node.gpus(node.job("42"))) == {"GPU-0"}
    assert node.attribution.running[0].cgroup == path
