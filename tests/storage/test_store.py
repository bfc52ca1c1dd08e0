"""What is appended is read back, from flushes, from chunks, and from both."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import func, select

from gpudiag.errors import StoreError
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.open import open_reader
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.store import JobFilter, StoredFinding

from .conftest import METRICS, NODE, START_MS, Feed, seconds  # isort: skip

END_MS = START_MS + 10 * WINDOW_MS
NODE_SOURCE = Source(NODE, "node")


def fill(store: SqlStore, feed: Feed, last: int, first: int = 0, step: int = 10) -> None:
    for second in range(first, last, step):
        store.append(feed.frames(second, min(step, last - second)))


def count(store: SqlStore, table: str) -> int:
    with store.database.reading() as connection:
        query = select(func.count()).select_from(getattr(store.database.tables, table))
        return int(connection.execute(query).scalar_one())


def test_a_flush_is_read_back_before_it_is_sealed(store: SqlStore, feed: Feed) -> None:
    store.append(feed.frames(0, 10))
    block = store.read(feed.sources[1], START_MS, END_MS)
    assert seconds(block.times_ms) == list(range(10))
    assert {m: list(c) for m, c in block.columns.items()} == {
        metric: feed.column(feed.sources[1], metric, 0, 10) for metric in METRICS
    }
    assert block.origins == {"sm_active_ratio": "gpm"}


def test_a_complete_window_is_sealed_and_read_back_with_the_head(store: SqlStore, feed: Feed) -> None:
    fill(store, feed, 1000)
    assert count(store, "chunk") == len(feed.sources)
    assert count(store, "head") == 10
    block = store.read(feed.sources[0], START_MS, END_MS)
    assert seconds(block.times_ms) == list(range(1000))
    assert list(block.columns["power_watts"]) == feed.column(feed.sources[0], "power_watts", 0, 1000)


def test_a_flush_across_the_end_of_a_window_is_split(store: SqlStore, feed: Feed) -> None:
    fill(store, feed, 960, step=7)
    block = store.read(feed.sources[0], START_MS, END_MS)
    assert seconds(block.times_ms) == list(range(960))
    assert count(store, "chunk") == len(feed.sources)


def test_reading_a_metric_gives_that_metric_alone(store: SqlStore, feed: Feed) -> None:
    fill(store, feed, 1000)
    block = store.read(feed.sources[0], START_MS + 890_000, START_MS + 950_000, ["temperature_celsius"])
    assert list(block.columns) == ["temperature_celsius"]
    assert seconds(block.times_ms) == list(range(890, 950))


def test_missing_is_not_zero(store: SqlStore) -> None:
    source = Source(NODE, "GPU-0")
    store.append([Frame(source, START_MS, {"power_watts": 1.0, "gpu_util_ratio": 0.5})])
    store.append([Frame(source, START_MS + 1000, {"power_watts": 2.0})])
    for _ in range(2):
        block = store.read(source, START_MS, END_MS)
        assert block.columns["gpu_util_ratio"][0] == 0.5
        assert np.isnan(block.columns["gpu_util_ratio"][1])
        store.seal(END_MS)


def test_frames_of_one_instant_from_several_collectors_are_one_sample(store: SqlStore) -> None:
    source = Source(NODE, "node")
    store.append([Frame(source, START_MS, {"cpu_busy_ratio": 0.5}), Frame(source, START_MS, {"cpus": 4.0})])
    block = store.read(source, START_MS, END_MS)
    assert len(block) == 1
    assert {name: column[0] for name, column in block.columns.items()} == {"cpu_busy_ratio": 0.5, "cpus": 4.0}


def test_two_origins_of_a_metric_never_mix(store: SqlStore) -> None:
    source = Source(NODE, "GPU-0")
    for second in range(9):
        origin = "gpm" if second < 3 else "dcgm"
        frame = Frame(
            source, START_MS + 1000 * second, {"sm_active_ratio": second / 10}, {"sm_active_ratio": origin}
        )
        store.append([frame])
    for _ in range(2):
        block = store.read(source, START_MS, END_MS)
        assert block.origins == {"sm_active_ratio": "dcgm"}
        assert block.dropped_origins == {"sm_active_ratio": ("gpm",)}
        assert np.isnan(block.columns["sm_active_ratio"][:3]).all()
        assert list(block.columns["sm_active_ratio"][3:]) == [second / 10 for second in range(3, 9)]
        store.seal(END_MS)


def test_the_same_flush_twice_is_stored_once(store: SqlStore, feed: Feed) -> None:
    store.append(feed.frames(0, 10))
    store.append(feed.frames(0, 10))
    store.seal(END_MS)
    store.append(feed.frames(0, 10))
    store.seal(END_MS)
    block = store.read(feed.sources[0], START_MS, END_MS)
    assert seconds(block.times_ms) == list(range(10))


def test_a_late_flush_into_a_sealed_window_is_kept(store: SqlStore, feed: Feed) -> None:
    store.append(feed.frames(0, 5))
    store.seal(END_MS)
    store.append(feed.frames(5, 5))
    store.seal(END_MS)
    block = store.read(feed.sources[0], START_MS, END_MS)
    assert seconds(block.times_ms) == list(range(10))
    assert count(store, "chunk") == 2 * len(feed.sources)


def test_a_clock_that_steps_back_an_hour_and_forth_loses_nothing(store: SqlStore, feed: Feed) -> None:
    hour = 3600
    fill(store, feed, 2 * hour, first=2 * hour - 60)
    fill(store, feed, hour + 60, first=hour)
    fill(store, feed, 2 * hour + 1000, first=2 * hour)
    block = store.read(feed.sources[0], START_MS, END_MS)
    expected = [*range(hour, hour + 60), *range(2 * hour - 60, 2 * hour + 1000)]
    assert seconds(block.times_ms) == expected


def test_headline_metrics_have_a_row_per_minute(store: SqlStore, feed: Feed) -> None:
    fill(store, feed, 1000)
    tables = store.database.tables
    query = (
        select(tables.minute)
        .join(tables.series, tables.series.c.id == tables.minute.c.series_id)
        .join(tables.source, tables.source.c.id == tables.series.c.source_id)
        .where(tables.series.c.metric == "power_watts", tables.source.c.device == "GPU-1")
        .order_by(tables.minute.c.minute)
    )
    with store.database.reading() as connection:
        rows = connection.execute(query).all()
    assert len(rows) == 15
    watts = feed.column(feed.sources[1], "power_watts", 60, 60)
    assert (rows[1].minute, rows[1].min, rows[1].max, rows[1].count) == (
        START_MS // 60_000 + 1, min(watts), max(watts), 60,
    )  # fmt: skip
    assert rows[1].mean == pytest.approx(sum(watts) / 60, rel=1e-12)


def test_minutes_of_a_late_flush_are_of_all_the_samples(store: SqlStore, feed: Feed) -> None:
    store.append(feed.frames(0, 30))
    store.seal(END_MS)
    store.append(feed.frames(30, 30))
    store.seal(END_MS)
    with store.database.reading() as connection:
        counts = connection.execute(select(store.database.tables.minute.c.count)).scalars().all()
    assert set(counts) == {60}


def test_a_damaged_chunk_is_skipped_and_named(store: SqlStore, feed: Feed) -> None:
    fill(store, feed, 2000)
    with store.database.transaction() as connection:
        chunk = store.database.tables.chunk
        data = bytearray(connection.execute(select(chunk.c.data).where(chunk.c.seq == 1)).scalar_one())
        data[50] ^= 1
        connection.execute(chunk.update().where(chunk.c.seq == 1).values(data=bytes(data)))
    block = store.read(feed.sources[0], START_MS, END_MS)
    assert block.damaged_ms == ((START_MS, START_MS + 899_001),)
    assert seconds(block.times_ms) == list(range(900, 2000))


def test_names_that_come_and_go_do_not_fill_memory(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.storage.remembering.REMEMBERED", 5)
    slices = [Source(NODE, f"MIG-{number}") for number in range(30)]
    for number, one in enumerate(slices):
        store.append([Frame(one, START_MS + 1000 * number, {"power_watts": float(number)})])
    store.append([Frame(NODE_SOURCE, START_MS + WINDOW_MS, {"power_watts": 0.0})])  # seals what was before
    remembered = (store._source_ids, store._series_ids, store._packer._known)
    assert all(len(known) <= 5 for known in remembered)
    found = [store.read(one, START_MS, END_MS).columns["power_watts"].tolist() for one in slices]
    assert found == [[float(number)] for number in range(30)]


def test_sources_are_those_with_samples_in_the_interval(store: SqlStore, feed: Feed) -> None:
    fill(store, feed, 1000)
    store.append([Frame(Source(NODE, "node"), START_MS + 1_000_000, {"cpus": 4.0})])
    assert store.sources(START_MS, START_MS + 1000) == feed.sources
    assert store.sources(START_MS + 1_000_000, END_MS) == [Source(NODE, "node")]
    assert store.sources(END_MS, END_MS + 1) == []


def test_jobs_are_found_by_every_form_of_their_id(store: SqlStore) -> None:
    for number, name in enumerate(("42", "42_7", "42+1", "421", "4_2", "train", "17")):
        store.put_job(
            Job(f"c/{name}/{number}", name, START_MS + number, raw_id="1234" if name == "42_7" else "")
        )
    found = {
        asked: [job.id for job in store.jobs(JobFilter(id=asked))]
        for asked in ("42", "42_7", "42+1", "42.0", "1234", "train", "c/17/6", "4", "99")
    }
    assert found == {
        "42": ["42+1", "42_7", "42"],
        "42_7": ["42_7"],
        "42+1": ["42+1"],
        "42.0": ["42+1", "42_7", "42"],
        "1234": ["42_7"],
        "train": ["train"],
        "c/17/6": ["17"],
        "4": ["4_2"],
        "99": [],
    }


def test_jobs_are_filtered_by_user_state_node_and_time(store: SqlStore) -> None:
    early = Job("c/1/0", "1", START_MS, START_MS + 10, user="ann", state="completed", tags=("inference",))
    late = Job("c/2/0", "2", START_MS + 100, None, user="bob", state="running", meta={"cmd": ["python", "ü"]})
    store.put_job(early)
    store.put_job(late)
    store.put_allocations([Allocation(late.key, Source("n9", "GPU-9"), START_MS, None, "test", 0.5)])
    assert store.jobs() == [late, early]
    assert store.jobs(JobFilter(user="ann")) == [early]
    assert store.jobs(JobFilter(state="running")) == [late]
    assert store.jobs(JobFilter(node="n9")) == [late]
    assert store.jobs(JobFilter(start_ms=START_MS + 50)) == [late]
    assert store.jobs(JobFilter(end_ms=START_MS + 50)) == [early]
    assert store.jobs(JobFilter(limit=1)) == [late]


def test_a_job_put_again_replaces_the_row(store: SqlStore) -> None:
    job = Job("c/1/0", "1", START_MS)
    store.put_job(job)
    ended = Job("c/1/0", "1", START_MS, START_MS + 5, state="failed", exit_code=137)
    store.put_job(ended)
    assert store.jobs() == [ended]


def test_devices_are_kept_when_their_attributes_change(store: SqlStore) -> None:
    source = Source(NODE, "GPU-0")
    store.put_devices([Device(source, START_MS, index=0, model="H100")])
    store.put_devices([Device(source, START_MS + 5, index=0, model="H100")])
    store.put_devices([Device(source, START_MS + 9, index=1, model="H100")])
    assert count(store, "device") == 2
    assert store.devices([source, Source(NODE, "none")]) == {
        source: Device(source, START_MS + 9, index=1, model="H100")
    }


def test_events_and_findings_come_back_in_time_order(store: SqlStore) -> None:
    source = Source(NODE, "GPU-0")
    xid, kill = Event(source, START_MS + 5, "xid", 79, 0, {"text": "ü"}), Event(source, START_MS, "oom_kill")
    store.put_events([xid, kill, xid])
    assert store.events(START_MS, END_MS) == [kill, xid]
    assert store.events(START_MS, END_MS, kinds=["xid"]) == [xid]
    assert store.events(START_MS, END_MS, node="other") == []
    store.put_findings([StoredFinding("util/hung", source, START_MS, None, "critical", "c/1/0", {"a": 1})])
    closed = StoredFinding("util/hung", source, START_MS, START_MS + 9, "critical", "c/1/0", {"a": 2})
    store.put_findings([closed])
    assert store.findings(START_MS, END_MS) == [closed]
    assert store.findings(START_MS + 10, END_MS) == []
    assert store.findings(START_MS, END_MS, "c/2/0") == []


def test_a_reader_works_while_the_agent_writes(store: SqlStore, url: str, feed: Feed) -> None:
    reader = open_reader(url)
    for second in range(0, 1000, 10):
        store.append(feed.frames(second, 10))
        assert len(reader.read(feed.sources[0], START_MS, END_MS)) == second + 10
    reader.close()


def test_a_closed_store_is_not_opened_again_by_using_it(store: SqlStore, feed: Feed) -> None:
    store.close()
    with pytest.raises(StoreError, match="is closed already"):
        store.append(feed.frames(0, 10))
    with pytest.raises(StoreError, match="is closed already"):
        store.read(feed.sources[0], START_MS, END_MS)
