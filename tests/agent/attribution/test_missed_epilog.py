"""Jobs whose end nobody told, and those that never came."""

from __future__ import annotations

from attributed_node import FakeScontrol, Node, make_node, restarted, slurm_process
from fake_host import FakeHost

from gpudiag.agent.attribution.facts import Facts


def test_a_missed_epilog_ends_the_job_when_its_cgroup_goes(node: Node) -> None:
    node.prolog("42", 0)
    slurm_process(node, 42, 900)
    node.tick((0, 900))
    last_seen_ms = node.now_ms
    node.host.end(900)
    node.host.remove("sys/fs/cgroup/system.slice/slurmstepd.scope/job_42")
    node.tick()
    assert node.job("42").end_ms is None  # a step may follow
    node.tick(seconds=30)
    job = node.job("42")
    assert (job.end_ms, job.state) == (last_seen_ms, "unknown")
    [event] = node.events
    assert (event.kind, event.detail["job"]) == ("epilog_missed", job.key)
    assert not list(node.hooks.iterdir())
    node.tick()
    assert len(node.jobs) == 1


def test_a_missed_epilog_ends_when_the_gpu_is_given_to_the_next_job(node: Node) -> None:
    node.prolog("42", 0, 1)
    node.tick()
    later = node.prolog("43", 1)
    node.tick()
    assert node.job("42").end_ms == later.start_ms
    assert node.job("43").end_ms is None
    assert [event.kind for event in node.events] == ["epilog_missed"]


SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"


def test_a_job_that_never_started_ends_where_its_prolog_was(node: Node) -> None:
    node.host.folder(f"{SCOPE}/system")
    node.prolog("42", 0)
    node.tick()
    began_ms = node.now_ms
    node.tick(seconds=599)
    assert node.job("42").end_ms is None
    node.tick()
    job = node.job("42")
    assert (job.end_ms, job.state) == (began_ms, "unknown")
    assert "no cgroup or process" in job.meta["end_reason"]
    [event] = node.events
    assert (event.kind, event.detail["reason"]) == ("epilog_missed", job.meta["end_reason"])
    assert not list(node.hooks.iterdir())


def test_a_job_that_came_and_went_while_the_agent_was_down_ends_when_the_agent_looked(node: Node) -> None:
    node.host.folder(f"{SCOPE}/system")
    hook = node.prolog("42", 0)
    node.tick(seconds=7200)
    looked_ms = node.now_ms
    for _ in range(11):
        node.tick(seconds=60)
    job = node.job("42")
    assert (job.start_ms, job.end_ms) == (hook.start_ms, looked_ms)


def test_a_restarted_agent_ends_such_a_job_with_its_last_sample(node: Node) -> None:
    node.host.folder(f"{SCOPE}/system")
    node.prolog("42", 0)
    node.tick()
    last_ms = node.now_ms
    again = restarted(node, last_ms)
    for _ in range(12):
        again.tick(seconds=60)
    assert again.job("42").end_ms == last_ms


def test_the_scheduler_may_keep_a_job_without_anything_of_it(host: FakeHost) -> None:
    host.unified()
    host.folder(f"{SCOPE}/system")
    start_ms = host.clock.now_ms()
    known = {"42": Facts(raw_id="42", start_ms=start_ms, state="running")}
    node = make_node(host, scontrol=FakeScontrol(known))
    node.prolog("42", 0)
    for _ in range(30):
        node.tick(seconds=60)
    assert node.job("42").end_ms is None


def test_without_cgroups_of_slurm_a_prolog_keeps_its_job(node: Node) -> None:
    node.prolog("42", 0)
    for _ in range(30):
        node.tick(seconds=60)
    assert node.job("42").end_ms is None
