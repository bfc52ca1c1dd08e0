"""What is kept for how long, on either engine. Chunks go first, events and findings last, reports stay longest."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select

from gpudiag.storage import engine as engines
from gpudiag.storage import names, partitions
from gpudiag.storage.job import Event
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.schema import DAY_MS, MINUTE_MS, WINDOW_MS, Schema
from gpudiag.storage.sqlstore import SqlStore

log = logging.getLogger(__name__)
_ORPHAN_MS = 2 * 3_600_000
_FREE_PAGES = 1000


@dataclass(frozen=True)
class Policy:
    """Days that each kind of row is kept, and the most bytes that the database may use (0: no cap)."""

    raw_days: float = 14.0
    minute_days: float = 400.0
    event_days: float = 800.0
    job_days: float = 1830.0
    max_bytes: int = 0


@dataclass(frozen=True)
class Pruned:
    """What went: rows, on Postgres whole partitions of `chunks` and `minutes`; `names`: sources, series, devices' attributes.

    `dropped_chunks` had to go for the byte cap although the sink had not acknowledged them.
    """

    chunks: int = 0
    minutes: int = 0
    events: int = 0
    findings: int = 0
    jobs: int = 0
    names: int = 0
    dropped_chunks: int = 0
    sealed_windows: int = 0

    @property
    def anything(self) -> bool:
        """Whether the database changed."""
        return any(vars(self).values())


def prune(store: SqlStore, policy: Policy, now_ms: int, sink: str = "") -> Pruned:
    """Remove what is older than the policy allows, then what exceeds the cap, oldest first.

    `sink` is the name of the Postgres that this store is forwarded to: what it has not acknowledged outlives its
    age, and only the cap removes it.
    """
    pruned = _prune_postgres(store, policy, now_ms) if not store.database.sqlite else Pruned()
    if store.database.sqlite:
        pruned = _prune_sqlite(store, policy, now_ms, sink)
    pruned = _prune_old_rows(store, policy, now_ms, sink, pruned)
    return replace(pruned, names=_prune_names(store, policy, now_ms, sink))


def used_bytes(store: SqlStore) -> int:
    """Bytes of the database that hold something."""
    with store.database.reading() as connection:
        return used_bytes_of(connection, store.database.sqlite)


def used_bytes_of(connection: Connection, sqlite: bool) -> int:
    """The same, over a connection."""
    if not sqlite:
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
    pages, free, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _prune_sqlite(store: SqlStore, policy: Policy, now_ms: int, sink: str) -> Pruned:
    tables = store.database.tables
    chunk, minute = tables.chunk, tables.minute
    with store.writing() as connection:
        sent = _acknowledged(connection, store, "chunk", sink)
        old = chunk.c.t0 < _cutoff(now_ms, policy.raw_days) - WINDOW_MS
        chunks = connection.execute(delete(chunk).where(old, *_sent_only(chunk, sent))).rowcount
        before = _cutoff(now_ms, policy.minute_days) // MINUTE_MS
        minutes = connection.execute(delete(minute).where(minute.c.minute < before)).rowcount
    pruned = Pruned(chunks=chunks, minutes=minutes)
    if policy.max_bytes:
        pruned = _cap_sqlite(store, policy.max_bytes, sent, now_ms, pruned)
    return pruned


def _cap_sqlite(store: SqlStore, cap: int, sent: int | None, now_ms: int, pruned: Pruned) -> Pruned:
    """Drop the oldest windows, then the oldest minutes, until the cap holds. Events and findings stay."""
    chunks, dropped, minutes = pruned.chunks, 0, pruned.minutes
    while used_bytes(store) > cap:
        with store.writing() as connection:
            gone, unsent = _drop_oldest_windows(
                connection, store, used_over=used_bytes_of(connection, True) - cap, sent=sent
            )
            if not gone:
                some = _drop_oldest_minutes(connection, store)
                minutes += some
                if not some:
                    log.warning(
                        "the database exceeds its cap of %d bytes with events and findings alone", cap
                    )
                    break
        chunks, dropped = chunks + gone, dropped + unsent
    if dropped:
        detail = {"chunks": dropped, "max_bytes": cap}
        store.put_events([Event(Source(store.node, NODE), now_ms, "backlog_dropped", detail=detail)])
    return replace(pruned, chunks=chunks, minutes=minutes, dropped_chunks=dropped)


def _drop_oldest_windows(
    connection: Connection, store: SqlStore, used_over: int, sent: int | None
) -> tuple[int, int]:
    """Chunks removed, and how many of them were not acknowledged."""
    chunk = store.database.tables.chunk
    freed, gone, unsent = 0, 0, 0
    query = select(chunk.c.seq, func.length(chunk.c.data)).order_by(chunk.c.t0, chunk.c.seq).limit(500)
    oldest: list[int] = []
    for seq, size in connection.execute(query):
        if freed >= used_over:
            break
        oldest.append(seq)
        freed, gone = freed + size, gone + 1
        unsent += sent is not None and seq > sent
    if oldest:
        connection.execute(delete(chunk).where(chunk.c.seq.in_(oldest)))
    return gone, unsent


def _drop_oldest_minutes(connection: Connection, store: SqlStore) -> int:
    minute = store.database.tables.minute
    oldest = connection.execute(select(func.min(minute.c.minute))).scalar()
    if oldest is None:
        return 0
    return connection.execute(delete(minute).where(minute.c.minute < oldest + 24 * 60)).rowcount


def _prune_postgres(store: SqlStore, policy: Policy, now_ms: int) -> Pruned:
    database = store.database
    partitions.add_coming(database, now_ms)
    sealed = store.seal(now_ms - _ORPHAN_MS, everyone=True)
    chunks = partitions.drop_before(database, "chunk", _cutoff(now_ms, policy.raw_days))
    minutes = partitions.drop_before(database, "minute", _cutoff(now_ms, policy.minute_days) // MINUTE_MS)
    today = now_ms - now_ms % DAY_MS
    while policy.max_bytes and used_bytes(store) > policy.max_bytes:
        if not partitions.drop_oldest(database, "chunk", today):
            break
        chunks += 1
    return Pruned(chunks=chunks, minutes=minutes, sealed_windows=sealed)


def _prune_old_rows(store: SqlStore, policy: Policy, now_ms: int, sink: str, pruned: Pruned) -> Pruned:
    tables = store.database.tables
    events, jobs = _cutoff(now_ms, policy.event_days), _cutoff(now_ms, policy.job_days)

    def old(connection: Connection, table: Table[Any], *conditions: ColumnElement[bool]) -> int:
        sent = _sent_only(table, _acknowledged(connection, store, table.name, sink))
        return connection.execute(delete(table).where(*conditions, *sent)).rowcount

    job, finding, event = tables.job, tables.finding, tables.event
    with store.writing() as connection:
        gone = or_(job.c.end_ms < jobs, and_(job.c.start_ms < jobs, _never_ended(tables, job)))
        keys = select(job.c.key).where(gone)
        for table in (tables.allocation, tables.report):
            old(connection, table, table.c.job_key.in_(keys))
        left = select(tables.allocation.c.job_key).where(tables.allocation.c.job_key == job.c.key).exists()
        over = or_(finding.c.end_ms < events, and_(finding.c.start_ms < events, _abandoned(tables, finding)))
        return replace(
            pruned,
            events=old(connection, event, event.c.time_ms < events),
            findings=old(connection, finding, over),
            jobs=old(connection, job, gone, ~left),  # its last row: what was not sent yet stays with it
        )


def _never_ended(tables: Schema, job: Table[Any]) -> ColumnElement[bool]:
    """Open, and nothing is sampled any more where it ran: its node went away and never told an end."""
    chunk, allocation = tables.chunk.c, tables.allocation
    sampled = (
        select(chunk.source_id)
        .join(allocation, allocation.c.source_id == chunk.source_id)
        .where(allocation.c.job_key == job.c.key)
    )
    return and_(job.c.end_ms.is_(None), ~sampled.exists())


def _abandoned(tables: Schema, finding: Table[Any]) -> ColumnElement[bool]:
    """The same of a finding."""
    chunk = tables.chunk.c
    sampled = select(chunk.source_id).where(chunk.source_id == finding.c.source_id)
    return and_(finding.c.end_ms.is_(None), ~sampled.exists())


def _prune_names(store: SqlStore, policy: Policy, now_ms: int, sink: str) -> int:
    with store.database.reading() as connection:
        sent = _acknowledged(connection, store, "device", sink)
    first_minute = _cutoff(now_ms, policy.minute_days) // MINUTE_MS
    return names.prune(store.database, first_minute, _cutoff(now_ms, policy.job_days), sent)


def _acknowledged(connection: Connection, store: SqlStore, stream: str, sink: str) -> int | None:
    """The last row the sink has; None when there is no sink to wait for."""
    if not sink:
        return None
    forward = store.database.tables.forward.c
    query = select(forward.seq).where(forward.sink == sink, forward.stream == stream)
    return int(connection.execute(query).scalar() or 0)


def _sent_only(table: Table[Any], sent: int | None) -> tuple[ColumnElement[bool], ...]:
    return () if sent is None else (table.c.seq <= sent,)


def _cutoff(now_ms: int, days: float) -> int:
    return now_ms - int(days * DAY_MS)


def vacuum(store: SqlStore, full: bool = False) -> int:
    """Give free space back to the file system; bytes. On Postgres, VACUUM (ANALYZE)."""
    before = _size(store)
    raw: Any = store.database.engine.raw_connection()
    try:
        if store.database.sqlite:
            # execute() would step this statement once and so free one page; executescript runs it to its end
            raw.driver_connection.executescript("VACUUM;" if full else "PRAGMA incremental_vacuum;")
            raw.driver_connection.executescript("PRAGMA wal_checkpoint(TRUNCATE);")
        else:
            raw.driver_connection.autocommit = True
            raw.driver_connection.execute("VACUUM (FULL, ANALYZE)" if full else "VACUUM (ANALYZE)")
            raw.driver_connection.autocommit = False
    except store.database.engine.dialect.loaded_dbapi.Error as error:
        raise engines.translate(error, store.database.place) from error
    finally:
        raw.close()
    return max(0, before - _size(store))


def _size(store: SqlStore) -> int:
    with store.database.reading() as connection:
        if not store.database.sqlite:
            return used_bytes_of(connection, False)
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def worth_vacuuming(store: SqlStore) -> bool:
    """Free pages are used again, so only a file that shrank a lot (a shorter retention) is worth the writes."""
    if not store.database.sqlite:
        return False
    with store.database.reading() as connection:
        free, pages = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("freelist_count", "page_count")
        )
    return free > _FREE_PAGES and free * 4 > pages
