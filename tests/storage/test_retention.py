"""What is kept for how long: chunks go first, events and findings outlive them, reports stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from gpudiag.errors import StoreBusyError
from gpudiag.storage.database import Database
from gpudiag.storage.engine import parse_url
from gpudiag.storage.forward import sink_name
from gpudiag.storage.frozen import FrozenReport
from gpudiag.storage.job import Allocation, Event, Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.partitions import existing
from gpudiag.storage.retention import Policy, prune, used_bytes, vacuum, worth_vacuuming
from gpudiag.storage.sample import Source
from gpudiag.storage.schema import DAY_MS, WINDOW_MS
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.status import status
from gpudiag.storage.store import StoredFinding
from gpudiag.storage.upgrade import upgrade

from .conftest import NODE, START_MS, Feed  # isort: skip

GPU = Source(NODE, "GPU-0")
FOREVER = 2**42
SINK = sink_name("postgresql://u@h/db")


def fill_days(store: SqlStore, days: int, windows: int = 1) -> None:
    """At the start of each day some windows, an event and a finding."""
    for day in range(days):
        start = START_MS + day * DAY_MS
        feed = Feed(start_ms=start)
        for window in range(windows):
            store.append(feed.frames(900 * window, 60))
        store.seal(start + windows * WINDOW_MS)
        store.put_events([Event(GPU, start, "xid", 79)])
        store.put_findings([StoredFinding("util/hung", GPU, start, start + 1, "critical")])


def days_of(store: SqlStore, table: str, column: str) -> list[int]:
    """Days since START_MS that a table has rows of."""
    target = getattr(store.database.tables, table).c[column]
    scale = 60_000 if table == "minute" else 1
    with store.database.reading() as connection:
        times = connection.execute(select(target)).scalars()
        return sorted({(int(time) * scale - START_MS) // DAY_MS for time in times})


def test_samples_minutes_and_events_go_by_their_own_age(store: SqlStore) -> None:
    fill_days(store, 10)
    policy = Policy(raw_days=3, minute_days=5, event_days=7)
    pruned = prune(store, policy, START_MS + 9 * DAY_MS + WINDOW_MS)
    assert days_of(store, "chunk", "t0") == [6, 7, 8, 9]
    assert days_of(store, "minute", "minute") == [5, 6, 7, 8, 9]
    assert days_of(store, "event", "time_ms") == [3, 4, 5, 6, 7, 8, 9]
    assert (pruned.chunks, pruned.jobs, pruned.dropped_chunks) == (12, 0, 0)
    assert not prune(store, policy, START_MS + 9 * DAY_MS + WINDOW_MS).anything


def test_what_the_sink_does_not_have_outlives_its_age(store: SqlStore) -> None:
    fill_days(store, 6)
    acknowledge(store, "chunk", 4)
    acknowledge(store, "event", 1)
    prune(store, Policy(raw_days=1, event_days=1), START_MS + 30 * DAY_MS, SINK)
    assert days_of(store, "chunk", "t0") == [2, 3, 4, 5]
    assert days_of(store, "event", "time_ms") == [1, 2, 3, 4, 5]


def acknowledge(store: SqlStore, stream: str, seq: int) -> None:
    with store.writing() as connection:
        store.database.replace(connection, "forward", [{"sink": SINK, "stream": stream, "seq": seq}])


def test_at_the_cap_old_samples_go_and_events_and_findings_stay(store: SqlStore) -> None:
    fill_days(store, 8, windows=4)
    acknowledge(store, "chunk", 6)
    cap = used_bytes(store) - 40_000
    pruned = prune(store, Policy(raw_days=1000, max_bytes=cap), START_MS + 8 * DAY_MS, SINK)
    assert used_bytes(store) <= cap
    assert pruned.chunks > 6
    assert pruned.dropped_chunks == pruned.chunks - 6
    assert days_of(store, "event", "time_ms")[:8] == list(range(8))
    assert days_of(store, "finding", "start_ms") == list(range(8))
    assert days_of(store, "chunk", "t0")[-1] == 7
    told = [event for event in store.events(0, FOREVER) if event.kind == "backlog_dropped"]
    assert told[0].detail == {"chunks": pruned.dropped_chunks, "max_bytes": cap}


def test_a_cap_below_the_events_ends_with_no_samples_and_all_events(store: SqlStore) -> None:
    fill_days(store, 3)
    prune(store, Policy(max_bytes=1), START_MS + 3 * DAY_MS)
    assert days_of(store, "chunk", "t0") == days_of(store, "minute", "minute") == []
    assert len(store.events(0, FOREVER)) == 3


def test_jobs_go_with_their_allocations_and_reports(store: SqlStore, feed: Feed) -> None:
    store.append(feed.frames(0, 60))  # a job still runs where samples come from
    store.seal(START_MS + WINDOW_MS)
    for number, end in ((1, START_MS), (2, None)):
        job = Job(f"c/{number}/0", str(number), START_MS - 10, end)
        store.put_job(job)
        store.put_allocations([Allocation(job.key, GPU, job.start_ms, job.end_ms, "cgroup")])
        store.put_report(FrozenReport(job.key, 1, START_MS, "fine", 0.0, {}))
    prune(store, Policy(raw_days=20, job_days=10), START_MS + 11 * DAY_MS)
    assert [job.id for job in store.jobs()] == ["2"]
    assert store.allocations("c/1/0") == []
    assert store.report("c/1/0") is None
    assert store.report("c/2/0") is not None


def test_what_never_ended_goes_once_nothing_is_sampled_there_any_more(store: SqlStore, feed: Feed) -> None:
    store.append(feed.frames(0, 60))
    store.seal(START_MS + WINDOW_MS)
    store.put_job(Job("c/1/0", "1", START_MS))
    store.put_allocations([Allocation("c/1/0", GPU, START_MS, None, "cgroup")])
    store.put_findings([StoredFinding("util/hung", GPU, START_MS, None, "critical")])
    later = START_MS + 30 * DAY_MS
    prune(store, Policy(raw_days=40, event_days=10, job_days=10), later)
    assert len(store.jobs()) == len(store.findings(0, FOREVER)) == len(store.allocations("c/1/0")) == 1
    prune(store, Policy(raw_days=20, event_days=10, job_days=10), later)
    assert store.jobs() == store.findings(0, FOREVER) == store.allocations("c/1/0") == []


def test_a_job_stays_until_its_last_allocation_was_sent(store: SqlStore) -> None:
    store.put_job(Job("c/1/0", "1", START_MS, START_MS + 1))
    store.put_allocations([Allocation("c/1/0", GPU, START_MS, START_MS + 1, "cgroup")])
    acknowledge(store, "job", 1)
    prune(store, Policy(job_days=1), START_MS + 9 * DAY_MS, SINK)
    assert len(store.allocations("c/1/0")) == len(store.jobs()) == 1
    acknowledge(store, "allocation", 1)
    prune(store, Policy(job_days=1), START_MS + 9 * DAY_MS, SINK)
    assert store.allocations("c/1/0") == store.jobs() == []


def test_a_frozen_report_comes_back_as_it_was(store: SqlStore) -> None:
    document = {"schema_version": 1, "zebra": [1.5, None, "ü"], "apple": {"b": 1, "a": 2}}
    report = FrozenReport("c/1/0", 1, START_MS, "2 h lost", 2.25, document, "text\n", {"util/hung": "3"})
    store.put_report(report)
    found = store.report("c/1/0")
    assert found == report
    assert list(found.document) == ["schema_version", "zebra", "apple"]


def test_jobs_over_for_long_enough_or_never_ended_are_to_be_frozen_once(store: SqlStore) -> None:
    for number, end in ((1, START_MS + 5), (2, START_MS + 3), (3, START_MS + 900), (4, None)):
        store.put_job(Job(f"c/{number}/0", str(number), START_MS, end))
    store.put_report(FrozenReport("c/1/0", 1, START_MS, "", 0.0, {}))
    assert [job.id for job in store.jobs_to_freeze(START_MS + 100)] == ["4", "2"]


def test_incremental_vacuum_frees_all_pages(store: SqlStore, url: str) -> None:
    fill_days(store, 40, windows=4)
    prune(store, Policy(raw_days=0, minute_days=0), START_MS + 50 * DAY_MS)
    path = Path(url.removeprefix("sqlite:///"))
    assert pages(store, "freelist_count") > 50
    assert not worth_vacuuming(store)  # below 1000 pages it is not worth it
    freed = vacuum(store)
    assert freed > 50 * 4096
    assert pages(store, "freelist_count") == 0
    assert path.stat().st_size == pages(store, "page_count") * 4096


def pages(store: SqlStore, name: str) -> int:
    with store.database.reading() as connection:
        return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def test_status_counts_what_is_there(store: SqlStore, feed: Feed) -> None:
    store.append(feed.frames(0, 900))
    store.append(feed.frames(900, 60))
    store.seal(START_MS + WINDOW_MS)
    acknowledge(store, "chunk", 1)
    found = status(store)
    assert found.rows["chunk"] == 2
    assert found.samples == 1800
    assert (found.first_ms, found.last_ms) == (START_MS, START_MS + 959_000)
    assert found.sinks == {SINK: 1}
    assert json.loads(json.dumps(found.document()))["first"] == "2025-11-30T12:00:00+00:00"


def test_a_vacuum_of_a_locked_file_is_one_clear_error(
    store: SqlStore, url: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudiag.storage.engine.BUSY_SECONDS", 0.05)
    store.append(feed.frames(0, 10))
    other = open_store(url, node=NODE)
    for full in (False, True):
        with store.database.transaction(), pytest.raises(StoreBusyError, match="locked by another process"):
            vacuum(other, full)
    vacuum(other)
    other.close()


@pytest.fixture
def central(postgres_url: str) -> Iterator[SqlStore]:
    upgrade(postgres_url, START_MS)
    opened = open_store(postgres_url, node=NODE)
    yield opened
    opened.close()


@pytest.mark.integration
def test_postgres_drops_whole_days_and_adds_the_coming_week(central: SqlStore) -> None:
    fill_days(central, 5)
    central.seal(FOREVER)
    now_ms = START_MS + 20 * DAY_MS
    pruned = prune(central, Policy(raw_days=17, minute_days=400), now_ms)
    assert pruned.chunks >= 3
    assert days_of(central, "chunk", "t0") == [3, 4]
    assert len(days_of(central, "minute", "minute")) == 5
    with central.database.reading() as connection:
        assert max(existing(connection, "chunk")) >= now_ms + 6 * DAY_MS
    assert len(central.read(GPU, START_MS + 3 * DAY_MS, FOREVER)) == 120


@pytest.mark.integration
def test_flushes_of_a_node_that_never_came_back_are_sealed_not_lost(central: SqlStore, feed: Feed) -> None:
    central.append(feed.frames(0, 60))
    keeper = SqlStore(
        Database(parse_url(central.database.url.render_as_string(False)), writing=True), "keeper"
    )
    pruned = prune(keeper, Policy(), START_MS + 3_600_000)
    assert pruned.sealed_windows == 0  # not yet: an hour is within reach of its node
    pruned = prune(keeper, Policy(), START_MS + 4 * 3_600_000)
    assert pruned.sealed_windows == 1
    assert status(keeper).rows["head"] == 0
    assert len(keeper.read(GPU, START_MS, FOREVER)) == 60
    keeper.close()


@pytest.mark.integration
def test_a_trace_may_be_imported_straight_into_postgres(
    central: SqlStore, feed: Feed, postgres_url: str
) -> None:
    for second in range(0, 2000, 100):
        central.append(feed.frames(second, 100))
    central.close()
    reader = open_reader(postgres_url)
    assert len(reader.read(GPU, START_MS, FOREVER)) == 2000
    with reader.database.reading() as connection:  # type: ignore[attr-defined]
        heads = connection.execute(
            select(func.count()).select_from(central.database.tables.head)
        ).scalar_one()
    assert heads == 0
    reader.close()
