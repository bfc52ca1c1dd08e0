"""Sources and series, which rows refer to by number: those of jobs and MIG instances come and go, and must go at last.

A writer remembers numbers. So writers hold all names while they write, pruning holds them alone, and each transaction of a
writer sees whether pruning was there since: then it looks its numbers up again. A source's number is never given twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, text

from gpudiag.storage import head
from gpudiag.storage.codec import DamagedChunk
from gpudiag.storage.database import Database
from gpudiag.storage.schema import DAY_MS, MINUTE_MS, MINUTES_PER_PART

_PRUNED = "names_pruned"
_BATCH = 2000
_DAY = DAY_MS // MINUTE_MS
_HOLD = "SELECT pg_advisory_xact_lock{}(hashtext('gpudiag_names'))"


def hold(database: Database, connection: Connection) -> int:
    """No name is removed until the transaction ends; how often some were removed before. A change makes numbers void."""
    if not database.sqlite:  # SQLite has one writer at a time anyway
        connection.execute(text(_HOLD.format("_shared")))
    return _times_pruned(database, connection)


def _times_pruned(database: Database, connection: Connection) -> int:
    meta = database.tables.meta.c
    return int(connection.execute(select(meta.value).where(meta.key == _PRUNED)).scalar() or 0)


def last_minute(minute: int) -> int:
    """What is noted as the end of a series: the last minute of that day, so that it is noted once a day."""
    return minute - minute % _DAY + _DAY - 1


def extend(database: Database, connection: Connection, ends: Mapping[int, int]) -> None:
    """The series with these numbers have minutes until then."""
    series = database.tables.series
    if ends:
        later = series.update().where(
            series.c.id == bindparam("number"), series.c.last_minute < bindparam("end")
        )
        rows = [{"number": number, "end": end} for number, end in sorted(ends.items())]
        connection.execute(later.values(last_minute=bindparam("end")), rows)


def prune(database: Database, first_minute: int, known_ms: int, sent_devices: int | None) -> int:
    """Remove series without minutes since `first_minute`, attributes of devices that others replaced before `known_ms`,
    and sources that nothing refers to; how many. Of devices only rows up to `sent_devices` go, unless it is None."""
    if not database.sqlite:
        first_minute -= MINUTES_PER_PART  # the oldest part goes only as a whole
    gone = 0
    while True:
        with database.transaction() as connection:
            if not database.sqlite:
                connection.execute(text(_HOLD.format("")))
            removed = _prune_series(database, connection, first_minute)
            removed += _prune_devices(database, connection, known_ms, sent_devices)
            removed += _prune_sources(database, connection, known_ms, sent_devices)
            if removed:
                times = str(_times_pruned(database, connection) + 1)
                database.replace(connection, "meta", [{"key": _PRUNED, "value": times}])
        gone += removed
        if removed < _BATCH:
            return gone


def _prune_series(database: Database, connection: Connection, first_minute: int) -> int:
    series, minute = database.tables.series, database.tables.minute
    if database.sqlite:  # what came late must not be taken for rows of the next series with this number
        connection.execute(delete(minute).where(minute.c.minute < first_minute))
    old = select(series.c.id).where(series.c.last_minute < first_minute).limit(_BATCH)
    return connection.execute(delete(series).where(series.c.id.in_(old))).rowcount


def _prune_devices(database: Database, connection: Connection, known_ms: int, sent: int | None) -> int:
    """Attributes that were replaced so long ago that no job is kept from their time."""
    device = database.tables.device
    later = device.alias()
    replaced = (
        select(later.c.source_id)
        .where(later.c.source_id == device.c.source_id)
        .where(later.c.since_ms > device.c.since_ms, later.c.since_ms < known_ms)
        .exists()
    )
    known = () if sent is None else (device.c.seq <= sent,)
    return connection.execute(delete(device).where(replaced, *known)).rowcount


def _prune_sources(database: Database, connection: Connection, known_ms: int, sent: int | None) -> int:
    tables = database.tables
    source, device = tables.source, tables.device
    referring = (tables.chunk, tables.series, tables.event, tables.finding, tables.allocation)
    unused = [~select(one.c.source_id).where(one.c.source_id == source.c.id).exists() for one in referring]
    fresh = (
        device.c.since_ms >= known_ms
        if sent is None
        else (device.c.since_ms >= known_ms) | (device.c.seq > sent)
    )
    unused.append(~select(device.c.source_id).where(device.c.source_id == source.c.id, fresh).exists())
    newest = select(func.max(source.c.id)).scalar_subquery()
    query = select(source).where(source.c.id < newest, *unused).limit(_BATCH)
    found = {(row.node, row.device): int(row.id) for row in connection.execute(query)}
    for name in _in_heads(database, connection, {node for node, _ in found}):
        found.pop(name, None)
    numbers = list(found.values())
    connection.execute(delete(device).where(device.c.source_id.in_(numbers)))
    return connection.execute(delete(source).where(source.c.id.in_(numbers))).rowcount if numbers else 0


def _in_heads(database: Database, connection: Connection, nodes: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Sources that have samples which are not sealed yet."""
    table = database.tables.head
    wanted = list(nodes)
    if not wanted:
        return
    query: Any = select(table.c.data)
    if not database.sqlite:
        query = query.where(table.c.node.in_(wanted))
    for data in connection.execute(query).scalars():
        try:
            yield from head.names(data)
        except DamagedChunk:
            continue
