"""gpudiag's own store on the samples: flush by flush as the agent does it."""

from __future__ import annotations

import resource
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.storage.samples import GpuDay

from gpudiag.storage.open import open_reader, open_store

_FLUSH_MS = 10_000


@dataclass(frozen=True)
class OurResult:
    """CPU in milliseconds, wall in seconds, sizes in bytes."""

    values: int
    file_bytes: int
    chunk_bytes: int
    minute_bytes: int
    flush_cpu_p50: float
    flush_cpu_p99: float
    flush_wall_p99: float
    seal_cpu_p50: float
    seal_cpu_max: float
    seal_wall_p50: float
    cpu_share: float
    written_bytes: int
    read_seconds: float
    read_cpu_seconds: float
    read_headline_seconds: float


def run(folder: Path, samples: list[GpuDay], start_ms: int, seconds: int) -> OurResult:
    """Write all samples, then read them back to arrays and compare."""
    url = f"sqlite:///{folder}/gpudiag.db"
    store = open_store(url, node="node1", agent=True)
    seals: list[tuple[float, float]] = []
    seal = store.seal

    def timed_seal(before_ms: int, everyone: bool = False) -> int:
        cpu, wall = time.thread_time(), time.perf_counter()
        windows = seal(before_ms, everyone)
        if windows:
            seals.append((time.thread_time() - cpu, time.perf_counter() - wall))
        return windows

    store.seal = timed_seal  # type: ignore[method-assign]
    flushes: list[tuple[float, float]] = []
    written = _written()
    for now_ms in range(start_ms, start_ms + 1000 * seconds, _FLUSH_MS):
        frames = [frame for second in range(0, _FLUSH_MS, 1000) for gpu in samples
                  for frame in gpu.frames(now_ms + second, now_ms + second + 1000)]  # fmt: skip
        count, cpu, wall = len(seals), time.thread_time(), time.perf_counter()
        store.append(frames)
        if len(seals) == count:
            flushes.append((time.thread_time() - cpu, time.perf_counter() - wall))
    store.seal(start_ms + 1000 * seconds)
    written = _written() - written
    store.close()
    read_wall, read_cpu = _read(url, samples, None)
    headline, _ = _read(url, samples, ["sm_active_ratio"])
    flush, sealing = np.array(flushes) * 1000, np.array(seals) * 1000
    sizes = _sizes(folder / "gpudiag.db")
    return OurResult(
        sum(gpu.values for gpu in samples),
        (folder / "gpudiag.db").stat().st_size,
        sizes["chunk"],
        sizes["minute"],
        float(np.median(flush[:, 0])),
        float(np.quantile(flush[:, 0], 0.99)),
        float(np.quantile(flush[:, 1], 0.99)),
        float(np.median(sealing[:, 0])),
        float(sealing[:, 0].max()),
        float(np.median(sealing[:, 1])),
        float((flush[:, 0].sum() + sealing[:, 0].sum()) / 1000 / seconds),
        written,
        read_wall,
        read_cpu,
        headline,
    )


def _read(url: str, samples: list[GpuDay], metrics: list[str] | None) -> tuple[float, float]:
    """Wall and CPU seconds to arrays, opening included; every value is compared, outside the clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    reader = open_reader(url)
    blocks = [reader.read(gpu.source, 0, 2**60, metrics) for gpu in samples]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    reader.close()
    for block, gpu in zip(blocks, samples, strict=True):
        assert np.array_equal(block.times_ms, gpu.times_ms)
        for name in metrics or gpu.columns:
            if not np.isnan(gpu.columns[name]).all():
                assert np.array_equal(block.columns[name], gpu.columns[name], equal_nan=True), name
    return wall, cpu


def _sizes(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as connection:
        chunk = connection.execute("SELECT sum(length(data)) FROM chunk").fetchone()[0]
        rows = connection.execute("SELECT count(*) FROM minute").fetchone()[0]
    connection.close()
    return {"chunk": int(chunk), "minute": int(rows) * 40}


def _written() -> int:
    """Bytes this process had written to disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def peak_rss_mib() -> float:
    """Most memory this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
