"""Whatever a process sends, in whatever name: no tick fails, every row can be stored, and everything stays bounded."""

from __future__ import annotations

import array
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudiag.agent.clock import SystemClock
from gpudiag.agent.collectors import training
from gpudiag.agent.collectors.training import MARKS_PER_TICK, MAXIMUM_BYTES, TrainingCollector
from gpudiag.agent.runner import Runner
from gpudiag.storage.job import Allocation, Event, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.sqlstore import SqlStore

NODE = "n1"
KEYS = ("local/42/1000", "local/43/1000")
GPUS = ("GPU-1111-22", "GPU-3333-44", "GPU-shared")
START_MS = 1_800_000_000_000


@dataclass(frozen=True)
class Here:
    job: Job
    allocations: tuple[Allocation, ...]
    pids: tuple[int, ...]
    cgroup: str = ""
    root_pid: int | None = None


def here(index: int) -> Here:
    """Job 0 has two GPUs and job 1 one; one of each is the same."""
    uuids = (GPUS[index], "GPU-shared")
    allocations = tuple(Allocation(KEYS[index], Source(NODE, uuid), START_MS, None, "hook") for uuid in uuids)
    return Here(Job(KEYS[index], str(42 + index), START_MS), allocations, (1000 + index,))


JOBS = [here(0), here(1)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    opened = open_store(f"sqlite:///{tmp_path_factory.mktemp('hostile')}/gpudiag.db", node=NODE, agent=True)
    yield opened
    opened.close()


TICKS = count(START_MS, 1000)


@contextmanager
def collecting(
    senders: Iterator[tuple[int, int] | None] | None = None,
) -> Iterator[tuple[TrainingCollector, Callable[[bytes], None]]]:
    """A collector and what sends to it; `senders` are what the kernel says of the sender of each message."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        proc = Path(folder) / "proc"
        for pid in (1000, 1001):
            (proc / str(pid)).mkdir(parents=True)
            (proc / str(pid) / "stat").write_bytes(b"%d (py) thon) S 1 0 0" % pid)
        if senders is not None:
            patch.setattr(training, "_credentials", lambda _: next(senders))
        path = Path(folder) / "probe.sock"
        collector = TrainingCollector(path, NODE, lambda: JOBS, root=Path(folder))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)

            def send(data: bytes) -> None:
                with suppress(BlockingIOError):  # a full queue is the sender's trouble
                    channel.sendto(data, str(path))

            yield collector, send
        collector.close()


def tick(collector: TrainingCollector, store: SqlStore) -> tuple[list[Frame], list[Event]]:
    """One tick as the agent does it, stored; nothing may have failed."""
    runner = Runner(collector, SystemClock())
    reading = runner.run(next(TICKS))
    assert runner.outcome.error == ""
    frames, events = list(reading.frames), list(reading.events)
    store.append(frames)
    store.put_events(events)
    return frames, events


NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, 1, -1, 1e18, 10**400, -(10**400), 2**63, 1e308, 5e-324, True, None, "5", [], {}])
)  # fmt: skip
TEXTS = st.text(max_size=40) | st.sampled_from(
    [
        "",
        "0",
        "\ud800",
        "a\0b",
        "GPU-1111-22",
        "GPU-shared",
        "GPU-other",
        "x" * 500,
        "'; drop table event; --",
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)  # fmt: skip
DEVICE = st.fixed_dictionaries(
    {"uuid": TEXTS},
    optional=dict.fromkeys(
        (
            "allocated_bytes",
            "reserved_bytes",
            "inactive_split_bytes",
            "alloc_retries",
            "ooms",
            "allocator",
            "index",
        ),
        NUMBERS,
    ),
)
MARK = st.tuples(TEXTS, st.integers(-(10**4), 10**4).map(lambda off: START_MS / 1000 + off) | NUMBERS)
GOOD = {
    "version": 1, "steps": 10, "timed_steps": 10, "step_seconds": 2.0, "wait_seconds": 0.5, "samples": 320, "seconds": 2.0, "rank": "0", "loader": {},
    "marks": [], "devices": [],
}  # fmt: skip
ALMOST = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("steps", "timed_steps", "step_seconds", "wait_seconds", "samples", "seconds"), NUMBERS),
        "rank": TEXTS, "marks": st.lists(MARK, max_size=6) | ANYTHING, "devices": st.lists(DEVICE, max_size=4) | ANYTHING,
        "loader": st.dictionaries(TEXTS, NUMBERS, max_size=4) | ANYTHING, "version": st.just(1) | ANYTHING,
    },
).map(lambda changes: json.dumps({**GOOD, **changes}).encode())  # fmt: skip
DATAGRAMS = st.one_of(
    ALMOST,
    ANYTHING.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=200),
    st.just(b"[" * 8000),
    st.just(b""),
)
SENDERS = st.none() | st.tuples(
    st.sampled_from([1000, 1001, 1, 0, -1, 2**31 - 1]), st.just(os.getuid()) | st.integers(0, 2**31 - 1)
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(DATAGRAMS, SENDERS), max_size=9))
def test_any_datagrams_of_any_senders_fail_no_tick_and_are_stored(
    store: SqlStore, sent: list[tuple[bytes, tuple[int, int] | None]]
) -> None:
    with collecting(iter([sender for _, sender in sent])) as (collector, send):
        for data, _ in sent:
            send(data)
        frames, events = tick(collector, store)
    for frame in frames:
        assert frame.source.node == NODE
        assert frame.source.device in (*GPUS, *(f"job:{key}" for key in KEYS))
        assert all(0 <= value < 1e24 for value in frame.values.values())
    assert len(events) <= 2 * (MARKS_PER_TICK + 1)
    assert all(len(name) <= 32 for event in events for name in event.detail)
    assert sum(collector.rejected.values()) <= len(sent) * (64 + 64 + 1)


@given(st.binary(min_size=1, max_size=15), st.binary(max_size=40))
@settings(max_examples=50, deadline=None)
def test_a_process_may_have_any_name_and_any_cgroup(name: bytes, group: bytes) -> None:
    with collecting(iter([(1001, os.getuid())])) as (collector, send):
        proc = collector._proc / "1001"
        (proc / "stat").write_bytes(b"1001 (" + name + b") S 1 0 0")
        (proc / "cgroup").write_bytes(b"0::/" + group.replace(b"\n", b"") + b"\n")
        send(json.dumps(GOOD).encode())
        [frame] = [item for item in collector.collect(START_MS) if isinstance(item, Frame)]
    assert frame.source.device == f"job:{KEYS[1]}"


@pytest.mark.parametrize(
    "stat", [b"", b"1001", b"1001 (x", b"1001 (x)", b"1001 (x) S", b"1001 (x) S y", b"\xff" * 50]
)
def test_a_garbled_process_is_nobodys(stat: bytes) -> None:
    with collecting(iter([(77, os.getuid())])) as (collector, send):
        (collector._proc / "77").mkdir()
        (collector._proc / "77" / "stat").write_bytes(stat)
        send(json.dumps(GOOD).encode())
        assert list(collector.collect(START_MS)) == []
        assert list(collector.collect(START_MS + 5000)) == []
    assert collector.rejected == {"not from a job's user": 1}


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_cgroups_name_cannot_pretend_to_be_another_cgroup(separator: str) -> None:
    with collecting(iter([(77, os.getuid())])) as (collector, send):
        collector._jobs = lambda: [Here(JOBS[0].job, JOBS[0].allocations, (), cgroup="/slurm/job_42")]
        (collector._proc / "77").mkdir()
        (collector._proc / "77" / "stat").write_bytes(b"77 (x) S 1 0 0")
        (collector._proc / "77" / "cgroup").write_text(f"0::/user.slice/x{separator}0::/slurm/job_42\n")
        send(json.dumps(GOOD).encode())
        assert list(collector.collect(START_MS)) == []


def test_marks_of_a_flood_are_bounded_and_counted(store: SqlStore) -> None:
    marks = [["step", START_MS / 1000]] * 64
    with collecting(iter([(1000, os.getuid())] * 5 + [(1001, os.getuid())] * 5)) as (collector, send):
        for _ in range(10):
            send(json.dumps({**GOOD, "marks": marks, "loader": {"workers": _}}).encode())
        _, events = tick(collector, store)
    kinds = [event.kind for event in events]
    assert kinds.count("mark") == 2 * MARKS_PER_TICK
    assert kinds.count("loader_settings") == 2
    assert collector.rejected["too many marks"] == 2 * (5 * 64 - MARKS_PER_TICK)


def test_a_flood_of_datagrams_does_not_hold_the_tick(store: SqlStore) -> None:
    with collecting(iter(lambda: (1000, os.getuid()), None)) as (collector, send):
        for _ in range(5000):
            send(b"x" * 1000)
        tick(collector, store)
        assert sum(collector.rejected.values()) <= training.MESSAGES_PER_TICK


def test_file_descriptors_that_are_sent_along_are_not_kept(tmp_path: Path) -> None:
    with (
        collecting() as (collector, _),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel,
        (tmp_path / "file").open("wb") as other,
    ):
        descriptors = array.array("i", [other.fileno()] * 20)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            channel.sendmsg(
                [json.dumps(GOOD).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)],
                0,
                str(collector._path),
            )
        list(collector.collect(START_MS))
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_datagram_of_the_largest_size_is_read_and_one_byte_more_is_not() -> None:
    padded = json.dumps({**GOOD, "more": ""}).encode()
    room = MAXIMUM_BYTES - len(padded)
    for extra, expected in ((0, 1), (1, 0)):
        with collecting(iter([(1000, os.getuid())])) as (collector, send):
            send(json.dumps({**GOOD, "more": "x" * (room + extra)}).encode())
            assert len([item for item in collector.collect(START_MS) if isinstance(item, Frame)]) == expected
