"""Complete windows of `head` become one chunk per source, with their per-minute rows, in one transaction."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, delete, func, select, tuple_

from gpudiag.storage import codec, partitions
from gpudiag.storage.codec import DamagedChunk
from gpudiag.storage.job import Event
from gpudiag.storage.piece import Piece, merge
from gpudiag.storage.rollup import headlines
from gpudiag.storage.rows import event_row
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.schema import WINDOW_MS, window_of

if TYPE_CHECKING:
    from gpudiag.storage.sqlstore import SqlStore

_KEYS = 1000  # in one statement, which takes 32766 parameters on SQLite


class Sealer:
    """Seals for one store."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._tables = store.database.tables

    def seal(self, before_ms: int, everyone: bool) -> int:
        """Seal each window that ended by `before_ms`; one transaction per window. Returns how many."""
        head = self._tables.head.c
        mine: tuple[ColumnElement[bool], ...] = () if everyone else (head.epoch == self._store.epoch,)
        sealed = 0
        while True:
            oldest = self._oldest(mine)
            if oldest is None or window_of(oldest.t0) + WINDOW_MS > before_ms:
                return sealed
            window, these = window_of(oldest.t0), mine
            if not self._store.database.sqlite:  # which may hold the flushes of a thousand nodes
                these = (*mine, head.node == oldest.node)
                partitions.add(self._store.database, [window])
            with self._store.writing() as connection:
                self._seal_window(connection, window, these)
            sealed += 1

    def _oldest(self, mine: tuple[ColumnElement[bool], ...]) -> Any:
        head = self._tables.head.c
        with self._store.database.reading() as connection:
            query = select(head.t0, head.node).where(*mine).order_by(head.t0).limit(1)
            return connection.execute(query).first()

    def _seal_window(
        self, connection: Connection, window: int, mine: tuple[ColumnElement[bool], ...]
    ) -> None:
        head = self._tables.head.c
        inside = (head.t0 >= window, head.t0 < window + WINDOW_MS, *mine)
        by_source: dict[Source, list[Piece]] = defaultdict(list)
        keys: list[tuple[str, int, int]] = []
        query = select(self._tables.head).where(*inside).order_by(head.epoch, head.seq)
        for row in connection.execute(query):
            keys.append((row.node, row.epoch, row.seq))
            try:
                for piece in self._store._unpack(connection, row.data):
                    by_source[piece.source].append(piece)
            except DamagedChunk as error:
                self._note_damage(connection, row, str(error))
        for source, pieces in sorted(by_source.items()):
            self._put(connection, window, merge(source, pieces))
        key = tuple_(head.node, head.epoch, head.seq)
        for some in (keys[i : i + _KEYS] for i in range(0, len(keys), _KEYS)):
            connection.execute(delete(self._tables.head).where(key.in_(some)))

    def _note_damage(self, connection: Connection, row: Any, reason: str) -> None:
        """A flush that cannot be read is a gap from now on; the event says where and why."""
        source = Source(row.node, NODE)
        detail = {"start_ms": row.t0, "end_ms": row.t1, "reason": reason}
        event = event_row(
            Event(source, row.t0, "flush_damaged", detail=detail),
            self._store._ensure_source(connection, source),
        )
        self._store.database.insert_new(connection, "event", [event])

    def _put(self, connection: Connection, window: int, piece: Piece) -> None:
        source_id = self._store._ensure_source(connection, piece.source)
        chunk = self._tables.chunk
        same_window = (chunk.c.source_id == source_id, chunk.c.t0 == window)
        latest = connection.execute(select(func.max(chunk.c.epoch)).where(*same_window)).scalar()
        data = codec.encode(piece.times, piece.columns)
        row: dict[str, Any] = {
            "source_id": source_id,
            "t0": window,
            "epoch": self._store.epoch if latest is None else max(self._store.epoch, latest + 1),
            "first_ms": int(piece.times[0]),
            "last_ms": int(piece.times[-1]),
            "n": len(piece.times),
            "layout_id": piece.layout.id,
            "codec": codec.CODEC,
            "crc": codec.checksum(data),
            "data": data,
        }
        connection.execute(chunk.insert(), row)
        self._store._put_layouts(connection, [piece])
        if latest is not None:  # a late or stepped-back flush: the minute is of all the window's samples
            earlier = self._store._sealed(connection, piece.source, window, window + WINDOW_MS, None, [])
            piece = merge(piece.source, earlier)
        self._put_minutes(connection, source_id, piece)

    def _put_minutes(self, connection: Connection, source_id: int, piece: Piece) -> None:
        names = ("minute", "mean", "min", "max", "count")
        found: list[dict[str, object]] = []
        latest: dict[int, int] = {}
        for (metric, origin), minutes in headlines(piece):
            series_id = self._store._ensure_series(connection, source_id, metric, origin)
            latest[series_id] = minutes[-1][0]
            found += [{"series_id": series_id, **dict(zip(names, minute, strict=True))} for minute in minutes]
        found.sort(key=lambda row: (row["minute"], row["series_id"]))
        self._store.database.replace(connection, "minute", found)
        self._store._extend_series(connection, latest)
