"""`Reader` on either engine: the same queries, the same chunks, the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from gpudiag.storage import codec, head, rows
from gpudiag.storage.codec import DamagedChunk
from gpudiag.storage.database import Database
from gpudiag.storage.frozen import FrozenReport, report_of
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.layout import Layout
from gpudiag.storage.piece import Piece, merge, to_block
from gpudiag.storage.remembering import make_room
from gpudiag.storage.sample import Block, Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.store import JobFilter, StoredFinding

_ALL_JOBS = JobFilter()
Spans = list[tuple[int, int]]


class SqlReader:
    """Reads one database; short transactions, nothing cached but dictionaries that never change."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._layouts: dict[str, Layout] = {}
        self._source_ids: dict[Source, int] = {}

    def jobs(self, wanted: JobFilter = _ALL_JOBS) -> list[Job]:
        """Matching jobs, latest start first."""
        job = self.database.tables.job
        query = select(job).where(*self._conditions(wanted)).order_by(job.c.start_ms.desc(), job.c.key)
        if wanted.limit:
            query = query.limit(wanted.limit)
        return [rows.job_of(row) for row in self._all(query)]

    def _conditions(self, wanted: JobFilter) -> list[ColumnElement[bool]]:
        tables = self.database.tables
        job = tables.job.c
        conditions: list[ColumnElement[bool]] = []
        if wanted.id:
            conditions.append(_id_matches(job, wanted.id))
        if wanted.user:
            conditions.append(job.user_name == wanted.user)
        if wanted.state:
            conditions.append(job.state == wanted.state)
        if wanted.node:
            on_node = select(tables.allocation.c.job_key).join(
                tables.source, tables.source.c.id == tables.allocation.c.source_id
            )
            conditions.append(job.key.in_(on_node.where(tables.source.c.node == wanted.node)))
        if wanted.start_ms is not None:
            conditions.append(or_(job.end_ms.is_(None), job.end_ms >= wanted.start_ms))
        if wanted.end_ms is not None:
            conditions.append(job.start_ms < wanted.end_ms)
        return conditions

    def allocations(self, job_key: str) -> list[Allocation]:
        """The job's devices over all nodes; by source, then start."""
        tables = self.database.tables
        query = self._with_source(tables.allocation).where(tables.allocation.c.job_key == job_key)
        found = [rows.allocation_of(row) for row in self._all(query)]
        return sorted(found, key=lambda allocation: (allocation.source, allocation.start_ms))

    def devices(self, sources: Iterable[Source]) -> dict[Source, Device]:
        """Latest known attributes of each."""
        device = self.database.tables.device
        wanted = {self._source_id(source): source for source in sources}
        wanted.pop(None, None)
        query = select(device).where(device.c.source_id.in_(wanted)).order_by(device.c.since_ms)
        found: dict[Source, Device] = {}
        for row in self._all(query):
            source = wanted[row["source_id"]]
            found[source] = rows.device_of(source, row["since_ms"], row["body"])
        return found

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: Sequence[str] | None = None) -> Block:
        """Samples with `start_ms <= time < end_ms`; of the chunks only the wanted columns are decoded.

        A chunk or flush whose bytes are damaged is left out and its interval listed in `damaged_ms`.
        """
        wanted = None if metrics is None else frozenset(metrics)
        damaged: Spans = []
        with self.database.reading() as connection:
            pieces = self._sealed(connection, source, start_ms, end_ms, wanted, damaged)
            pieces += self._unsealed(connection, source, start_ms, end_ms, wanted, damaged)
        return to_block(merge(source, pieces).between(start_ms, end_ms), damaged)

    def sources(self, start_ms: int, end_ms: int) -> list[Source]:
        """Sources that have samples there, sorted."""
        tables = self.database.tables
        chunk = tables.chunk.c
        sealed = (
            select(tables.source.c.node, tables.source.c.device)
            .join(tables.chunk, chunk.source_id == tables.source.c.id)
            .where(
                *_window_touches(chunk, start_ms, end_ms), chunk.first_ms < end_ms, chunk.last_ms >= start_ms
            )
            .distinct()
        )
        with self.database.reading() as connection:
            found = {Source(row.node, row.device) for row in connection.execute(sealed)}
            for row in self._heads(connection, start_ms, end_ms):
                try:
                    found.update(self._sources_of_head(connection, row["data"], start_ms, end_ms))
                except DamagedChunk:
                    continue
        return sorted(found)

    def events(
        self, start_ms: int, end_ms: int, node: str | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        """Events with `start_ms <= time < end_ms`, in time order."""
        tables = self.database.tables
        event = tables.event.c
        query = self._with_source(tables.event).where(event.time_ms >= start_ms, event.time_ms < end_ms)
        if node is not None:
            query = query.where(tables.source.c.node == node)
        if kinds:
            query = query.where(event.kind.in_(kinds))
        found = [rows.event_of(row) for row in self._all(query)]
        return sorted(
            found, key=lambda event: (event.time_ms, event.source, event.kind, event.code, event.ordinal)
        )

    def findings(self, start_ms: int, end_ms: int, job_key: str | None = None) -> list[StoredFinding]:
        """Findings of the live agent that touch the interval, in time order."""
        tables = self.database.tables
        finding = tables.finding.c
        query = self._with_source(tables.finding).where(
            finding.start_ms < end_ms, or_(finding.end_ms.is_(None), finding.end_ms >= start_ms)
        )
        if job_key is not None:
            query = query.where(finding.job_key == job_key)
        found = [rows.finding_of(row) for row in self._all(query)]
        return sorted(found, key=lambda finding: (finding.start_ms, finding.rule, finding.source))

    def report(self, job_key: str) -> FrozenReport | None:
        """The job's frozen report."""
        table = self.database.tables.report
        found = self._all(select(table).where(table.c.job_key == job_key))
        return report_of(found[0]) if found else None

    def jobs_to_freeze(self, ended_before_ms: int) -> list[Job]:
        """Jobs that ended before, or began before and were never said to end, without a frozen report; oldest first."""
        tables = self.database.tables
        job = tables.job.c
        frozen = select(tables.report.c.job_key)
        over = func.coalesce(job.end_ms, job.start_ms)
        query = select(tables.job).where(over < ended_before_ms, job.key.not_in(frozen))
        return [rows.job_of(row) for row in self._all(query.order_by(over, job.key))]

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()

    def _all(self, query: Select[Any]) -> list[Any]:
        with self.database.reading() as connection:
            return list(connection.execute(query).mappings())

    def _with_source(self, table: Any) -> Select[Any]:
        source = self.database.tables.source
        return select(table, source.c.node, source.c.device).join(source, source.c.id == table.c.source_id)

    def _source_id(self, source: Source) -> int | None:
        if source not in self._source_ids:
            with self.database.reading() as connection:
                self._find_source(connection, source)
        return self._source_ids.get(source)

    def _find_source(self, connection: Connection, source: Source) -> int | None:
        if source not in self._source_ids:
            table = self.database.tables.source.c
            query = select(table.id).where(table.node == source.node, table.device == source.device)
            number = connection.execute(query).scalar()
            if number is None:
                return None
            make_room(self._source_ids)
            self._source_ids[source] = int(number)
        return self._source_ids[source]

    def _layout(self, connection: Connection, layout_id: str) -> Layout:
        if layout_id not in self._layouts:
            table = self.database.tables.layout.c
            body = connection.execute(select(table.body).where(table.id == layout_id)).scalar()
            if body is None:
                raise DamagedChunk(f"layout {layout_id} is unknown")
            self._layouts[layout_id] = Layout.parse(body)
        return self._layouts[layout_id]

    def _sealed(
        self,
        connection: Connection,
        source: Source,
        start_ms: int,
        end_ms: int,
        wanted: frozenset[str] | None,
        damaged: Spans,
    ) -> list[Piece]:
        chunk = self.database.tables.chunk.c
        number = self._find_source(connection, source)
        if number is None:
            return []
        query = (
            select(
                chunk.first_ms, chunk.last_ms, chunk.n, chunk.layout_id, chunk.codec, chunk.crc, chunk.data
            )
            .where(chunk.source_id == number, *_window_touches(chunk, start_ms, end_ms))
            .where(chunk.first_ms < end_ms, chunk.last_ms >= start_ms)
            .order_by(chunk.t0, chunk.epoch)
        )
        pieces = []
        for row in connection.execute(query):
            try:
                pieces.append(self._decode(connection, source, row, wanted).between(start_ms, end_ms))
            except DamagedChunk:
                damaged.append((int(row.first_ms), int(row.last_ms) + 1))
        return pieces

    def _decode(
        self, connection: Connection, source: Source, row: Any, wanted: frozenset[str] | None
    ) -> Piece:
        layout = self._layout(connection, row.layout_id)
        if row.codec != codec.CODEC:
            raise DamagedChunk(f"codec {row.codec} is unknown")
        if codec.checksum(row.data) != row.crc:
            raise DamagedChunk("checksum differs")
        kept = [i for i, (name, _) in enumerate(layout.columns) if wanted is None or name in wanted]
        times, columns = codec.decode(row.data, kept)
        if wanted is not None:
            layout = Layout(tuple(layout.columns[i] for i in kept))
        return Piece(source, layout, times, columns)

    def _unsealed(
        self,
        connection: Connection,
        source: Source,
        start_ms: int,
        end_ms: int,
        wanted: frozenset[str] | None,
        damaged: Spans,
    ) -> list[Piece]:
        pieces = []
        for row in self._heads(connection, start_ms, end_ms, source.node):
            try:
                for piece in self._unpack(connection, row["data"], source):
                    kept = piece if wanted is None else piece.only(wanted)
                    pieces.append(kept.between(start_ms, end_ms))
            except DamagedChunk:
                damaged.append((row["t0"], row["t1"] + 1))
        return pieces

    def _heads(
        self, connection: Connection, start_ms: int, end_ms: int, node: str | None = None
    ) -> list[Any]:
        """Head rows that touch the interval; on SQLite the one file holds few and mixed nodes."""
        table = self.database.tables.head.c
        query = select(table.t0, table.t1, table.data).where(table.t0 < end_ms, table.t1 >= start_ms)
        if node is not None and not self.database.sqlite:
            query = query.where(table.node == node)
        return list(connection.execute(query.order_by(table.epoch, table.seq)).mappings())

    def _unpack(self, connection: Connection, data: bytes, only: Source | None = None) -> list[Piece]:
        return head.unpack(data, lambda layout_id: self._layout(connection, layout_id), only)

    def _sources_of_head(
        self, connection: Connection, data: bytes, start_ms: int, end_ms: int
    ) -> set[Source]:
        pieces = self._unpack(connection, data)
        return {piece.source for piece in pieces if len(piece.between(start_ms, end_ms).times)}


def _window_touches(chunk: Any, start_ms: int, end_ms: int) -> tuple[ColumnElement[bool], ...]:
    """Bounds on the key column, so that the index and Postgres partitions are used."""
    return chunk.t0 > start_ms - WINDOW_MS, chunk.t0 < end_ms


def _id_matches(job: Any, text: str) -> ColumnElement[bool]:
    """`42` also means its array tasks `42_7`, its parts `42+1`; `42.0` means the job of that step."""
    whole = text.split(".", 1)[0] if text.rpartition(".")[2].isdigit() else text
    forms = [job.id == text, job.raw_id == text, job.key == text, job.name == text]
    if whole != text:
        forms += [job.id == whole, job.raw_id == whole]
    parts = [job.id.startswith(f"{whole}{sign}", autoescape=True) for sign in "_+"]
    return or_(*forms, and_(func.length(job.id) > len(whole), or_(*parts)))
