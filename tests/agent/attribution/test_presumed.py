"""Jobs of which only `gpudiag job start` told: when their end may be presumed, and that a job that runs never ends."""

from __future__ import annotations

import pytest
from attributed_node import SECOND, Node, make_node, restarted
from fake_host import FakeHost

from gpudiag.agent.attribution.presumed import GIVEN_AWAY, SILENT

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BOOT = "proc/sys/kernel/random/boot_id"


@pytest.fixture
def node(host: FakeHost) -> Node:
    host.unified()
    return make_node(host, silence_ms=HOUR * SECOND)


def quiet(node: Node, seconds: int, step: int = 60) -> None:
    """Time in which the driver says of every GPU that nothing uses it."""
    for _ in range(seconds // step):
        node.tick(seconds=step, blind=False)


# -- the node was started anew -------------------------------------------------------------------------------------


def booted(host: FakeHost, boot: str) -> None:
    host.write(BOOT, f"{boot}\n")


@pytest.mark.parametrize("kind", ["start", "prolog"])
def test_a_job_from_before_the_boot_ends_with_the_last_sample(host: FakeHost, kind: str) -> None:
    host.unified()
    booted(host, "boot-1")
    node = make_node(host)
    getattr(node, kind)("42", 0, boot_id="boot-1")
    node.tick()
    last_ms = node.now_ms
    booted(host, "boot-2")
    again = restarted(node, last_ms)
    again.tick(seconds=600)
    job = again.job("42")
    assert (job.end_ms, job.state) == (last_ms, "unknown")
    assert "started anew" in job.meta["end_reason"]
    assert [event.kind for event in again.events] == ["epilog_missed"]
    assert not list(node.hooks.iterdir())


def test_a_job_from_before_the_boot_that_nobody_saw_has_no_time_charged(host: FakeHost) -> None:
    booted(host, "boot-2")
    node = make_node(host)
    hook = node.start("42", 0, boot_id="boot-1")
    node.tick(seconds=3600)
    assert (node.job("42").start_ms, node.job("42").end_ms) == (hook.start_ms, hook.start_ms)


def test_its_told_end_counts_even_after_the_boot(host: FakeHost) -> None:
    booted(host, "boot-1")
    node = make_node(host)
    hook = node.start("42", 0, boot_id="boot-1")
    node.tick()
    node.epilog(hook, end_ms=node.now_ms + 9 * SECOND)
    booted(host, "boot-2")
    again = restarted(node, node.now_ms)
    again.tick(seconds=600)
    assert (again.job("42").end_ms, again.job("42").state) == (hook.start_ms + 10 * SECOND, "completed")


def test_a_restart_of_the_agent_alone_ends_nothing(host: FakeHost) -> None:
    booted(host, "boot-1")
    node = make_node(host)
    node.start("a/b c", 0, boot_id="boot-1")
    node.tick()
    again = restarted(node, node.now_ms)
    again.tick(seconds=600)
    again.tick(seconds=600)
    assert again.job("a/b c").end_ms is None


# -- silence -------------------------------------------------------------------------------------------------------


def test_a_job_whose_gpus_nothing_used_for_a_week_ends_where_something_did(host: FakeHost) -> None:
    node = make_node(host)
    node.start("42", 0)
    node.tick(seconds=60, busy=[0], blind=False)
    last_ms = node.now_ms
    quiet(node, 7 * DAY - 60)
    assert node.job("42").end_ms is None
    quiet(node, 60)
    job = node.job("42")
    assert (job.end_ms, job.state, job.meta["end_reason"]) == (last_ms, "unknown", SILENT)
    assert node.attribution.running == ()
    assert node.gpus(job)["GPU-0"].end_ms == last_ms
    [event] = node.events
    assert (event.kind, event.detail["job"], event.detail["presumed"]) == ("epilog_missed", job.key, True)


@pytest.mark.parametrize("sign", ["process", "work"])
def test_any_use_of_any_of_its_gpus_in_time_keeps_it(node: Node, sign: str) -> None:
    node.start("42", 0, 1)
    quiet(node, HOUR - 600)
    if sign == "process":
        node.tick((1, 900), blind=False)
    else:
        node.tick(busy=[1], blind=False)
    quiet(node, HOUR - 600)
    assert node.job("42").end_ms is None


def test_what_the_driver_does_not_say_is_not_silence(node: Node) -> None:
    node.start("42", 0)
    for _ in range(30):
        node.tick(seconds=DAY)
    assert node.job("42").end_ms is None


def test_time_asleep_is_not_silence(node: Node) -> None:
    node.start("42", 0)
    node.tick(blind=False)
    node.host.clock.suspend(30 * DAY)
    quiet(node, 600)
    assert node.job("42").end_ms is None


def test_a_job_without_gpus_has_nothing_that_could_be_silent(node: Node) -> None:
    node.start("42")
    quiet(node, 2 * HOUR)
    assert node.job("42").end_ms is None


def test_a_site_may_keep_such_jobs_for_ever(host: FakeHost) -> None:
    node = make_node(host, silence_ms=0)
    node.start("42", 0)
    quiet(node, 8 * DAY)
    assert node.job("42").end_ms is None


def test_a_presumed_end_is_corrected_when_it_is_told(node: Node) -> None:
    hook = node.start("42", 0)
    quiet(node, HOUR + 120)
    assert node.job("42").meta["end_presumed"]
    node.epilog(hook, code=3)
    told_ms = node.now_ms
    node.tick()
    job = node.job("42")
    assert (job.end_ms, job.exit_code, job.state) == (told_ms, 3, "failed")
    assert node.gpus(job)["GPU-0"].end_ms == told_ms
    assert "end_presumed" not in job.meta
    assert "end_reason" not in job.meta
    assert not list(node.hooks.iterdir())


def test_a_presumed_end_is_taken_back_when_its_gpu_works_again(node: Node) -> None:
    node.start("42", 0)
    quiet(node, HOUR + 120)
    node.tick(busy=[0], blind=False)
    job = node.job("42")
    assert (job.end_ms, job.state) == (None, "running")
    assert "end_presumed" not in job.meta
    assert [one.job.key for one in node.attribution.running] == [job.key]
    assert node.gpus(job)["GPU-0"].end_ms is None


def test_work_of_the_gpus_next_job_is_no_sign_of_it(node: Node) -> None:
    node.start("42", 0)
    quiet(node, HOUR + 120)
    end_ms = node.job("42").end_ms
    node.start("43", 0)
    for _ in range(3):
        node.tick((0, 900), busy=[0], blind=False)
    assert node.job("42").end_ms == end_ms
    assert node.job("43").end_ms is None


def test_a_restarted_agent_knows_what_was_presumed(node: Node) -> None:
    hook = node.start("42", 0)
    quiet(node, HOUR + 120)
    end_ms = node.job("42").end_ms
    again = restarted(node, node.now_ms)
    quiet(again, 600)
    assert again.job("42").end_ms == end_ms
    again.epilog(hook)
    again.tick()
    assert again.job("42").end_ms == again.now_ms - SECOND


def test_what_was_presumed_is_forgotten_in_the_end(node: Node) -> None:
    node.start("42", 0)
    quiet(node, HOUR + 120)
    end_ms = node.job("42").end_ms
    for _ in range(31):
        node.tick(seconds=DAY)
    assert node.job("42").end_ms == end_ms
    assert not list(node.hooks.iterdir())
    assert not node.attribution._runs


# -- the next job has its GPU --------------------------------------------------------------------------------------


def test_a_job_ends_when_its_gpu_is_given_to_the_next(node: Node) -> None:
    node.start("42", 0, 1)
    node.tick((0, 900), blind=False)
    node.host.clock.sleep(60)
    following = node.start("43", 1)
    node.host.process(901)
    for _ in range(3):
        node.tick((1, 901), blind=False)
    job = node.job("42")
    assert (job.end_ms, job.meta["end_reason"]) == (following.start_ms, GIVEN_AWAY)
    assert node.job("43").end_ms is None


def test_a_process_from_before_keeps_the_job_that_shares_its_gpu(node: Node) -> None:
    node.start("42", 0)
    node.host.process(900)
    node.tick((0, 900), blind=False)
    node.host.clock.sleep(60)
    node.start("43", 0)
    for _ in range(3):
        node.tick((0, 900), blind=False)
    assert [node.job("42").end_ms, node.job("43").end_ms] == [None, None]


def test_a_process_that_cannot_be_looked_at_may_be_from_before(node: Node) -> None:
    node.start("42", 0)
    node.tick(blind=False)
    node.start("43", 0)
    for _ in range(3):
        node.tick((0, 999), blind=False)  # of another pid namespace
    assert node.job("42").end_ms is None


def test_nothing_is_presumed_of_a_gpu_that_cannot_be_read(node: Node) -> None:
    node.start("42", 0)
    node.tick()
    node.start("43", 0)
    for _ in range(3):
        node.tick()
    assert node.job("42").end_ms is None


def test_other_gpus_given_away_say_nothing(node: Node) -> None:
    node.start("42", 0)
    node.tick(blind=False)
    node.start("43", 1)
    for _ in range(3):
        node.tick(blind=False)
    assert node.job("42").end_ms is None


def test_an_epilog_long_after_shows_that_jobs_share_gpus_here(node: Node) -> None:
    first = node.start("42", 0)
    node.tick(blind=False)
    node.host.clock.sleep(60)
    node.start("43", 0)
    quiet(node, 600)
    assert node.job("42").meta["end_reason"] == GIVEN_AWAY
    node.epilog(first)
    node.tick(blind=False)
    assert node.job("42").end_ms == node.now_ms - SECOND
    node.start("44", 0)
    quiet(node, 600)
    assert [node.job("43").end_ms, node.job("44").end_ms] == [None, None]
