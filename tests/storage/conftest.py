"""Samples to store, and a fresh SQLite store to put them in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.sqlstore import SqlStore

NODE = "node1"
START_MS = 1_764_504_000_000 - 1_764_504_000_000 % WINDOW_MS
METRICS = ("sm_active_ratio", "power_watts", "memory_used_bytes", "temperature_celsius")


@dataclass(frozen=True)
class Feed:
    """Made-up samples of one node: reproducible, so that a test can say what must be stored."""

    node: str = NODE
    gpus: int = 2
    start_ms: int = START_MS

    @property
    def sources(self) -> list[Source]:
        return [Source(self.node, f"GPU-{index}") for index in range(self.gpus)]

    def frames(self, first: int, count: int) -> list[Frame]:
        """One frame per GPU and second, seconds `first` to `first + count - 1`."""
        return [
            self.frame(second, source) for second in range(first, first + count) for source in self.sources
        ]

    def frame(self, second: int, source: Source) -> Frame:
        rng = np.random.default_rng([second, int(source.device[4:])])
        values = (round(float(rng.random()), 6), float(rng.integers(1, 700_000)) / 1000)
        values += (float(rng.integers(0, 80 * 2**30)), float(rng.integers(30, 90)))
        time_ms = self.start_ms + 1000 * second
        return Frame(source, time_ms, dict(zip(METRICS, values, strict=True)), {"sm_active_ratio": "gpm"})

    def column(self, source: Source, metric: str, first: int, count: int) -> list[float]:
        """What a reader must find for one metric."""
        return [self.frame(second, source).values[metric] for second in range(first, first + count)]


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/gpudiag.db"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    opened = open_store(url, node=NODE, agent=True)
    yield opened
    opened.close()


def seconds(times_ms: Sequence[int] | np.ndarray) -> list[int]:
    """Times as seconds since START_MS."""
    return [(int(time) - START_MS) // 1000 for time in times_ms]
