"""`Store` on either engine: flushes into `head`, complete windows sealed into chunks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, select

from gpudiag.errors import CorruptStoreError, StoreError
from gpudiag.storage import head, names, rows
from gpudiag.storage.database import Database
from gpudiag.storage.frozen import FrozenReport, report_row
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.layout import Layout
from gpudiag.storage.lock import AgentLock
from gpudiag.storage.piece import Piece
from gpudiag.storage.reader import SqlReader
from gpudiag.storage.remembering import make_room
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.schema import WINDOW_MS, window_of
from gpudiag.storage.seal import Sealer
from gpudiag.storage.store import StoredFinding

log = logging.getLogger(__name__)
GRACE_MS = 15_000


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SqlStore(SqlReader):
    """One writer. Every public call is one transaction, durable when it returns."""

    def __init__(
        self,
        database: Database,
        node: str,
        *,
        lock: AgentLock | None = None,
        seal_on_close: bool = False,
        now_ms: Callable[[], int] = _wall_clock_ms,
    ) -> None:
        super().__init__(database)
        self.node = node
        self._lock = lock
        self._seal_on_close = seal_on_close
        self._now_ms = now_ms
        self._packer = head.Packer()
        self._stored_layouts: set[str] = set()
        self._series_ids: dict[tuple[int, str, str], int] = {}
        self._series_ends: dict[int, int] = {}
        self._pruned = -1
        self._sealer = Sealer(self)
        self._newest_ms = 0
        self._written_heads = 0
        self.epoch = self._instance()

    def _instance(self) -> int:
        """When this file was made: tells its chunks from those of a file that it replaces.

        On Postgres, which many write to: when this writer came.
        """
        if not self.database.sqlite:
            return self._now_ms()
        meta = self.database.tables.meta.c
        with self.writing() as connection:
            row: rows.Row = {"key": "instance", "value": str(self._now_ms())}
            self.database.insert_new(connection, "meta", [row])
            return int(connection.execute(select(meta.value).where(meta.key == "instance")).scalar_one())

    def append(self, frames: Sequence[Frame]) -> None:
        """One flush. Frames of a source come in time order; windows that are complete are sealed."""
        if not frames:
            return
        pieces = self._packer.pieces(frames)
        parts_by_row = _split(pieces)
        with self.writing() as connection:
            self._put_layouts(connection, pieces)
            for (_, node), parts in parts_by_row.items():
                self._put_head(connection, node, parts)
        newest = max(int(piece.times.max()) for piece in pieces)
        try:
            self._seal_complete(newest)
        except CorruptStoreError:
            raise
        except StoreError as error:  # the flush itself is on disk, so it must not be called lost
            log.warning("sealing is put off: %s", error)
            self._newest_ms = 0

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction; when it fails, so do the ids that were given out in it."""
        try:
            with self.database.transaction() as connection:
                pruned = names.hold(self.database, connection)
                if pruned != self._pruned:
                    self._forget_ids()
                    self._pruned = pruned
                yield connection
        except BaseException as error:
            self._forget_ids()
            self._stored_layouts.clear()
            if self._lock is not None and isinstance(error, CorruptStoreError):
                self._lock.mark_suspect()
            raise

    def _forget_ids(self) -> None:
        self._source_ids.clear()
        self._series_ids.clear()
        self._series_ends.clear()

    def _seal_complete(self, newest_ms: int) -> None:
        """Seal when time has passed a window's end; a clock that steps back only delays it."""
        if window_of(newest_ms - GRACE_MS) > window_of(self._newest_ms - GRACE_MS):
            self.seal(window_of(newest_ms - GRACE_MS))
        self._newest_ms = newest_ms

    def seal(self, before_ms: int, everyone: bool = False) -> int:
        """Turn the flushes of each window that ended by `before_ms` into chunks; how many windows.

        On Postgres only this writer's flushes, or `everyone`'s: those of nodes that never came back.
        """
        return self._sealer.seal(before_ms, everyone or self.database.sqlite)

    def put_job(self, job: Job) -> None:
        """Insert, or replace the row with the same key."""
        with self.writing() as connection:
            self.database.replace(connection, "job", [rows.job_row(job)])

    def put_allocations(self, allocations: Iterable[Allocation]) -> None:
        """Insert, or replace rows with the same job, source and start."""
        with self.writing() as connection:
            found = [rows.allocation_row(a, self._ensure_source(connection, a.source)) for a in allocations]
            self.database.replace(connection, "allocation", found)

    def put_devices(self, devices: Iterable[Device]) -> None:
        """Insert those whose attributes differ from the latest known."""
        table = self.database.tables.device
        with self.writing() as connection:
            for device in devices:
                source_id = self._ensure_source(connection, device.source)
                latest = select(table.c.body).where(table.c.source_id == source_id)
                body = rows.device_body(device)
                if connection.execute(latest.order_by(table.c.since_ms.desc()).limit(1)).scalar() != body:
                    row: rows.Row = {"source_id": source_id, "since_ms": device.since_ms, "body": body}
                    self.database.replace(connection, "device", [row])

    def put_events(self, events: Iterable[Event]) -> None:
        """Insert; a repeated natural key is ignored."""
        with self.writing() as connection:
            found = [rows.event_row(e, self._ensure_source(connection, e.source)) for e in events]
            self.database.insert_new(connection, "event", found)

    def put_findings(self, findings: Iterable[StoredFinding]) -> None:
        """Insert, or replace rows with the same rule, source and start."""
        with self.writing() as connection:
            found = [rows.finding_row(f, self._ensure_source(connection, f.source)) for f in findings]
            self.database.replace(connection, "finding", found)

    def put_report(self, report: FrozenReport) -> None:
        """Insert, or replace the report of the same job."""
        with self.writing() as connection:
            self.database.replace(connection, "report", [report_row(report)])

    def close(self) -> None:
        """Close; an import seals the windows that are past, which an agent does when it comes to the next."""
        if self.database.closed:
            return
        if self._seal_on_close:
            self.seal(window_of(self._now_ms()))
        super().close()
        if self._lock is not None:
            self._lock.release()

    def _ensure_source(self, connection: Connection, source: Source) -> int:
        number = self._find_source(connection, source)
        if number is None:
            row: rows.Row = {"node": source.node, "device": source.device}
            self.database.insert_new(connection, "source", [row])
            number = self._find_source(connection, source)
        assert number is not None
        return number

    def _ensure_series(self, connection: Connection, source_id: int, metric: str, origin: str) -> int:
        key = (source_id, metric, origin)
        if key not in self._series_ids:
            row: rows.Row = {"source_id": source_id, "metric": metric, "origin": origin}
            self.database.insert_new(connection, "series", [row])
            make_room(self._series_ids)
            table = self.database.tables.series.c
            same = (table.source_id == source_id, table.metric == metric, table.origin == origin)
            self._series_ids[key] = int(connection.execute(select(table.id).where(*same)).scalar_one())
        return self._series_ids[key]

    def _extend_series(self, connection: Connection, minutes: Mapping[int, int]) -> None:
        """Note until when the series have rows; `minutes` maps their ids to their latest minute."""
        ends = {number: names.last_minute(minute) for number, minute in minutes.items()}
        later = {number: end for number, end in ends.items() if self._series_ends.get(number, -1) < end}
        names.extend(self.database, connection, later)
        make_room(self._series_ends)
        self._series_ends.update(later)

    def _put_layouts(self, connection: Connection, pieces: Iterable[Piece]) -> None:
        new: dict[str, Layout] = {
            p.layout.id: p.layout for p in pieces if p.layout.id not in self._stored_layouts
        }
        self.database.insert_new(connection, "layout", [{"id": i, "body": new[i].body} for i in new])
        self._stored_layouts.update(new)

    def _put_head(self, connection: Connection, node: str, pieces: Sequence[Piece]) -> None:
        t0 = min(int(piece.times.min()) for piece in pieces)
        t1 = max(int(piece.times.max()) for piece in pieces)
        row: rows.Row = {
            "node": node,
            "epoch": self.epoch,
            "t0": t0,
            "t1": t1,
            "data": head.pack(pieces),
        }
        if not self.database.sqlite:
            self._written_heads += 1
            row["seq"] = self._written_heads
        connection.execute(self.database.tables.head.insert(), row)


def _split(pieces: Sequence[Piece]) -> dict[tuple[int, str], list[Piece]]:
    """One head row per window and node: usually the whole flush."""
    found: dict[tuple[int, str], list[Piece]] = {}
    for piece in pieces:
        first, last = window_of(int(piece.times.min())), window_of(int(piece.times.max()))
        for start in range(first, last + 1, WINDOW_MS):
            part = piece if first == last else piece.between(start, start + WINDOW_MS)
            if len(part.times):
                found.setdefault((start, piece.source.node), []).append(part)
    return found
