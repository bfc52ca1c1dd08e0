"""What a database holds: `gpudiag db status`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import func, select

from gpudiag.storage.reader import SqlReader
from gpudiag.storage.retention import used_bytes_of
from gpudiag.storage.schema import SCHEMA_VERSION

_COUNTED = (
    "head", "chunk", "minute", "job", "event", "finding", "report", "source", "series", "device", "layout",
)  # fmt: skip


@dataclass(frozen=True)
class Status:
    """Numbers of one database; times are UNIX milliseconds, None when nothing is stored."""

    place: str
    schema: int
    bytes: int
    rows: dict[str, int]
    chunk_bytes: int
    samples: int
    first_ms: int | None
    last_ms: int | None
    sinks: dict[str, int]

    def document(self) -> dict[str, Any]:
        """JSON for `--json`."""
        return {
            "schema_version": 1,
            "database": self.place,
            "schema": self.schema,
            "bytes": self.bytes,
            "rows": self.rows,
            "chunk_bytes": self.chunk_bytes,
            "samples": self.samples,
            "first": iso(self.first_ms),
            "last": iso(self.last_ms),
            "backlog_chunks": self.sinks,
        }


def status(reader: SqlReader) -> Status:
    """Count everything once."""
    tables = reader.database.tables
    chunk, head = tables.chunk.c, tables.head.c
    with reader.database.reading() as connection:

        def one(query: Any) -> int | None:
            value = connection.execute(query).scalar()
            return None if value is None else int(value)

        def rows(name: str) -> int:
            return one(select(func.count()).select_from(getattr(tables, name))) or 0

        firsts = [one(select(func.min(chunk.first_ms))), one(select(func.min(head.t0)))]
        lasts = [one(select(func.max(chunk.last_ms))), one(select(func.max(head.t1)))]
        sinks = {}
        if reader.database.sqlite:
            forward = tables.forward.c
            for row in connection.execute(select(forward.sink, forward.seq).where(forward.stream == "chunk")):
                sinks[row.sink] = one(select(func.count()).where(chunk.seq > row.seq)) or 0
        return Status(
            reader.database.place,
            SCHEMA_VERSION,
            used_bytes_of(connection, reader.database.sqlite),
            {name: rows(name) for name in _COUNTED},
            one(select(func.sum(func.length(chunk.data)))) or 0,
            one(select(func.sum(chunk.n))) or 0,
            min((value for value in firsts if value is not None), default=None),
            max((value for value in lasts if value is not None), default=None),
            sinks,
        )


def iso(time_ms: int | None) -> str | None:
    """UNIX milliseconds as ISO 8601 in UTC, whole seconds."""
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="seconds")
