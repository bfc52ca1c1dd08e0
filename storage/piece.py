"""Stretches of samples of one source, and how several become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpudiag.storage.layout import Column, Layout
from gpudiag.storage.sample import Block, Floats, Millis, Source


@dataclass(frozen=True)
class Piece:
    """`times` [n] and `columns` [columns of the layout, n]; NaN is missing."""

    source: Source
    layout: Layout
    times: Millis
    columns: Floats

    def between(self, start_ms: int, end_ms: int) -> Piece:
        """The samples with `start_ms <= time < end_ms`; a view when times are sorted."""
        keep = (self.times >= start_ms) & (self.times < end_ms)
        if keep.all():
            return self
        return Piece(self.source, self.layout, self.times[keep], self.columns[:, keep])

    def only(self, metrics: frozenset[str]) -> Piece:
        """The columns of these metrics."""
        kept = [i for i, (name, _) in enumerate(self.layout.columns) if name in metrics]
        layout = Layout(tuple(self.layout.columns[i] for i in kept))
        return Piece(self.source, layout, self.times, self.columns[kept])


def merge(source: Source, pieces: Sequence[Piece]) -> Piece:
    """One sorted piece with each instant once; where several pieces measured it, the later value stands."""
    layout = _union(piece.layout for piece in pieces)
    if not pieces:
        return Piece(source, layout, np.empty(0, np.int64), np.empty((0, 0)))
    times = np.concatenate([piece.times for piece in pieces])
    columns = np.concatenate([_spread(piece, layout) for piece in pieces], axis=1)
    if len(times) < 2 or (np.diff(times) > 0).all():
        return Piece(source, layout, times, columns)
    order = np.argsort(times, kind="stable")
    times = times[order]
    starts = np.flatnonzero(np.diff(times, prepend=times[0] - 1))
    return Piece(source, layout, times[starts], _latest(columns[:, order], starts))


def to_block(piece: Piece, damaged_ms: Iterable[tuple[int, int]] = ()) -> Block:
    """Each metric from the origin that measured it most; the other origins are named, not mixed in."""
    chosen: dict[str, tuple[int, str, Floats]] = {}
    for (name, origin), column in zip(piece.layout.columns, piece.columns, strict=True):
        count = int(np.count_nonzero(~np.isnan(column)))
        if count and (name not in chosen or (count, origin) > chosen[name][:2]):
            chosen[name] = (count, origin, column)
    dropped = _dropped(piece, chosen)
    return Block(
        piece.source,
        piece.times,
        {name: column for name, (_, _, column) in sorted(chosen.items())},
        {name: origin for name, (_, origin, _) in sorted(chosen.items()) if origin},
        dropped,
        tuple(sorted(set(damaged_ms))),
    )


def _dropped(piece: Piece, chosen: dict[str, tuple[int, str, Floats]]) -> dict[str, tuple[str, ...]]:
    dropped: dict[str, list[str]] = {}
    for (name, origin), column in zip(piece.layout.columns, piece.columns, strict=True):
        if name in chosen and origin != chosen[name][1] and not np.isnan(column).all():
            dropped.setdefault(name, []).append(origin)
    return {name: tuple(sorted(origins)) for name, origins in sorted(dropped.items())}


def _union(layouts: Iterable[Layout]) -> Layout:
    distinct = list(dict.fromkeys(layouts))
    if len(distinct) == 1:
        return distinct[0]
    columns: dict[Column, None] = {}
    for layout in distinct:
        columns.update(dict.fromkeys(layout.columns))
    return Layout(tuple(columns))


def _spread(piece: Piece, layout: Layout) -> Floats:
    """The piece's columns at their places in a wider layout."""
    if piece.layout == layout:
        return piece.columns
    spread = np.full((len(layout.columns), len(piece.times)), np.nan)
    place = {column: i for i, column in enumerate(layout.columns)}
    spread[[place[column] for column in piece.layout.columns]] = piece.columns
    return spread


def _latest(columns: Floats, starts: Millis) -> Floats:
    """Per column and group of equal times, the last value that is there."""
    measured = np.where(np.isnan(columns), -1, np.arange(columns.shape[1]))
    last = np.maximum.reduceat(measured, starts, axis=1)
    found = np.take_along_axis(columns, np.maximum(last, 0), axis=1)
    return np.where(last >= 0, found, np.nan)
