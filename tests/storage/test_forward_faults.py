"""What a real Postgres does to a forwarder besides stopping: it takes nothing that was committed, and nothing is sent twice."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing

import psycopg
import pytest
from postgres import Cluster

from gpudiag.storage.forward import Forwarder
from gpudiag.storage.job import Event, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.reader import SqlReader
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.sqlstore import SqlStore

from .conftest import NODE, START_MS, Feed  # isort: skip
from .test_forward import (  # isort: skip
    END_MS, FakeClock, assert_same, central, clock, fill, fill_all, forwarder, rows, sink_url,
)  # fmt: skip

pytestmark = pytest.mark.integration
__all__ = ["central", "clock", "forwarder", "sink_url"]


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def settle(forwarder: Forwarder) -> None:
    """One round that works, and one for the events that the first made."""
    assert forwarder.round().error == ""
    assert forwarder.round().error == ""


def test_rows_that_postgres_cannot_hold_keep_back_no_others(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader
) -> None:
    fill_all(store, feed)
    store.put_job(Job("c/bad/1", "bad", START_MS, START_MS + 1, exit_code=2**40))
    store.put_job(Job("c/nul/1", "nul", START_MS, START_MS + 1, name="a\0b"))
    store.put_job(Job("c/after/1", "after", START_MS, START_MS + 1))
    store.put_events(
        [Event(feed.sources[0], START_MS + 6, "n\0l"), Event(feed.sources[0], START_MS + 7, "after")]
    )
    store.append([Frame(Source("n\0l", "GPU-0"), START_MS + 3_000_000, {"power_watts": 1.0})])
    settle(forwarder)
    assert {job.id for job in central.jobs()} == {"42", "after"}
    kinds = [(event.kind, event.time_ms) for event in central.events(0, END_MS)]
    assert ("after", START_MS + 7) in kinds
    assert len(central.read(feed.sources[0], START_MS, END_MS)) == 2000
    assert [event.kind for event in store.events(0, 2**42)].count("forward_rejected") >= 1


def test_connections_that_are_ended_in_the_middle_lose_nothing(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader, sink_url: str, postgres: Cluster
) -> None:
    stop = threading.Event()
    ended: list[int] = []

    def end_all() -> None:
        query = (
            "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{name_of(sink_url)}' AND state <> 'idle') AS ended"
        )
        rng = random.Random(1)
        while not stop.wait(rng.uniform(0, 0.03)):
            ended.append(int(str(postgres.execute(query)[0][0])))

    killer = threading.Thread(target=end_all)
    killer.start()
    failed = 0
    try:
        for second in range(0, 5000, 250):
            fill(store, feed, second, second + 250)
            failed += forwarder.round().error != ""
    finally:
        stop.set()
        killer.join()
    settle(forwarder)
    assert sum(ended) >= 3
    assert failed >= 3
    assert_same(store, central)
    assert rows(sink_url, "SELECT count(*), count(DISTINCT (source_id, t0)) FROM chunk") == [(10, 10)]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("default_transaction_read_only = on", "read-only transaction"),
        ("statement_timeout = 1", None),
    ],
)
def test_a_server_that_refuses_to_write_is_caught_up_when_it_takes_writes_again(
    store: SqlStore,
    feed: Feed,
    url: str,
    sink_url: str,
    central: SqlReader,
    postgres: Cluster,
    clock: FakeClock,
    setting: str,
    message: str | None,
) -> None:
    name = name_of(sink_url)
    fill_all(store, feed)
    one = Forwarder(url, sink_url, NODE, clock)
    postgres.execute(f"ALTER DATABASE {name} SET {setting}")
    try:
        error = one.round().error
        if message is not None:
            assert message in error
        assert "\n" not in error
    finally:
        postgres.execute(f"ALTER DATABASE {name} RESET ALL")
    settle(one)
    one.close()
    assert_same(store, central)


def test_a_password_that_was_changed_counts_without_a_restart(
    store: SqlStore,
    feed: Feed,
    url: str,
    sink_url: str,
    central: SqlReader,
    postgres: Cluster,
    clock: FakeClock,
) -> None:
    fill_all(store, feed)
    name = name_of(sink_url)
    hba = postgres.directory / "data" / "pg_hba.conf"
    trusting = hba.read_text()
    for statement in ("DROP ROLE IF EXISTS rotated", "CREATE ROLE rotated LOGIN SUPERUSER PASSWORD 'old'"):
        postgres.execute(statement)
    hba.write_text("host all rotated 127.0.0.1/32 scram-sha-256\n" + trusting)
    postgres.execute("SELECT pg_reload_conf()")
    file = ["old"]
    one = Forwarder(url, lambda: postgres.url(name, "rotated", file[0]), NODE, clock)
    try:
        assert one.round().error == ""
        postgres.execute("ALTER ROLE rotated PASSWORD 'new'")
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'")
        fill(store, feed, 2000, 2100)
        errors = [one.round().error for _ in range(2)]
        assert "password refused" in errors[1]
        file[0] = "new"
        settle(one)
    finally:
        one.close()
        hba.write_text(trusting)
        postgres.execute("SELECT pg_reload_conf()")
    assert_same(store, central)


def test_a_server_without_a_free_connection_is_an_outage_like_any_other(
    store: SqlStore,
    feed: Feed,
    url: str,
    sink_url: str,
    central: SqlReader,
    postgres: Cluster,
    clock: FakeClock,
) -> None:
    fill_all(store, feed)
    name = name_of(sink_url)
    postgres.execute("DROP ROLE IF EXISTS crowd")
    postgres.execute("CREATE ROLE crowd LOGIN CONNECTION LIMIT 1")
    postgres.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO crowd", name)
    postgres.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO crowd", name)
    sink = postgres.url(name, "crowd")
    one = Forwarder(url, sink, NODE, clock)
    with closing(psycopg.connect(sink)):
        error = one.round().error
        assert "too many connections" in error
        assert "\n" not in error
    settle(one)
    one.close()
    assert_same(store, central)
    postgres.execute("DROP OWNED BY crowd", name)


def test_somebody_else_who_holds_a_lock_delays_and_loses_nothing(
    store: SqlStore, feed: Feed, url: str, sink_url: str, central: SqlReader, clock: FakeClock
) -> None:
    fill_all(store, feed)
    one = Forwarder(url, f"{sink_url}?options=-c%20lock_timeout%3D200ms", NODE, clock)
    with closing(psycopg.connect(sink_url)) as idle:  # idle in transaction, as somebody's notebook is
        idle.execute("LOCK TABLE chunk IN ACCESS EXCLUSIVE MODE")
        error = one.round().error
        assert "lock timeout" in error
        assert "\n" not in error
    settle(one)
    one.close()
    assert_same(store, central)


def test_a_chunk_whose_partition_was_dropped_meanwhile_gets_it_again(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader, sink_url: str
) -> None:
    fill(store, feed, 0, 1000)
    settle(forwarder)
    day = START_MS - START_MS % 86_400_000
    with psycopg.connect(sink_url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE chunk_{day}")  # type: ignore[arg-type]
    fill(store, feed, 1000, 2000)
    forwarder.round()
    settle(forwarder)
    assert len(central.read(feed.sources[0], START_MS + 900_000, END_MS)) == 1100


def test_two_agents_that_call_themselves_alike_are_both_kept(
    tmp_path: object, sink_url: str, central: SqlReader, clock: FakeClock, feed: Feed
) -> None:
    """A mistake of a site (two nodes named localhost): nobody's samples push out the other's."""
    for number, power in ((1, 100.0), (2, 200.0)):
        url = f"sqlite:///{tmp_path}/{number}.db"
        time.sleep(0.002)  # no two files are made in the same millisecond
        store = open_store(url, node=NODE)
        own = Source(NODE, f"GPU-{number}")
        for first in range(0, 1200, 100):
            store.append(
                [Frame(own, START_MS + 1000 * s, {"power_watts": power}) for s in range(first, first + 100)]
            )
        store.close()
        one = Forwarder(url, sink_url, NODE, clock)
        assert one.round().error == ""
        one.close()
    for number, power in ((1, 100.0), (2, 200.0)):
        block = central.read(Source(NODE, f"GPU-{number}"), START_MS, END_MS)
        assert block.columns["power_watts"].tolist() == [power] * 1200


def test_a_node_whose_clock_is_years_off_is_kept_where_it_says_it_was(
    store: SqlStore, feed: Feed, forwarder: Forwarder, central: SqlReader
) -> None:
    for start_ms in (0, 2**31 * 1000 - 450_000, START_MS):
        moved = Feed(start_ms=start_ms)
        fill(store, moved, 0, 1000)
    settle(forwarder)
    assert_same(store, central)
    assert len(central.read(feed.sources[0], 0, 2**43)) == 3000


def test_flushes_of_many_nodes_that_never_came_back_are_sealed(sink_url: str, central: SqlReader) -> None:
    """A hall that lost its power: more flushes in a window than one statement takes parameters."""
    with psycopg.connect(sink_url, autocommit=True) as connection:
        data = _flush(central, sink_url)
        connection.execute(
            "INSERT INTO head (seq, node, epoch, t0, t1, data) "
            "SELECT s, 'n' || n, 1, %(t0)s + s * 10000, %(t0)s + s * 10000 + 9000, %(data)s "
            "FROM generate_series(1, 300) AS n, generate_series(0, 89) AS s",
            {"t0": START_MS, "data": data},
        )
    store = open_store(sink_url, node="central")
    assert isinstance(store, SqlStore)
    assert store.seal(START_MS + 900_000, everyone=True) >= 1
    store.close()
    assert rows(sink_url, "SELECT count(*) FROM head") == [(0,)]


def _flush(central: SqlReader, sink_url: str) -> bytes:
    store = open_store(sink_url, node="x")
    store.append([Frame(Source("x", "GPU-x"), START_MS, {"power_watts": 1.0})])
    (found,) = rows(sink_url, "SELECT data FROM head")
    store.database.close()
    with psycopg.connect(sink_url, autocommit=True) as connection:
        connection.execute("DELETE FROM head")
    return bytes(found[0])  # type: ignore[call-overload,no-any-return]
