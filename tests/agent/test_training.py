"""What training processes say counts only from the job's own user, in bounds, and reaches the right series."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.collectors.training import MAXIMUM_BYTES, MESSAGES_WAITING, TrainingCollector, parse
from gpudiag.storage.job import Allocation, Event, Job
from gpudiag.storage.sample import Frame, Source

GPU = Source("n1", "GPU-1111-22")
KEY = "local/42/1000"


@dataclass(frozen=True)
class Here:
    job: Job = field(default_factory=lambda: Job(KEY, "42", 1_000_000))
    allocations: tuple[Allocation, ...] = (Allocation(KEY, GPU, 1_000_000, None, "hook"),)
    pids: tuple[int, ...] = (os.getpid(),)
    cgroup: str = ""
    root_pid: int | None = None


class Sender:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def raw(self, data: bytes) -> None:
        self.channel.sendto(data, str(self.path))

    def __call__(self, **changes: Any) -> None:
        self.raw(json.dumps(message(**changes)).encode())

    def once(self) -> None:
        self()
        self.channel.close()


def message(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "version": 1, "steps": 10, "timed_steps": 10, "step_seconds": 2.0, "step_seconds_max": 0.5,
        "wait_seconds": 0.5, "samples": 320, "loader": {"workers": 4, "pin_memory": True}, "marks": [],
        "devices": [], "seconds": 2.0, "rank": "", "pid": 1, "time": 0.0, "visible": "",
    }  # fmt: skip
    return {**content, **changes}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[TrainingCollector]:
    collector = TrainingCollector(tmp_path / "probe.sock", "n1", lambda: [Here()])
    yield collector
    collector.close()


@pytest.fixture
def send(collector: TrainingCollector, tmp_path: Path) -> Iterator[Sender]:
    sender = Sender(tmp_path / "probe.sock")
    yield sender
    sender.channel.close()


def frames(collector: TrainingCollector, now_ms: int = 5000) -> dict[str, dict[str, float]]:
    return {
        item.source.device: dict(item.values) for item in collector.collect(now_ms) if isinstance(item, Frame)
    }


def test_steps_become_series_of_the_job(collector: TrainingCollector, send: Sender) -> None:
    send()
    assert frames(collector) == {
        f"job:{KEY}": {
            "steps_per_second": 5.0, "samples_per_second": 160.0, "step_seconds": 0.2, "input_wait_ratio": 0.25,
        }
    }  # fmt: skip


def test_ranks_are_averaged_and_step_together(collector: TrainingCollector, send: Sender) -> None:
    send(rank="0", wait_seconds=0.0)
    send(rank="1", wait_seconds=1.0)
    values = frames(collector)[f"job:{KEY}"]
    assert values["input_wait_ratio"] == pytest.approx(0.25)
    assert values["steps_per_second"] == 5.0
    assert values["samples_per_second"] == 320.0


def test_allocator_statistics_go_to_the_device(collector: TrainingCollector, send: Sender) -> None:
    device = {"index": 0, "uuid": "GPU-1111-22", "allocated_bytes": 7, "reserved_bytes": 9, "allocator": 1}
    send(devices=[device], steps=0, timed_steps=0, step_seconds=0, samples=0)
    assert frames(collector) == {
        "GPU-1111-22": {"torch_allocated_bytes": 7, "torch_reserved_bytes": 9, "torch_allocator": 1}
    }


def test_a_device_of_another_job_is_refused(collector: TrainingCollector, send: Sender) -> None:
    send(devices=[{"index": 0, "uuid": "GPU-9999", "allocated_bytes": 7}])
    assert "GPU-9999" not in frames(collector)
    assert collector.rejected["not a device of the job"] == 1


def test_a_process_outside_every_job_is_refused(tmp_path: Path) -> None:
    collector = TrainingCollector(tmp_path / "probe.sock", "n1", lambda: [Here(pids=(2**22 + 1,))])
    Sender(tmp_path / "probe.sock").once()
    assert frames(collector) == {}
    assert collector.rejected == {}, "its job may only not be known yet"
    assert frames(collector, 10_000) == {}
    assert collector.rejected == {"not from a job's user": 1}
    assert frames(collector, 11_000) == {}
    assert collector.rejected == {"not from a job's user": 1}
    collector.close()


def test_marks_of_a_process_whose_job_becomes_known_a_little_later_are_kept(tmp_path: Path) -> None:
    here: list[Here] = []
    collector = TrainingCollector(tmp_path / "probe.sock", "n1", lambda: here)
    send = Sender(tmp_path / "probe.sock")
    send(marks=[["train_start", 4.5]], samples=1000)
    assert list(collector.collect(5000)) == []
    here.append(Here())
    send()
    found = list(collector.collect(6000))
    assert [(one.time_ms, one.detail) for one in found if isinstance(one, Event) and one.kind == "mark"] == [
        (4500, {"name": "train_start"})
    ]
    values = [item.values for item in found if isinstance(item, Frame)]
    assert [one["samples_per_second"] for one in values] == [160.0], "rates are those of now"
    assert collector.rejected == {}
    send.channel.close()
    collector.close()


def test_only_so_many_words_of_strangers_wait(tmp_path: Path) -> None:
    collector = TrainingCollector(tmp_path / "probe.sock", "n1", list)
    send = Sender(tmp_path / "probe.sock")
    for _ in range(MESSAGES_WAITING):
        send()
        send()
        assert list(collector.collect(5000)) == []
    assert collector.rejected == {"not from a job's user": MESSAGES_WAITING}
    send.channel.close()
    collector.close()


def test_the_process_that_run_started_and_one_in_the_jobs_cgroup_count(tmp_path: Path) -> None:
    stat = tmp_path / "proc" / str(os.getpid())
    stat.mkdir(parents=True)
    (stat / "stat").write_text(f"{os.getpid()} (python) S 1 0 0")
    (stat / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n")
    here: list[Here] = []
    collector = TrainingCollector(tmp_path / "probe.sock", "n1", lambda: here, root=tmp_path)
    sender = Sender(tmp_path / "probe.sock")
    cases = (
        (Here(pids=(), root_pid=os.getpid()), True),
        (Here(pids=(), cgroup="/system.slice/slurmstepd.scope/job_42"), True),
        (Here(pids=(), cgroup="/system.slice/slurmstepd.scope/job_4"), False),
    )
    for job, counts in cases:
        here[:] = [job]
        sender()
        assert bool(frames(collector)) is counts, job
    sender.channel.close()
    collector.close()


def test_another_user_is_refused(tmp_path: Path) -> None:
    stat = tmp_path / "proc" / str(os.getpid()) / "stat"
    stat.parent.mkdir(parents=True)
    stat.write_text(f"{os.getpid()} (python) S 1 0 0")
    os.chown(stat.parent, 12345, 12345) if os.getuid() == 0 else pytest.skip(
        "needs root to make another user's file"
    )
    collector = TrainingCollector(tmp_path / "probe.sock", "n1", lambda: [Here()], root=tmp_path)
    Sender(tmp_path / "probe.sock").once()
    assert frames(collector) == {}
    assert frames(collector, 10_000) == {}
    assert collector.rejected == {"not from a job's user": 1}
    collector.close()


def test_too_many_and_too_large_messages_are_refused(collector: TrainingCollector, send: Sender) -> None:
    send.raw(b"x" * (MAXIMUM_BYTES + 1))
    for _ in range(6):
        send()
    frames(collector)
    assert (
        collector.rejected == {"too large": 1, "too often": 1, "malformed": 0}
        or collector.rejected["too large"] == 1
    )
    assert collector.rejected["too often"] >= 1


def test_marks_of_the_first_rank_become_events(collector: TrainingCollector, send: Sender) -> None:
    send(rank="0", marks=[["checkpoint_start", 3.5]])
    send(rank="1", marks=[["checkpoint_start", 3.6]])
    events = [item for item in collector.collect(5000) if isinstance(item, Event)]
    assert [(event.kind, event.time_ms, event.detail) for event in events] == [
        ("mark", 3500, {"name": "checkpoint_start"}),
        ("loader_settings", 5000, {"workers": 4.0, "pin_memory": True}),
    ]


def test_unchanged_loader_settings_are_told_once(collector: TrainingCollector, send: Sender) -> None:
    for expected in (1, 0):
        send()
        assert sum(isinstance(item, Event) for item in collector.collect(5000)) == expected


@pytest.mark.parametrize(
    "change",
    [{"steps": -1}, {"steps": float("inf")}, {"steps": True}, {"version": 2}, {"marks": 3}, {"devices": [{}]},
     {"loader": []}, {"step_seconds": "1"}, {"seconds": None}],
)  # fmt: skip
def test_numbers_out_of_bounds_are_refused(change: dict[str, Any]) -> None:
    assert parse(json.dumps(message(**change)).encode()) is None


@given(
    st.binary(max_size=300) | st.text().map(lambda text: json.dumps({"version": 1, "steps": text}).encode())
)
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert parse(data) is None


def test_what_no_database_could_hold_is_refused_or_made_plain(
    collector: TrainingCollector, send: Sender
) -> None:
    send(marks=[["eval_start", 1e17], ["\ud800", 4.0], ["a\0b", 4.0]], loader={})
    events = [item for item in collector.collect(5000) if isinstance(item, Event)]
    assert [(event.time_ms, event.detail["name"].isprintable()) for event in events] == [
        (4000, True),
        (4000, True),
    ]
    assert collector.rejected["mark of another time"] == 1


def test_steps_that_took_no_time_are_no_error(collector: TrainingCollector, send: Sender) -> None:
    send(step_seconds=0, timed_steps=1, wait_seconds=0)
    values = frames(collector)[f"job:{KEY}"]
    assert values["step_seconds"] == 0
    assert "input_wait_ratio" not in values


def test_another_user_in_the_jobs_cgroup_is_refused(tmp_path: Path) -> None:
    own, other = tmp_path / "proc" / str(os.getpid()), tmp_path / "proc" / "77"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{folder.name} (python) S 1 0 0")
        (folder / "cgroup").write_text("0::/job_42/step_0\n")
    os.chown(other, 12345, 12345) if os.getuid() == 0 else pytest.skip(
        "needs root to make another user's file"
    )
    here = Here(pids=(77,), cgroup="/job_42")
    collector = TrainingCollector(tmp_path / "probe.sock", "n1", lambda: [here], root=tmp_path)
    Sender(tmp_path / "probe.sock").once()
    assert frames(collector) == {}
    collector.close()


def test_no_step_in_a_second_is_a_rate_of_zero_once_the_process_trains(
    collector: TrainingCollector, send: Sender
) -> None:
    nothing = {"steps": 0, "timed_steps": 0, "step_seconds": 0, "wait_seconds": 0, "samples": 0}
    send(**nothing, marks=[["train_start", 4.0]])
    assert frames(collector) == {}, "it has not begun to train"
    send(**nothing, stepped=True)
    assert frames(collector) == {f"job:{KEY}": {"steps_per_second": 0.0, "samples_per_second": 0.0}}


def test_long_steps_are_as_the_last_one_until_the_next_is_overdue(
    collector: TrainingCollector, send: Sender
) -> None:
    send(steps=1, timed_steps=1, step_seconds=4.0, wait_seconds=3.0, samples=8, seconds=1.0)
    assert frames(collector, 5000)[f"job:{KEY}"]["steps_per_second"] == 1.0
    lengths = []
    for now_ms in range(6000, 16_000, 1000):
        send(steps=0, timed_steps=0, step_seconds=0, wait_seconds=0, samples=0, seconds=1.0, stepped=True)
        values = frames(collector, now_ms)[f"job:{KEY}"]
        assert values["steps_per_second"] == 0.0
        assert "input_wait_ratio" not in values
        lengths.append(values.get("step_seconds"))
    assert lengths == [4.0] * 8 + [None] * 2


@pytest.mark.parametrize(("steady", "wait"), [(True, 0.9), (False, None)])
def test_a_wait_that_is_not_over_counts_as_it_goes_on(
    collector: TrainingCollector, send: Sender, steady: bool, wait: float | None
) -> None:
    send(
        steps=0, timed_steps=0, step_seconds=0, wait_seconds=0, samples=0, seconds=1.0,
        stepped=True, steady=steady, now_waited_seconds=0.9,
    )  # fmt: skip
    assert frames(collector)[f"job:{KEY}"].get("input_wait_ratio") == wait


def test_steps_that_end_tell_their_own_wait(collector: TrainingCollector, send: Sender) -> None:
    send(stepped=True, steady=True, now_waited_seconds=2.0)
    assert frames(collector)[f"job:{KEY}"]["input_wait_ratio"] == 0.25
