from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.recorder import Recorder
from gpudiag.errors import CorruptStoreError, StoreError
from gpudiag.storage.job import Allocation, Event, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding

NODE = Source("n1", "node")


def frame(clock: ManualClock, value: float = 0.5) -> Frame:
    return Frame(NODE, clock.now_ms(), {"cpu_busy_ratio": value})


def sample(recorder: Recorder, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        recorder.add_frames([frame(clock)])
        recorder.flush_if_due(clock.now_ms())
        clock.sleep(1)


@pytest.fixture
def recorder(clock: ManualClock, memory_store: Any) -> Recorder:
    return Recorder(memory_store.open, "n1", clock, ring_seconds=60)


@pytest.mark.parametrize("error", [StoreError("disk full"), CorruptStoreError("malformed")])
def test_an_outage_loses_nothing_that_fits_into_the_ring(
    recorder: Recorder, clock: ManualClock, memory_store: Any, error: StoreError
) -> None:
    sample(recorder, clock, 11)
    memory_store.broken = error
    sample(recorder, clock, 40)
    assert recorder.state.error == str(error)
    assert recorder.state.waiting_frames > 0
    memory_store.broken = None
    sample(recorder, clock, 61)
    times = [one.time_ms for one in memory_store.frames]
    assert times == [times[0] + 1000 * n for n in range(len(times))]
    assert len(times) + 10 >= 11 + 40 + 61
    assert (recorder.state.error, recorder.state.dropped_frames) == ("", 0)


def test_an_outage_longer_than_the_ring_drops_the_oldest_and_counts_them(
    recorder: Recorder, clock: ManualClock, memory_store: Any
) -> None:
    memory_store.broken = StoreError("read-only")
    sample(recorder, clock, 400)
    memory_store.broken = None
    recorder.flush(clock.now_ms())
    kept = [one.time_ms for one in memory_store.frames]
    assert recorder.state.dropped_frames + len(kept) == 400
    assert kept[-1] == clock.now_ms() - 1000
    assert 60 <= len(kept) <= 60 + 61  # the ring's minute, and what came since the last attempt


def test_both_ends_of_an_outage_are_events(recorder: Recorder, clock: ManualClock, memory_store: Any) -> None:
    memory_store.broken = StoreError("disk full")
    sample(recorder, clock, 30)
    memory_store.broken = None
    sample(recorder, clock, 90)
    assert [event.kind for event in memory_store.events] == ["store_failed", "store_recovered"]
    assert memory_store.events[0].detail == {"reason": "disk full"}


def test_retries_back_off_and_open_the_store_anew(clock: ManualClock, memory_store: Any) -> None:
    attempts = []

    def opened() -> Any:
        attempts.append(clock.monotonic() - 3600)
        return memory_store.open()

    memory_store.broken = StoreError("disk full")
    recorder = Recorder(opened, "n1", clock)
    sample(recorder, clock, 250)
    gaps = [round(after - before) for before, after in itertools.pairwise(attempts)]
    assert gaps == [10, 20, 40, 60, 60]


def test_jobs_events_and_findings_do_not_wait_for_the_flush_interval(
    recorder: Recorder, clock: ManualClock, memory_store: Any
) -> None:
    job = Job("local/42/1", "42", clock.now_ms())
    allocation = Allocation(job.key, Source("n1", "GPU-a"), job.start_ms, None, "cgroup")
    finding = StoredFinding("util/hung", NODE, clock.now_ms(), None, "warning")
    recorder.add_jobs([job], [allocation])
    recorder.add_findings([finding])
    recorder.add_events([Event(NODE, clock.now_ms(), "oom_kill")])
    recorder.flush_if_due(clock.now_ms())
    assert (memory_store.jobs, memory_store.allocations) == ([job], [allocation])
    assert memory_store.findings == [finding]
    assert len(memory_store.events) == 1


def test_only_the_latest_state_of_a_job_or_finding_is_written_after_an_outage(
    recorder: Recorder, clock: ManualClock, memory_store: Any
) -> None:
    memory_store.broken = StoreError("disk full")
    for state in ("running", "failed"):
        recorder.add_jobs([Job("local/42/1", "42", 1, state=state)], [])
        recorder.flush(clock.now_ms())
    memory_store.broken = None
    recorder.flush(clock.now_ms())
    assert [job.state for job in memory_store.jobs] == ["failed"]


def test_closing_while_the_store_is_broken_tells_how_much_is_lost(
    recorder: Recorder, clock: ManualClock, memory_store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory_store.broken = StoreError("disk full")
    sample(recorder, clock, 5)
    recorder.close(clock.now_ms())
    assert "5 samples were never written: disk full" in caplog.text


def test_a_row_that_no_database_can_hold_keeps_back_no_other(tmp_path: Path, clock: ManualClock) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    recorder = Recorder(lambda: open_store(url, node="n1", agent=True), "n1", clock)
    node = Source("n1", "node")
    good = Event(node, clock.now_ms(), "mark", detail={"name": "eval_start"})
    bad = [replace(good, time_ms=10**20), replace(good, ordinal=1, detail={"name": "\ud800"})]
    recorder.add_events([bad[0], good, bad[1]])
    recorder.flush(clock.now_ms())
    assert recorder.state.error == ""
    recorder.close(clock.now_ms())
    store = open_store(url, node="n1")
    assert [e for e in store.events(0, clock.now_ms() + 1) if e.kind == "mark"] == [good]
    store.close()
