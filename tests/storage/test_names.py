"""Names of jobs and slices that came and went are forgotten, and never one that a writer is about to use."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import func, select

from gpudiag.storage import names
from gpudiag.storage.forward import Forwarder, sink_name
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.retention import Policy, prune
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.schema import DAY_MS, MINUTE_MS, MINUTES_PER_PART, WINDOW_MS
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.status import status
from gpudiag.storage.store import StoredFinding
from gpudiag.storage.upgrade import upgrade

from .conftest import NODE, START_MS  # isort: skip

JOBS = int(os.environ.get("GPUDIAG_SOAK_JOBS", "180"))
DAYS = int(os.environ.get("GPUDIAG_SOAK_DAYS", "90"))
GPU = Source(NODE, "GPU-0")
SHORT = Policy(raw_days=2, minute_days=5, event_days=8, job_days=10)
NAMES = ("source", "series", "device", "layout", "job", "allocation", "event", "finding", "chunk", "minute")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def make(request: pytest.FixtureRequest, url: str) -> Iterator[Callable[[], SqlStore]]:
    """Opens one more store of the same database."""
    where = url
    if request.param == "postgres":
        where = request.getfixturevalue("postgres_url")
        upgrade(where, START_MS)
    opened: list[SqlStore] = []

    def open_one() -> SqlStore:
        opened.append(open_store(where, node=NODE, seal=False))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def rows(store: SqlStore) -> dict[str, int]:
    with store.database.reading() as connection:
        return {
            name: int(
                connection.execute(
                    select(func.count()).select_from(getattr(store.database.tables, name))
                ).scalar_one()
            )
            for name in NAMES
        }


def job_day(store: SqlStore, start_ms: int, first: int, jobs: int) -> None:
    """A day on a node whose GPU is sliced anew for each job: each has a source, series, a device, events of its own."""
    for number in range(first, first + jobs):
        slice_, own = Source(NODE, f"MIG-{number}"), Source(NODE, f"job:{number}")
        job = Job(f"c/{number}/{start_ms}", str(number), start_ms, start_ms + 60_000)
        store.put_job(job)
        store.put_devices([Device(slice_, start_ms, model="H200")])
        store.put_allocations(
            [Allocation(job.key, one, start_ms, start_ms + 60_000, "hook") for one in (slice_, GPU)]
        )
        store.put_events([Event(slice_, start_ms, "mig_changed")])
        store.put_findings([StoredFinding("util/hung", own, start_ms, start_ms + 1, "info", job.key)])
    frames = [
        Frame(source, start_ms, {"sm_active_ratio": 0.5, "job_cpu_busy_ratio": 1.0})
        for number in range(first, first + jobs)
        for source in (Source(NODE, f"MIG-{number}"), Source(NODE, f"job:{number}"))
    ]
    store.append([*frames, Frame(GPU, start_ms, {"sm_active_ratio": 0.5})])
    store.put_devices([Device(GPU, start_ms, model="H200", driver=str(start_ms))])
    store.seal(start_ms + WINDOW_MS)


def test_a_year_of_jobs_leaves_no_more_names_than_a_month(make: Callable[[], SqlStore]) -> None:
    store, per_day, held = make(), JOBS // DAYS, {}
    for day in range(DAYS):
        now_ms = START_MS + day * DAY_MS
        job_day(store, now_ms, day * per_day, per_day)
        prune(store, SHORT, now_ms + WINDOW_MS)
        if day == DAYS // 2:
            held = rows(store)
    left = rows(store)
    if not store.database.sqlite:  # there minutes go by parts of 30 days
        held["minute"] = left["minute"]
    assert left == held
    assert left["device"] < DAYS * per_day / 2
    assert status(store).rows["series"] == left["series"]


def test_what_something_still_refers_to_stays(make: Callable[[], SqlStore]) -> None:
    store = make()
    job_day(store, START_MS, 1, 4)
    before = rows(store)
    assert not prune(store, SHORT, START_MS + WINDOW_MS).names
    assert rows(store) == before
    prune(store, SHORT, START_MS + 3 * DAY_MS)
    assert rows(store)["source"] == before["source"]
    prune(store, SHORT, START_MS + 90 * DAY_MS)
    assert rows(store) == dict.fromkeys(NAMES, 0) | {"source": 1, "device": 0, "layout": before["layout"]}


def test_attributes_that_were_replaced_go_and_the_latest_stays(make: Callable[[], SqlStore]) -> None:
    store = make()
    for day in range(30):
        store.put_devices([Device(GPU, START_MS + day * DAY_MS, driver=str(day))])
    store.put_events([Event(GPU, START_MS + 29 * DAY_MS, "xid", 79)])
    prune(store, SHORT, START_MS + 30 * DAY_MS)
    assert rows(store)["device"] == 11  # one was valid when the oldest job that is kept ran
    assert store.devices([GPU])[GPU].driver == "29"


def test_samples_that_are_not_sealed_hold_their_name(make: Callable[[], SqlStore]) -> None:
    store = make()
    store.put_devices([Device(GPU, START_MS, model="H200"), Device(Source(NODE, "GPU-9"), START_MS)])
    later = START_MS + 90 * DAY_MS
    store.append([Frame(GPU, later, {"sm_active_ratio": 0.5})])
    prune(store, SHORT, later)
    assert store.devices([GPU])[GPU].model == "H200"


def test_a_writer_that_remembers_a_name_that_went_writes_it_anew(make: Callable[[], SqlStore]) -> None:
    writer, pruner = make(), make()
    job_day(writer, START_MS, 1, 2)
    again = START_MS + 90 * DAY_MS
    prune(pruner, SHORT, again)
    job_day(writer, again, 1, 2)
    assert dangling(writer) == {}
    fresh = make()
    for device in ("MIG-1", "job:1", "GPU-0"):
        assert len(fresh.read(Source(NODE, device), again, again + 1)) == 1
    assert {event.source.device for event in fresh.events(again, again + 1)} == {"MIG-1", "MIG-2"}


def dangling(store: SqlStore) -> dict[str, int]:
    """Rows that refer to a name that is not there, by table."""
    tables = store.database.tables
    found = {}
    with store.database.reading() as connection:
        for name in ("chunk", "series", "event", "finding", "allocation", "device"):
            query = select(func.count()).where(
                getattr(tables, name).c.source_id.not_in(select(tables.source.c.id))
            )
            found[name] = int(connection.execute(query).scalar_one())
        query = select(func.count()).where(tables.minute.c.series_id.not_in(select(tables.series.c.id)))
        found["minute"] = int(connection.execute(query).scalar_one())
    return {name: count for name, count in found.items() if count}


def test_writers_and_pruning_at_the_same_time_leave_nothing_without_its_name(
    make: Callable[[], SqlStore],
) -> None:
    """Names that come again every third day, each in time to be forgotten: every round of pruning meets names in use."""
    stop, errors = threading.Event(), []
    times = dict.fromkeys(range(3), START_MS)

    def write(store: SqlStore, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                time_ms = times[seed] + 6 * WINDOW_MS
                source = Source(f"{NODE}-{seed}", f"MIG-{time_ms // DAY_MS % 3}-{chance.randrange(2)}")
                store.put_events([Event(source, time_ms, "mig_changed")])
                store.put_findings([StoredFinding("util/hung", source, time_ms, time_ms + 1, "info")])
                store.append([Frame(source, time_ms, {"sm_active_ratio": 0.5})])
                store.seal(time_ms + WINDOW_MS)
                times[seed] = time_ms
                stop.wait(0.01)  # or nobody else would ever get hold of a SQLite file
        except Exception as error:  # noqa: BLE001 - the test tells it
            errors.append(error)

    pruner, removed = make(), 0
    if pruner.database.sqlite:  # there one agent writes
        times = {0: START_MS}
    writers = [threading.Thread(target=write, args=(make(), seed)) for seed in times]
    for one in writers:
        one.start()
    limit = time.monotonic() + 60
    while removed < 60 and not errors and time.monotonic() < limit:
        removed += forget(pruner, min(times.values()))
        stop.wait(0.02)
    stop.set()
    for one in writers:
        one.join()
    assert not errors
    assert dangling(pruner) == {}
    assert removed >= 60
    assert rows(pruner)["source"] <= 18


def forget(store: SqlStore, before_ms: int) -> int:
    """Retention by rows, so that Postgres need not drop the day that is being written."""
    tables, minute = store.database.tables, before_ms // MINUTE_MS
    with store.writing() as connection:
        connection.execute(tables.chunk.delete().where(tables.chunk.c.t0 < before_ms - WINDOW_MS))
        connection.execute(tables.minute.delete().where(tables.minute.c.minute < minute))
        connection.execute(tables.event.delete().where(tables.event.c.time_ms < before_ms))
        connection.execute(tables.finding.delete().where(tables.finding.c.end_ms < before_ms))
    late = 0 if store.database.sqlite else MINUTES_PER_PART
    return names.prune(store.database, minute + late, before_ms, None)


@pytest.mark.integration
def test_forwarding_goes_on_when_names_are_pruned_at_both_ends(url: str, postgres_url: str) -> None:
    upgrade(postgres_url, START_MS)
    local, central = open_store(url, node=NODE, agent=True), open_store(postgres_url, node=NODE, seal=False)
    clock = type("Clock", (), {"now_ms": staticmethod(lambda: START_MS)})()
    forwarder = Forwarder(url, postgres_url, NODE, clock)
    for round_ in range(4):
        now_ms = START_MS + round_ * 90 * DAY_MS
        job_day(local, now_ms, 1, 2)
        assert forwarder.round().error == ""
        prune(local, SHORT, now_ms + 60 * DAY_MS, sink_name(postgres_url))
        prune(central, SHORT, now_ms + 60 * DAY_MS)
    job_day(local, START_MS + 400 * DAY_MS, 1, 2)
    assert forwarder.round().error == ""
    assert dangling(central) == dangling(local) == {}
    assert rows(central)["source"] <= 6
    reader = open_reader(postgres_url)
    for device in ("MIG-1", "job:1", "GPU-0"):
        assert len(reader.read(Source(NODE, device), START_MS + 400 * DAY_MS, START_MS + 401 * DAY_MS)) == 1
    assert set(reader.devices([Source(NODE, "MIG-1")])) == {Source(NODE, "MIG-1")}
    for one in (forwarder, local, central, reader):
        one.close()
