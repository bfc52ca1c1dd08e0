"""Progress bars: on a terminal, after a second, and gone afterwards."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from gpudiag.cli.progress import Meter, busy, progress, watched
from gpudiag.storage.sample import Block, Source

ERASED = "\r\x1b[K"


class Terminal(io.StringIO):
    """Says when something was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Semaphore(0)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        self.drawn.release()
        return written

    def wait(self, frames: int = 1) -> None:
        for _ in range(frames):
            assert self.drawn.acquire(timeout=60)


def test_a_bar_is_drawn_once_the_work_has_taken_long_and_erased_at_the_end() -> None:
    stream = Terminal()
    items = []
    for item in progress(range(10), 10, "reading", stream, patience=0.0):
        items.append(item)
        if item == 2:
            stream.wait(2)
    assert items == list(range(10))
    frames = stream.getvalue().split("\r")
    assert "reading [######........................]  20 %\x1b[K" in frames
    assert frames[-1] == "\x1b[K"


def test_quick_work_shows_nothing() -> None:
    stream = Terminal()
    assert list(progress(range(1000), 1000, "reading", stream, patience=600.0)) == list(range(1000))
    assert stream.getvalue() == ""


def test_a_pipe_gets_nothing_however_long_it_takes() -> None:
    stream = io.StringIO()
    threads = threading.active_count()
    meter = Meter(10, "reading", stream, patience=0.0)
    assert threading.active_count() == threads
    meter.step()
    meter.finish()
    assert stream.getvalue() == ""


def test_more_steps_than_foreseen_stay_at_100_percent() -> None:
    stream = Terminal()
    meter = Meter(2, "x", stream, patience=0.0)
    for _ in range(9):
        meter.step()
    stream.wait(2)
    meter.finish()
    assert "] 100 %" in stream.getvalue()
    assert "] 450 %" not in stream.getvalue()


def test_the_bar_goes_away_when_the_work_fails() -> None:
    stream = Terminal()

    def failing() -> Iterator[int]:
        yield 1
        stream.wait()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(progress(failing(), 10, "x", stream, patience=0.0))
    assert stream.getvalue().endswith(ERASED)


def test_one_long_step_shows_its_name_and_seconds() -> None:
    stream = Terminal()
    with busy("upgrading", stream, patience=0.0):
        stream.wait()
    assert stream.getvalue().startswith("\rupgrading ... 0 s\x1b[K")
    assert stream.getvalue().endswith(ERASED)


class OneBlock:
    def read(self, source: Source, start_ms: int, end_ms: int, metrics: object = None) -> Block:
        return Block(source, np.array([], dtype=np.int64), {})

    def close(self) -> str:
        return "closed"


def test_a_watched_reader_reads_and_shows_how_far_it_is() -> None:
    stream = Terminal()
    with watched(OneBlock(), 6, "diagnosing", stream, patience=0.0) as reader:  # type: ignore[arg-type]
        for _ in range(3):
            assert len(reader.read(Source("n", "node"), 0, 1)) == 0
        stream.wait(2)
        assert reader.close() == "closed"  # type: ignore[func-returns-value]
    assert "diagnosing [###############...............]  50 %" in stream.getvalue()
    assert stream.getvalue().endswith(ERASED)
