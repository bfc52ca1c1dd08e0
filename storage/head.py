"""One flush as one blob: small, quick to write, and readable without any other table.

`zlib(u32 length, JSON [[node, device, layout id, rows], ...], per part: times i64 [rows], values f64 [metrics, rows])`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpudiag.storage.codec import DamagedChunk
from gpudiag.storage.layout import Column, Layout
from gpudiag.storage.piece import Piece
from gpudiag.storage.remembering import make_room
from gpudiag.storage.sample import Frame, Source

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class _Known:
    """The columns of a source, as the frames name them."""

    layout: Layout
    names: tuple[str, ...]
    members: frozenset[str]
    origins: Mapping[str, str]


class Packer:
    """Frames to pieces, one per source; remembers each source's columns so that layouts stay few."""

    def __init__(self) -> None:
        self._known: dict[Source, _Known] = {}

    def pieces(self, frames: Sequence[Frame]) -> list[Piece]:
        """Frames of one source and instant become one row; the order within a source is kept."""
        by_source: dict[Source, list[Frame]] = {}
        for frame in frames:
            by_source.setdefault(frame.source, []).append(frame)
        return [self._piece(source, group) for source, group in by_source.items()]

    def _piece(self, source: Source, frames: list[Frame]) -> Piece:
        known = self._known.get(source)
        if known is not None:
            usual = _usual(known, source, frames)
            if usual is not None:
                return usual
        rows: dict[int, dict[Column, float]] = {}
        for frame in frames:
            row = rows.setdefault(frame.time_ms, {})
            row.update(((name, frame.origins.get(name, "")), value) for name, value in frame.values.items())
        layout = self._extend(source, [column for row in rows.values() for column in row])
        values = [[row.get(column, np.nan) for column in layout.columns] for row in rows.values()]
        return _piece(source, layout, list(rows), values)

    def _extend(self, source: Source, seen: list[Column]) -> Layout:
        """The source's layout, with columns added when these are new."""
        known = self._known.get(source)
        if known is not None and known.layout.members.issuperset(seen):
            return known.layout
        before = () if known is None else known.layout.columns
        layout = Layout(tuple(dict.fromkeys((*before, *seen))))
        names = tuple(name for name, _ in layout.columns)
        origins = {name: origin for name, origin in layout.columns if origin}
        make_room(self._known)
        self._known[source] = _Known(layout, names, frozenset(names), origins)
        return layout


def _usual(known: _Known, source: Source, frames: list[Frame]) -> Piece | None:
    """The usual flush, with hardly a look at each value: known columns, one origin each, each instant once."""
    if len(known.members) < len(known.names):
        return None
    times: dict[int, list[float]] = {}
    for frame in frames:
        values = frame.values
        if frame.origins != known.origins or frame.time_ms in times:
            return None
        if tuple(values) == known.names:
            times[frame.time_ms] = list(values.values())
        elif known.members.issuperset(values):
            times[frame.time_ms] = [values.get(name, np.nan) for name in known.names]
        else:
            return None
    return _piece(source, known.layout, list(times), list(times.values()))


def _piece(source: Source, layout: Layout, times: list[int], rows: list[list[float]]) -> Piece:
    matrix = np.array(rows, np.float64).reshape(len(times), len(layout.columns))
    return Piece(source, layout, np.array(times, np.int64), np.ascontiguousarray(matrix.T))


def pack(pieces: Iterable[Piece]) -> bytes:
    """The blob of one flush."""
    parts: list[list[object]] = []
    arrays: list[bytes] = []
    for piece in pieces:
        parts.append([piece.source.node, piece.source.device, piece.layout.id, len(piece.times)])
        arrays.append(piece.times.tobytes())
        arrays.append(piece.columns.tobytes())
    index = json.dumps(parts, separators=(",", ":")).encode()
    return zlib.compress(_LENGTH.pack(len(index)) + index + b"".join(arrays), 1)


def unpack(data: bytes, layout_of: Callable[[str], Layout], only: Source | None = None) -> list[Piece]:
    """The pieces of a blob, all or those of one source; raises `DamagedChunk`."""
    raw = _inflate(data)
    parts, offset = _index(raw)
    pieces = []
    for node, device, layout_id, rows in parts:
        layout, source = layout_of(layout_id), Source(node, device)
        size = 8 * rows * (1 + len(layout.columns))
        if only is None or source == only:
            pieces.append(_part(raw[offset : offset + size], source, layout, rows))
        offset += size
    return pieces


def names(data: bytes) -> list[tuple[str, str]]:
    """Node and device of each source in a blob; raises `DamagedChunk`."""
    return [(node, device) for node, device, _, _ in _index(_inflate(data))[0]]


def _inflate(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise DamagedChunk(str(error)) from error


def _index(raw: bytes) -> tuple[list[tuple[str, str, str, int]], int]:
    try:
        end = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
        return json.loads(raw[_LENGTH.size : end]), end
    except (struct.error, ValueError) as error:
        raise DamagedChunk(str(error)) from error


def _part(raw: bytes, source: Source, layout: Layout, rows: int) -> Piece:
    if len(raw) != 8 * rows * (1 + len(layout.columns)):
        raise DamagedChunk("the flush is cut short")
    times = np.frombuffer(raw, np.int64, rows)
    values = np.frombuffer(raw, np.float64, offset=8 * rows).reshape(len(layout.columns), rows)
    return Piece(source, layout, times, values)
