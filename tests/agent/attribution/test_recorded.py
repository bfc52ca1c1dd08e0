"""Commands of `gpudiag run`, and who may write hook files."""

from __future__ import annotations

import os

import pytest
from attributed_node import SECOND, Node, make_node, recorded
from fake_host import FakeHost


def test_a_recorded_command_has_the_gpus_that_it_could_see(node: Node) -> None:
    recorded(node, 700, ("index:1", "index:2"))
    node.tick()
    job = node.job("42")
    assert set(node.gpus(job)) == {"GPU-1", "GPU-2"}
    assert job.meta["kind"] == "run"
    assert node.attribution.running[0].root_pid == 700


def test_its_gpu_processes_are_found_through_their_ancestors(node: Node) -> None:
    recorded(node, 700, ("index:0",))
    node.host.process(701, 700)
    node.host.process(702, 701)
    node.tick((0, 702))
    assert node.attribution.running[0].pids == (702,)


def test_positions_counted_inside_a_container_give_way_to_the_processes(node: Node) -> None:
    recorded(node, 700, ("index:0",))
    node.tick()
    node.host.process(701, 700)
    node.tick((3, 701))
    assert set(node.gpus(node.job("42"))) == {"GPU-3"}


def test_a_killed_recorder_ends_its_job_where_its_process_was_last_seen(node: Node) -> None:
    recorded(node, 700, ("index:0",))
    node.tick()
    last_seen_ms = node.now_ms
    node.host.end(700)
    for _ in range(5):
        node.tick()
    assert node.job("42").end_ms == last_seen_ms
    assert not list(node.hooks.iterdir())


def test_a_tick_between_the_end_of_a_command_and_its_recorders_word_keeps_the_exit_code(node: Node) -> None:
    hook = recorded(node, 700, ("index:0",))
    node.tick()
    node.host.end(700)
    node.tick()
    node.epilog(hook, code=3)
    node.tick()
    job = node.job("42")
    assert (job.end_ms, job.exit_code, job.state) == (node.now_ms - SECOND, 3, "failed")
    assert not list(node.hooks.iterdir())


def test_a_recorder_that_is_very_late_is_still_heard(node: Node) -> None:
    hook = recorded(node, 700, ("index:0",))
    node.tick()
    node.host.end(700)
    node.tick(seconds=60)
    assert node.job("42").exit_code is None
    node.epilog(hook, code=3)  # the file is written before the agent reads the directory again
    node.tick()
    assert node.job("42").exit_code == 3
    assert not list(node.hooks.iterdir())


def test_one_id_may_be_recorded_twice_at_the_same_time(node: Node) -> None:
    recorded(node, 700, ("index:0",))
    node.host.clock.sleep(2)
    recorded(node, 800, ("index:1",))
    node.tick()
    assert [run.end_ms for run in node.runs("42")] == [None, None]


def test_another_user_may_not_speak_for_the_scheduler(host: FakeHost) -> None:
    node = make_node(host, trusted_uids=(os.getuid() + 1,))
    node.prolog("42", 0)
    node.tick()
    assert not node.jobs


def test_anybody_may_record_his_own_command(host: FakeHost) -> None:
    node = make_node(host, trusted_uids=(os.getuid() + 1,))
    recorded(node, 700, ("index:0",))
    node.tick()
    assert set(node.gpus(node.job("42"))) == {"GPU-0"}


def test_a_broken_hook_file_is_ignored_and_named(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.host.write("run/jobs.d/a.json", "{")
    node.host.write(
        "run/jobs.d/b.json", '{"gpudiag_hook": 1, "kind": "slurm", "raw_id": "9", "start_ms": "x"}'
    )
    node.prolog("42", 0)
    node.tick()
    node.tick()
    assert [job.raw_id for job in node.jobs.values()] == ["42"]
    assert len([record for record in caplog.records if "hook file" in record.getMessage()]) == 2
