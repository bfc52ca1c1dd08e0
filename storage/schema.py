"""Tables of both engines, as SQLAlchemy Core.

SQLite numbers every row that the forwarder sends (`seq`, AUTOINCREMENT: a replaced row gets a new number);
Postgres has the natural key alone, and partitions `chunk` by day. Times are UNIX milliseconds, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.schema import SchemaItem

SCHEMA_VERSION = 3
APPLICATION_ID = 0x67706467  # "gpdg", so that another program's SQLite file is never mistaken for ours
WINDOW_MS = 15 * 60 * 1000
DAY_MS = 24 * 3600 * 1000
MINUTE_MS = 60 * 1000
MINUTES_PER_PART = 30 * 24 * 60


def window_of(time_ms: int) -> int:
    """Start of the aligned 15-minute window around a time."""
    return time_ms - time_ms % WINDOW_MS


@dataclass(frozen=True)
class Schema:
    """The tables as one engine has them."""

    sqlite: bool
    metadata: MetaData
    meta: Table[Any]
    source: Table[Any]
    layout: Table[Any]
    head: Table[Any]
    chunk: Table[Any]
    series: Table[Any]
    minute: Table[Any]
    job: Table[Any]
    allocation: Table[Any]
    device: Table[Any]
    event: Table[Any]
    finding: Table[Any]
    report: Table[Any]
    forward: Table[Any]

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """Natural key of each table that is written more than once."""
        return NATURAL_KEYS


NATURAL_KEYS = {
    "meta": ("key",),
    "source": ("node", "device"),
    "layout": ("id",),
    "head": ("node", "epoch", "seq"),
    "chunk": ("source_id", "t0", "epoch"),
    "series": ("source_id", "metric", "origin"),
    "minute": ("minute", "series_id"),
    "job": ("key",),
    "allocation": ("job_key", "source_id", "start_ms"),
    "device": ("source_id", "since_ms"),
    "event": ("source_id", "time_ms", "kind", "code", "ordinal"),
    "finding": ("rule", "source_id", "start_ms"),
    "report": ("job_key",),
    "forward": ("sink", "stream"),
}


def build(sqlite: bool) -> Schema:
    """The tables for SQLite or for Postgres."""
    metadata = MetaData()
    tables = {name: make(metadata, sqlite) for name, make in _TABLES.items()}
    return Schema(sqlite, metadata, **tables)


def _identified(name: str, metadata: MetaData, *columns: SchemaItem) -> Table[Any]:
    """A small dictionary: a number for a natural key."""
    number = Column("id", Integer, primary_key=True)
    return Table(name, metadata, number, *columns, UniqueConstraint(*NATURAL_KEYS[name]))


def _numbered(
    name: str, metadata: MetaData, sqlite: bool, *columns: SchemaItem, **options: Any
) -> Table[Any]:
    """A table that the forwarder follows."""
    key = NATURAL_KEYS[name]
    if not sqlite:
        return Table(name, metadata, *columns, PrimaryKeyConstraint(*key), **options)
    number = Column("seq", Integer, primary_key=True)
    return Table(name, metadata, number, *columns, UniqueConstraint(*key), sqlite_autoincrement=True)


def _meta(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return Table("meta", metadata, Column("key", Text, primary_key=True), _text("value"))


def _source(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return _identified("source", metadata, _text("node"), _text("device"))


def _layout(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return Table("layout", metadata, Column("id", Text, primary_key=True), _text("body"))


def _head(metadata: MetaData, sqlite: bool) -> Table[Any]:
    columns: list[Column[Any]] = [
        _text("node"),
        _big("epoch"),
        _big("t0"),
        _big("t1"),
        Column("data", LargeBinary, nullable=False),
    ]
    if sqlite:
        number = Column("seq", Integer, primary_key=True)
        return Table("head", metadata, number, *columns, sqlite_autoincrement=True)
    key = PrimaryKeyConstraint(*NATURAL_KEYS["head"])
    return Table("head", metadata, _big("seq"), *columns, key, Index("head_t0", "t0"))


def _chunk(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return _numbered(
        "chunk",
        metadata,
        sqlite,
        _int("source_id"),
        _big("t0"),
        _big("epoch"),
        _big("first_ms"),
        _big("last_ms"),
        _int("n"),
        _text("layout_id"),
        Column("codec", SmallInteger, nullable=False),
        _big("crc"),
        Column("data", LargeBinary, nullable=False),
        postgresql_partition_by="RANGE (t0)",
    )


def _series(metadata: MetaData, sqlite: bool) -> Table[Any]:
    names = (_int("source_id"), _text("metric"), _text("origin"))
    return _identified(
        "series", metadata, *names, Column("last_minute", Integer, nullable=False, server_default="0")
    )


def _minute(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return Table(
        "minute",
        metadata,
        _int("minute"),
        _int("series_id"),
        *(Column(name, Double, nullable=False) for name in ("mean", "min", "max")),
        _int("count"),
        PrimaryKeyConstraint(*NATURAL_KEYS["minute"]),
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (minute)",
    )


def _job(metadata: MetaData, sqlite: bool) -> Table[Any]:
    texts = ("key", "id", "cluster", "raw_id", "name", "user_name", "state", "tags", "meta")
    return _numbered(
        "job",
        metadata,
        sqlite,
        *(_text(name) for name in texts),
        _big("start_ms"),
        _big("end_ms", nullable=True),
        _int("exit_code", nullable=True),
        _int("restart"),
        Index("job_id", "id"),
        Index("job_start", "start_ms"),
    )


def _allocation(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return _numbered(
        "allocation",
        metadata,
        sqlite,
        _text("job_key"),
        _int("source_id"),
        _big("start_ms"),
        _big("end_ms", nullable=True),
        _text("known_from"),
        Column("confidence", Double, nullable=False),
        Index("allocation_source", "source_id"),
    )


def _device(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return _numbered("device", metadata, sqlite, _int("source_id"), _big("since_ms"), _text("body"))


def _event(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return _numbered(
        "event",
        metadata,
        sqlite,
        _int("source_id"),
        _big("time_ms"),
        _text("kind"),
        _big("code"),
        _int("ordinal"),
        _text("detail"),
        Index("event_time", "time_ms"),
    )


def _finding(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return _numbered(
        "finding",
        metadata,
        sqlite,
        _text("rule"),
        _int("source_id"),
        _big("start_ms"),
        _big("end_ms", nullable=True),
        _text("severity"),
        _text("job_key"),
        _text("body"),
        Index("finding_start", "start_ms"),
        Index("finding_source", "source_id"),
    )


def _report(metadata: MetaData, sqlite: bool) -> Table[Any]:
    return _numbered(
        "report",
        metadata,
        sqlite,
        _text("job_key"),
        _int("schema_version"),
        _big("frozen_ms"),
        _text("verdict"),
        Column("lost_gpu_hours", Double, nullable=False),
        _text("rules"),
        _text("body"),
    )


def _forward(metadata: MetaData, sqlite: bool) -> Table[Any]:
    """How far each stream has been acknowledged by a sink; only SQLite forwards."""
    key = PrimaryKeyConstraint(*NATURAL_KEYS["forward"])
    return Table("forward", metadata, _text("sink"), _text("stream"), _big("seq"), key)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _int(name: str, nullable: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=nullable)


def _big(name: str, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


_TABLES = {
    "meta": _meta,
    "source": _source,
    "layout": _layout,
    "head": _head,
    "chunk": _chunk,
    "series": _series,
    "minute": _minute,
    "job": _job,
    "allocation": _allocation,
    "device": _device,
    "event": _event,
    "finding": _finding,
    "report": _report,
    "forward": _forward,
}
