"""Progress on stderr: only on a terminal, and only once work has taken a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

if TYPE_CHECKING:
    from gpudiag.storage.sample import Block, Source
    from gpudiag.storage.store import Reader

Item = TypeVar("Item")

READS_PER_SOURCE = 2  # of a diagnosis: once, and again where there was no room to keep what the accounts need
_PATIENCE = 1.0
_REDRAW = 0.2
_CELLS = 30


class Meter:
    """A bar of how many of `total` steps are done, or without a total of the seconds gone by; `finish` erases it.

    A thread draws it, so that it also shows while one step takes long.
    """

    def __init__(
        self, total: int | None, label: str, stream: TextIO | None = None, patience: float = _PATIENCE
    ) -> None:
        self._total = total
        self._label = label
        self._stream = stream or sys.stderr
        self._patience = patience
        self._begun = time.monotonic()
        self._done = 0
        self._over = threading.Event()
        self._artist: threading.Thread | None = None
        if self._stream.isatty():
            self._artist = threading.Thread(target=self._draw, name="progress", daemon=True)
            self._artist.start()

    def step(self) -> None:
        """One step further."""
        self._done += 1

    def finish(self) -> None:
        """The work is over: the line is as it was before."""
        self._over.set()
        if self._artist is not None:
            self._artist.join()

    def _draw(self) -> None:
        shown = False
        wait = self._patience
        while not self._over.wait(wait):
            self._stream.write(f"\r{self._line()}\x1b[K")
            self._stream.flush()
            wait, shown = _REDRAW, True
        if shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _line(self) -> str:
        if self._total is None:
            return f"{self._label} ... {time.monotonic() - self._begun:.0f} s"
        ratio = min(self._done / max(self._total, 1), 1.0)
        bar = "#" * round(ratio * _CELLS)
        return f"{self._label} [{bar:.<{_CELLS}}] {ratio * 100:3.0f} %"


def progress(
    items: Iterable[Item], total: int, label: str, stream: TextIO | None = None, patience: float = _PATIENCE
) -> Iterator[Item]:
    """The items themselves, with a bar of how many are done."""
    meter = Meter(total, label, stream, patience)
    try:
        for item in items:
            yield item
            meter.step()
    finally:
        meter.finish()


@contextmanager
def busy(label: str, stream: TextIO | None = None, patience: float = _PATIENCE) -> Iterator[None]:
    """Work of unknown length: its name and the seconds that it has taken."""
    meter = Meter(None, label, stream, patience)
    try:
        yield
    finally:
        meter.finish()


@contextmanager
def watched(
    reader: Reader, reads: int, label: str, stream: TextIO | None = None, patience: float = _PATIENCE
) -> Iterator[Reader]:
    """The reader, with a bar of how many of so many reads are done."""
    meter = Meter(reads, label, stream, patience)
    try:
        yield counted(reader, meter)
    finally:
        meter.finish()


def counted(reader: Reader, meter: Meter) -> Reader:
    """The reader, each read of which is a step of the meter."""
    return cast("Reader", _Watched(reader, meter))


class _Watched:
    """A reader that counts what is read; everything else is the reader's own."""

    def __init__(self, reader: Reader, meter: Meter) -> None:
        self._reader = reader
        self._meter = meter

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: Sequence[str] | None = None) -> Block:
        block = self._reader.read(source, start_ms, end_ms, metrics)
        self._meter.step()
        return block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)
