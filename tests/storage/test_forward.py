"""Store-and-forward into a real Postgres: everything arrives once, whatever stops in between."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from postgres import Cluster

from gpudiag.errors import StoreError
from gpudiag.storage.forward import Forwarder
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.quarantine import put_aside
from gpudiag.storage.reader import SqlReader
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.store import StoredFinding
from gpudiag.storage.upgrade import upgrade

from .conftest import NODE, START_MS, Feed  # isort: skip

pytestmark = pytest.mark.integration
END_MS = START_MS + 24 * 3_600_000
JOB = Job("c/42/1764504000", "42", START_MS, None, state="running")


@dataclass
class FakeClock:
    time_ms: int = START_MS

    def now_ms(self) -> int:
        return self.time_ms


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sink_url(postgres_url: str) -> str:
    upgrade(postgres_url, START_MS)
    return postgres_url


@pytest.fixture
def forwarder(store: SqlStore, url: str, sink_url: str, clock: FakeClock) -> Iterator[Forwarder]:
    made = Forwarder(url, sink_url, NODE, clock, rng=random.Random(0))
    yield made
    made.close()


@pytest.fixture
def central(sink_url: str) -> Iterator[SqlReader]:
    reader = open_reader(sink_url)
    yield reader
    reader.close()


def fill(store: SqlStore, feed: Feed, first: int, last: int, step: int = 50) -> None:
    for second in range(first, last, step):
        store.append(feed.frames(second, step))


def fill_all(store: SqlStore, feed: Feed) -> None:
    """Two sealed windows, a head, and rows of everything else."""
    fill(store, feed, 0, 2000)
    gpu = feed.sources[0]
    store.put_job(JOB)
    store.put_allocations([Allocation(JOB.key, source, START_MS, None, "cgroup") for source in feed.sources])
    store.put_devices([Device(gpu, START_MS, index=0, model="H100")])
    store.put_events([Event(gpu, START_MS + 5, "xid", 79, 0, {"text": "ü"})])
    store.put_findings([StoredFinding("util/hung", gpu, START_MS, None, "critical", JOB.key, {"a": [1]})])


def assert_same(one: SqlReader, other: SqlReader) -> None:
    """Both stores answer every question alike."""
    assert one.jobs() == other.jobs()
    sources = one.sources(0, END_MS)
    assert other.sources(0, END_MS) == sources
    assert one.events(0, END_MS) == other.events(0, END_MS)
    assert one.findings(0, END_MS) == other.findings(0, END_MS)
    assert one.devices(sources) == other.devices(sources)
    for job in one.jobs():
        assert one.allocations(job.key) == other.allocations(job.key)
    for source in sources:
        first, second = one.read(source, 0, END_MS), other.read(source, 0, END_MS)
        np.testing.assert_array_equal(first.times_ms, second.times_ms)
        assert first.origins == second.origins
        assert list(first.columns) == list(second.columns)
        for name in first.columns:
            np.testing.assert_array_equal(first.columns[name], second.columns[name])


def rows(cluster_url: str, query: str) -> list[tuple[object, ...]]:
    import psycopg

    with psycopg.connect(cluster_url, autocommit=True) as connection:
        return connection.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]


def test_everything_arrives_and_reads_the_same(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader, sink_url: str
) -> None:
    fill_all(store, feed)
    state = forwarder.round()
    assert (state.error, state.backlog_rows, state.lag_seconds) == ("", 0, 0.0)
    assert_same(store, central)
    with store.database.reading() as connection:
        local = connection.exec_driver_sql(
            "SELECT minute, metric, device, mean, min, max, count FROM minute JOIN series ON series.id = series_id "
            "JOIN source ON source.id = source_id ORDER BY 1, 2, 3"
        ).all()
    query = (
        "SELECT minute, metric, device, mean, min, max, count FROM minute JOIN series ON series.id = series_id "
        "JOIN source ON source.id = source_id ORDER BY 1, 2, 3"
    )
    assert rows(sink_url, query) == [tuple(row) for row in local]
    assert len(local) == 2 * 30 * 4


def test_a_running_jobs_samples_are_there_after_each_round(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader
) -> None:
    for second in range(0, 1900, 100):
        fill(store, feed, second, second + 100)
        forwarder.round()
        assert len(central.read(feed.sources[0], START_MS, END_MS)) == second + 100


def test_a_running_jobs_report_lags_by_at_most_30_seconds(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader, clock: FakeClock
) -> None:
    """Sampling each second, flushing each 10, forwarding when the forwarder asks for it, over a seal."""
    lags, next_round, shown = [], 3.0, 0
    for second in range(1100):
        clock.time_ms = START_MS + 1000 * second
        if second % 10 == 9:
            store.append(feed.frames(second - 9, 10))
        if second >= next_round:
            forwarder.round()
            next_round = second + forwarder.next_wait()
            shown = len(central.read(feed.sources[0], START_MS, END_MS))
        lags.append(second + 1 - shown)
    assert max(lags) <= 30


def test_flushes_are_swept_once_their_chunk_is_there(
    store: SqlStore, feed: Feed, forwarder: Forwarder, sink_url: str
) -> None:
    fill(store, feed, 0, 850)
    forwarder.round()
    assert rows(sink_url, "SELECT count(*) FROM head") == [(17,)]
    fill(store, feed, 850, 950)
    forwarder.round()
    assert rows(sink_url, "SELECT count(*) FROM head") == [(1,)]
    assert rows(sink_url, "SELECT count(*) FROM chunk") == [(2,)]


def test_what_changes_later_is_sent_again(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader
) -> None:
    fill_all(store, feed)
    forwarder.round()
    ended = Job(JOB.key, "42", START_MS, START_MS + 99, state="failed", exit_code=1)
    store.put_job(ended)
    store.put_allocations([Allocation(JOB.key, s, START_MS, START_MS + 99, "cgroup") for s in feed.sources])
    gpu = feed.sources[0]
    store.put_findings([StoredFinding("util/hung", gpu, START_MS, START_MS + 50, "critical", JOB.key, {})])
    forwarder.round()
    assert central.jobs() == [ended]
    assert_same(store, central)


def test_a_job_of_many_nodes_ends_once_and_with_the_worst_outcome(
    tmp_path: Path, sink_url: str, central: SqlReader, clock: FakeClock
) -> None:
    outcomes = {"a": (50, "failed", 137), "b": (90, "completed", 0), "c": (None, "running", None)}
    for node, (end, state, code) in outcomes.items():
        url = f"sqlite:///{tmp_path}/{node}.db"
        store = open_store(url, node=node)
        end_ms = None if end is None else START_MS + end
        store.put_job(Job(JOB.key, "42", START_MS, end_ms, state=state, exit_code=code))
        store.put_allocations([Allocation(JOB.key, Source(node, f"GPU-{node}"), START_MS, end_ms, "cgroup")])
        store.append([Frame(Source(node, f"GPU-{node}"), START_MS + 1, {"power_watts": 100.0})])
        store.close()
        one = Forwarder(url, sink_url, node, clock)
        assert one.round().error == ""
        one.close()
    assert central.jobs() == [Job(JOB.key, "42", START_MS, START_MS + 90, state="failed", exit_code=137)]
    assert [a.source.node for a in central.allocations(JOB.key)] == ["a", "b", "c"]
    assert len(central.sources(0, END_MS)) == 3


def test_an_outage_of_many_windows_is_caught_up(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader, postgres: Cluster, clock: FakeClock
) -> None:
    fill(store, feed, 0, 100)
    forwarder.round()
    postgres.stop()
    try:
        waits = []
        for window in range(5):
            fill(store, feed, 100 + 900 * window, 1000 + 900 * window)
            clock.time_ms = START_MS + (1000 + 900 * window) * 1000
            state = forwarder.round()
            waits.append(forwarder.next_wait())
            assert state.error != ""
            assert "127.0.0.1" in state.error
        assert state.lag_seconds > 4000
        assert state.failures == 5
        assert state.backlog_chunks == 10
        assert waits[0] <= 7.5
        assert waits[4] >= 40
    finally:
        postgres.start()
    state = forwarder.round()
    assert (state.error, state.lag_seconds, state.backlog_rows) == (
        "",
        0.0,
        1,
    )  # 1: the recovery event itself
    forwarder.round()
    assert_same(store, central)
    assert [event.kind for event in central.events(0, 2**42)] == ["forward_failed", "forward_recovered"]


def test_postgres_killed_in_the_middle_of_a_transaction_loses_nothing(
    store: SqlStore,
    feed: Feed,
    forwarder: Forwarder,
    central: SqlReader,
    postgres: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill_all(store, feed)
    from gpudiag.storage import shipment

    send_minutes = shipment.Shipment._send_minutes

    def die(self: shipment.Shipment, connection: object, found: object) -> None:
        send_minutes(self, connection, found)  # type: ignore[arg-type]
        postgres.stop(signal.SIGQUIT)

    monkeypatch.setattr(shipment.Shipment, "_send_minutes", die)
    try:
        assert forwarder.round().error != ""
    finally:
        monkeypatch.undo()
        postgres.start()
    assert forwarder.round().error == ""
    forwarder.round()
    assert_same(store, central)


KILLED = """
import os, signal, sys
from gpudiag.storage.forward import Forwarder
from gpudiag.storage.shipment import Shipment

class Clock:
    def now_ms(self): return 0

seen = []
acknowledge = Shipment._acknowledge
def die(self, stream, seq):
    seen.append(stream)
    if len(seen) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    acknowledge(self, stream, seq)
Shipment._acknowledge = die
print(Forwarder(sys.argv[1], sys.argv[2], "node1", Clock()).round().error)
"""


def test_kill_9_between_commit_and_acknowledgement_doubles_nothing(
    store: SqlStore, feed: Feed, url: str, sink_url: str, forwarder: Forwarder, central: SqlReader
) -> None:
    fill_all(store, feed)
    killed = 0
    for after in range(1, 7):
        child = subprocess.run(
            [sys.executable, "-c", KILLED, url, sink_url, str(1 + after % 3)],
            env={**os.environ, "PYTHONPATH": "src"},
            capture_output=True,
            check=False,
        )
        killed += child.returncode == -signal.SIGKILL
    assert killed >= 4
    assert forwarder.round().error == ""
    assert_same(store, central)
    assert rows(sink_url, "SELECT count(*), count(DISTINCT (source_id, t0)) FROM chunk") == [(4, 4)]


def test_a_new_local_file_does_not_overwrite_what_the_lost_one_sent(
    store: SqlStore,
    feed: Feed,
    forwarder: Forwarder,
    central: SqlReader,
    tmp_path: Path,
    sink_url: str,
    clock: FakeClock,
) -> None:
    fill(store, feed, 0, 500)
    forwarder.round()
    url = f"sqlite:///{tmp_path}/new.db"
    fresh = open_store(url, node=NODE, agent=True)
    fill(fresh, feed, 500, 1000)
    other = Forwarder(url, sink_url, NODE, clock)
    assert other.round().error == ""
    assert len(central.read(feed.sources[0], START_MS, END_MS)) == 1000
    other.close()
    fresh.close()


def test_a_file_put_aside_by_the_agent_is_followed(
    url: str, feed: Feed, sink_url: str, central: SqlReader, clock: FakeClock
) -> None:
    store = open_store(url, node=NODE, agent=True)
    fill(store, feed, 0, 500)
    one = Forwarder(url, sink_url, NODE, clock)
    assert one.round().error == ""
    store.close()
    put_aside(Path(url.removeprefix("sqlite:///")))
    store = open_store(url, node=NODE, agent=True)
    fill(store, feed, 500, 1000)
    assert one.round().error == ""
    assert len(central.read(feed.sources[0], START_MS, END_MS)) == 1000
    one.close()
    store.close()


def test_a_wrong_password_is_reported_without_it(
    store: SqlStore, url: str, postgres: Cluster, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    hba = postgres.directory / "data" / "pg_hba.conf"
    trusting = hba.read_text()
    postgres.execute("DROP ROLE IF EXISTS guest")
    postgres.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
    hba.write_text("host all guest 127.0.0.1/32 scram-sha-256\n" + trusting)
    postgres.execute("SELECT pg_reload_conf()")
    try:
        secret = postgres.url(user="guest", password="hunter2")
        one = Forwarder(url, secret, NODE, clock)
        state = one.round()
        one.close()
        assert "user name or password refused" in state.error
        assert "hunter2" not in state.error + caplog.text + repr(one) + str(store.events(0, 2**42))
        with pytest.raises(StoreError, match="refused") as caught:
            open_reader(secret)
        assert "hunter2" not in str(caught.value)
    finally:
        hba.write_text(trusting)
        postgres.execute("SELECT pg_reload_conf()")


def test_a_role_that_may_only_insert_is_enough(
    store: SqlStore,
    feed: Feed,
    url: str,
    sink_url: str,
    central: SqlReader,
    postgres: Cluster,
    clock: FakeClock,
) -> None:
    database = sink_url.rpartition("/")[2]
    postgres.execute("DROP ROLE IF EXISTS writer")
    postgres.execute("CREATE ROLE writer LOGIN")
    postgres.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO writer", database
    )
    postgres.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO writer", database)
    fill_all(store, feed)
    one = Forwarder(url, postgres.url(database, "writer"), NODE, clock)
    assert one.round().error == ""
    one.close()
    assert_same(store, central)
    postgres.execute("DROP OWNED BY writer", database)


def test_missing_rights_for_partitions_are_named(
    store: SqlStore, feed: Feed, url: str, sink_url: str, postgres: Cluster, clock: FakeClock
) -> None:
    database = sink_url.rpartition("/")[2]
    postgres.execute("DROP ROLE IF EXISTS intruder")
    postgres.execute("CREATE ROLE intruder LOGIN")
    postgres.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO intruder", database
    )
    postgres.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO intruder", database)
    postgres.execute("REVOKE EXECUTE ON FUNCTION gpudiag_partition FROM PUBLIC", database)
    old = Feed(start_ms=START_MS - 90 * 86_400_000)  # its day has no partition yet
    fill(store, old, 0, 1000)
    one = Forwarder(url, postgres.url(database, "intruder"), NODE, clock)
    error = one.round().error
    one.close()
    assert "permission denied for function gpudiag_partition" in error
    assert "\n" not in error
    postgres.execute("DROP OWNED BY intruder", database)
    assert feed.sources
