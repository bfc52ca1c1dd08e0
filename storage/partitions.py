"""Partitions of Postgres: chunks by day, per-minute rows by 30 days. They are added ahead and dropped whole."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text

from gpudiag.storage.database import Database
from gpudiag.storage.schema import DAY_MS, MINUTE_MS, MINUTES_PER_PART, WINDOW_MS

_DAYS_AHEAD = 7
SIZES = {"chunk": DAY_MS, "minute": MINUTES_PER_PART}


def add_coming(database: Database, now_ms: int) -> None:
    """The partitions of today and of the next week."""
    add(database, range(now_ms - WINDOW_MS, now_ms + _DAYS_AHEAD * DAY_MS, DAY_MS))


def add(database: Database, times_ms: Iterable[int]) -> None:
    """The partitions around these times, in a transaction of their own: adding one locks its parent."""
    times = list(times_ms)
    with database.transaction() as connection:
        for parent, keys in (("chunk", times), ("minute", [time // MINUTE_MS for time in times])):
            size = SIZES[parent]
            wanted = {key - key % size for key in keys} - set(existing(connection, parent))
            for low in sorted(wanted):
                connection.execute(
                    text("SELECT gpudiag_partition(:parent, :low, :high)"),
                    {"parent": parent, "low": low, "high": low + size},
                )


def existing(connection: Connection, parent: str) -> list[int]:
    """Lower bounds of a table's partitions."""
    query = text(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass(:parent)"
    )
    names = connection.execute(query, {"parent": parent}).scalars()
    return sorted(int(name.rpartition("_")[2]) for name in names)


def drop_before(database: Database, parent: str, key: int) -> int:
    """Drop the partitions that end by `key` (milliseconds for `chunk`, minutes for `minute`); how many."""
    with database.transaction() as connection:
        old = [low for low in existing(connection, parent) if low + SIZES[parent] <= key]
        for low in old:
            connection.exec_driver_sql(f"DROP TABLE {parent}_{low}")
    return len(old)


def drop_oldest(database: Database, parent: str, before: int) -> bool:
    """Drop the oldest partition, if it begins before a key."""
    with database.transaction() as connection:
        old = [low for low in existing(connection, parent) if low < before]
        if old:
            connection.exec_driver_sql(f"DROP TABLE {parent}_{old[0]}")
    return bool(old)
