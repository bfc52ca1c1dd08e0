"""Moves rows from a local SQLite store to Postgres: each batch one transaction there, then acknowledged here.

A crash between the two sends the batch again, which changes nothing: every row has a natural key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, case, func, select, text

from gpudiag.errors import RefusedRowError, StoreError
from gpudiag.storage import names, partitions
from gpudiag.storage.database import Database
from gpudiag.storage.remembering import make_room
from gpudiag.storage.rows import Row
from gpudiag.storage.schema import MINUTE_MS, WINDOW_MS

STREAMS = ("job", "allocation", "device", "event", "finding", "report")
_ROWS = 500
_CHUNKS = 32
_HEADS = 60
_MINUTE = {
    "minute": "integer", "series_id": "integer", "mean": "double precision", "min": "double precision",
    "max": "double precision", "count": "integer",
}  # fmt: skip
_PUT_MINUTES = text(
    f"INSERT INTO minute ({', '.join(_MINUTE)}) "
    f"SELECT * FROM unnest({', '.join(f'CAST(:{name} AS {kind}[])' for name, kind in _MINUTE.items())}) "
    "ON CONFLICT (minute, series_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in ("mean", "min", "max", "count"))
)


class Shipment:
    """One connection's worth of forwarding; ids of the sink are remembered only as long as it lives."""

    def __init__(self, local: Database, sink: Database, sink_name: str) -> None:
        self._local = local
        self._sink = sink
        self._name = sink_name
        self._source_ids: dict[int, int] = {}
        self._series_ids: dict[tuple[int, str, str], int] = {}
        self._series_ends: dict[int, int] = {}
        self._pruned = -1
        self._layouts: set[str] = set()
        self._days: set[int] = set()
        self._swept_at = -1
        self.rejected: list[tuple[str, Row, str]] = []

    def send_all(self) -> int:
        """Everything not yet acknowledged, oldest first; how many rows. Raises `StoreError`."""
        make_room(self._source_ids)
        make_room(self._series_ids)
        make_room(self._series_ends)
        self._send_layouts()
        sent = sum(self._drain(stream, _ROWS) for stream in STREAMS)
        sent += self._drain("chunk", _CHUNKS) + self._drain("head", _HEADS)
        self._sweep_heads()
        return sent

    def _drain(self, stream: str, limit: int) -> int:
        sent = 0
        while True:
            found = self._pending(stream, limit)
            if not found:
                return sent
            self._send_each(stream, found)
            self._acknowledge(stream, found[-1]["seq"])
            sent += len(found)

    def _send_each(self, stream: str, found: list[Row]) -> None:
        """Together; a row that the sink can never hold is left out, lest it keeps back all others for ever."""
        try:
            self._send(stream, [dict(row) for row in found])
        except RefusedRowError as error:
            if len(found) == 1:
                self.rejected.append((stream, found[0], str(error)))
                return
            middle = len(found) // 2
            self._send_each(stream, found[:middle])
            self._send_each(stream, found[middle:])

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction of the sink; ids are looked up again when names were pruned there, or when it fails."""
        try:
            with self._sink.transaction() as connection:
                pruned = names.hold(self._sink, connection)
                if pruned != self._pruned:
                    self._forget_ids()
                    self._pruned = pruned
                yield connection
        except BaseException:
            self._forget_ids()
            raise

    def _forget_ids(self) -> None:
        self._source_ids.clear()
        self._series_ids.clear()
        self._series_ends.clear()

    def _pending(self, stream: str, limit: int) -> list[Row]:
        table = getattr(self._local.tables, stream)
        with self._local.reading() as connection:
            cursor = self.cursor(connection, stream)
            query = select(table).where(table.c.seq > cursor).order_by(table.c.seq).limit(limit)
            return [dict(row) for row in connection.execute(query).mappings()]

    def cursor(self, connection: Connection, stream: str) -> int:
        """The last `seq` of a stream that the sink has for certain."""
        forward = self._local.tables.forward.c
        query = select(forward.seq).where(forward.sink == self._name, forward.stream == stream)
        return int(connection.execute(query).scalar() or 0)

    def _acknowledge(self, stream: str, seq: int) -> None:
        row: Row = {"sink": self._name, "stream": stream, "seq": seq}
        with self._local.transaction() as connection:
            self._local.replace(connection, "forward", [row])

    def _send(self, stream: str, found: list[Row]) -> None:
        if stream == "chunk":
            self._send_chunks(found)
            return
        with self._writing() as connection:
            if "source_id" in found[0]:
                self._map_sources(connection, found)
            if stream == "head":
                self._sink.insert_new(connection, "head", found)
                return
            rows = [{name: value for name, value in row.items() if name != "seq"} for row in found]
            if stream == "job":
                self._merge_jobs(connection, rows)
            elif stream == "event":
                self._sink.insert_new(connection, "event", rows)
            else:
                self._sink.replace(connection, stream, rows)

    def _send_chunks(self, found: list[Row]) -> None:
        days = {row["t0"] - row["t0"] % partitions.SIZES["chunk"] for row in found}
        if not days <= self._days:
            partitions.add(self._sink, days)
            self._days |= days
        minutes = self._minutes_of(found)
        with self._writing() as connection:
            self._map_sources(connection, [*found, *minutes])
            rows = [{name: value for name, value in row.items() if name != "seq"} for row in found]
            self._sink.insert_new(connection, "chunk", rows)
            self._send_minutes(connection, minutes)

    def _minutes_of(self, chunks: Iterable[Row]) -> list[Row]:
        tables = self._local.tables
        spans: dict[int, set[int]] = {}
        for chunk in chunks:
            spans.setdefault(chunk["t0"], set()).add(chunk["source_id"])
        found: list[Row] = []
        with self._local.reading() as connection:
            for t0, sources in sorted(spans.items()):
                query = (
                    select(
                        tables.minute,
                        tables.series.c.source_id,
                        tables.series.c.metric,
                        tables.series.c.origin,
                    )
                    .join(tables.series, tables.series.c.id == tables.minute.c.series_id)
                    .where(tables.minute.c.minute >= t0 // MINUTE_MS)
                    .where(tables.minute.c.minute < (t0 + WINDOW_MS) // MINUTE_MS)
                    .where(tables.series.c.source_id.in_(sources))
                )
                found += [dict(row) for row in connection.execute(query).mappings()]
        return found

    def _send_minutes(self, connection: Connection, found: list[Row]) -> None:
        """All rows in one statement: a statement per row is ten times slower."""
        if not found:
            return
        self._map_series(connection, {(row["source_id"], row["metric"], row["origin"]) for row in found})
        columns: dict[str, list[Any]] = {
            name: [row[name] for row in found] for name in _MINUTE if name in found[0]
        }
        columns["series_id"] = [
            self._series_ids[row["source_id"], row["metric"], row["origin"]] for row in found
        ]
        connection.execute(_PUT_MINUTES, {name: columns[name] for name in _MINUTE})
        self._extend_series(connection, zip(columns["series_id"], columns["minute"], strict=True))

    def _extend_series(self, connection: Connection, minutes: Iterable[tuple[int, int]]) -> None:
        latest: dict[int, int] = {}
        for number, minute in minutes:
            latest[number] = max(latest.get(number, 0), names.last_minute(minute))
        later = {number: end for number, end in latest.items() if self._series_ends.get(number, -1) < end}
        names.extend(self._sink, connection, later)
        self._series_ends.update(later)

    def _map_series(self, connection: Connection, wanted: set[tuple[int, str, str]]) -> None:
        unknown = sorted(wanted - self._series_ids.keys())
        if not unknown:
            return
        keys = ("source_id", "metric", "origin")
        self._sink.insert_new(connection, "series", [dict(zip(keys, key, strict=True)) for key in unknown])
        series = self._sink.tables.series.c
        query = select(self._sink.tables.series).where(series.source_id.in_({key[0] for key in unknown}))
        for row in connection.execute(query):
            self._series_ids[row.source_id, row.metric, row.origin] = row.id

    def _map_sources(self, connection: Connection, found: Iterable[Row]) -> None:
        """Replace local source ids by those of the sink, in place."""
        rows = list(found)
        unknown = {row["source_id"] for row in rows} - self._source_ids.keys()
        if unknown:
            source = self._local.tables.source
            with self._local.reading() as local:
                named = local.execute(select(source).where(source.c.id.in_(unknown))).mappings().all()
            for row in named:
                name: Row = {"node": row["node"], "device": row["device"]}
                self._source_ids[row["id"]] = self._id_of(connection, "source", name)
        if not {row["source_id"] for row in rows} <= self._source_ids.keys():
            raise StoreError("rows were pruned while they were sent; the next round sends what is left")
        for each in rows:
            each["source_id"] = self._source_ids[each["source_id"]]

    def _id_of(self, connection: Connection, table: str, row: Row) -> int:
        """The sink's number for a natural key; looked up first, so that no number is wasted."""
        columns = getattr(self._sink.tables, table).c
        query = select(columns.id).where(*(columns[name] == value for name, value in row.items()))
        number = connection.execute(query).scalar()
        if number is None:
            self._sink.insert_new(connection, table, [row])
            number = connection.execute(query).scalar_one()
        return int(number)

    def _send_layouts(self) -> None:
        layout = self._local.tables.layout
        with self._local.reading() as connection:
            found = [dict(row) for row in connection.execute(select(layout)).mappings()]
        new = [row for row in found if row["id"] not in self._layouts]
        if new:
            with self._sink.transaction() as connection:
                self._sink.insert_new(connection, "layout", new)
            self._layouts |= {row["id"] for row in new}

    def _merge_jobs(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Every node of a job sends it: the earliest start, the latest end and the worst outcome stand."""
        from sqlalchemy.dialects import postgresql  # 2 MB that an agent without a sink does without

        job = self._sink.tables.job.c
        insert = postgresql.insert(self._sink.tables.job)
        new = insert.excluded
        keeps = _severity(new.state) < _severity(job.state)
        values: dict[str, Any] = {
            name: new[name]
            for name in rows[0]
            if name not in ("key", "start_ms", "end_ms", "state", "exit_code")
        }
        values["start_ms"] = func.least(job.start_ms, new.start_ms)
        values["end_ms"] = func.greatest(job.end_ms, new.end_ms)
        values["state"] = case((keeps, job.state), else_=new.state)
        values["exit_code"] = case((keeps, job.exit_code), else_=new.exit_code)
        connection.execute(insert.on_conflict_do_update(index_elements=["key"], set_=values), list(rows))

    def _sweep_heads(self) -> None:
        """Drop the sink's flushes that are sealed here, once their chunks are there."""
        tables = self._local.tables
        with self._local.reading() as connection:
            newest = int(connection.execute(select(func.max(tables.chunk.c.seq))).scalar() or 0)
            if newest == self._swept_at or newest > self.cursor(connection, "chunk"):
                return
            kept = list(connection.execute(select(tables.head.c.seq)).scalars())
            instance = connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == "instance"))
            epoch = int(instance.scalar_one())
            nodes = list(connection.execute(select(tables.source.c.node).distinct()).scalars())
        head = self._sink.tables.head
        gone = (head.c.epoch == epoch, head.c.node.in_(nodes), head.c.seq.not_in(kept))
        with self._sink.transaction() as connection:
            connection.execute(head.delete().where(*gone))
        self._swept_at = newest


def _severity(state: Any) -> Any:
    """Without IN, which SQLAlchemy does not send for several rows at once."""
    return case((state == "unknown", 0), (state == "running", 0), (state == "completed", 1), else_=2)
