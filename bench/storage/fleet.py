"""200 agents into one Postgres: real forwarders, closed loop, from four processes on the same machine."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.storage.samples import GpuDay

from gpudiag.storage import shipment
from gpudiag.storage.forward import Forwarder
from gpudiag.storage.open import open_store
from gpudiag.storage.rows import Row
from gpudiag.storage.upgrade import upgrade

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

AGENTS = 200
_PROCESSES = 4
_WINDOWS = 4
HOURS = 4.0  # of samples, of which it sends some after the second
_together: Any = None


@dataclass(frozen=True)
class FleetResult:
    """Rates per second over all agents, latencies in milliseconds per transaction, sizes per node and window."""

    agents: int
    windows_per_second: float
    window_p50: float
    window_p99: float
    flushes_per_second: float
    flush_p99: float
    bytes_per_window: float
    wal_bytes_per_window: float
    wal_bytes_per_flush: float


class _Clock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def run(folder: Path, samples: list[GpuDay], start_ms: int) -> FleetResult:
    """Send four sealed windows of every agent, then 30 flushes of the running window of every agent."""
    from postgres import running_cluster

    with running_cluster() as cluster:
        url = cluster.new_database()
        upgrade(url, start_ms)
        template = _template(folder, samples, start_ms)
        stores = [_copy(template, folder, number) for number in range(AGENTS)]
        wal, size = _wal(cluster, url), _bytes(cluster, url)
        wall, windows = _all(stores, url, "chunk")
        wal_windows = _wal(cluster, url) - wal
        size = _bytes(cluster, url) - size
        wal = _wal(cluster, url)
        wall_heads, heads = _all(stores, url, "head")
        wal_heads = _wal(cluster, url) - wal
        count = len(windows)
        return FleetResult(
            AGENTS,
            count / wall,
            float(np.median(windows) * 1000),
            float(np.quantile(windows, 0.99) * 1000),
            len(heads) / wall_heads,
            float(np.quantile(heads, 0.99) * 1000),
            size / (count + AGENTS),  # with the one that each sent to warm up
            wal_windows / (count + AGENTS),
            wal_heads / (len(heads) + AGENTS),
        )


def _template(folder: Path, samples: list[GpuDay], start_ms: int) -> Path:
    """One node's store: busy windows sealed, and five minutes that are not."""
    busy = start_ms + 2 * 3_600_000
    path = folder / "template.db"
    store = open_store(f"sqlite:///{path}", node="node1", agent=True)
    for now_ms in range(busy, busy + (_WINDOWS + 1) * 900_000 + 300_000, 10_000):
        store.append([frame for gpu in samples for frame in gpu.frames(now_ms, now_ms + 10_000)])
    store.close()
    return path


def _copy(template: Path, folder: Path, number: int) -> Path:
    path = folder / f"agent{number}.db"
    shutil.copy(template, path)
    with sqlite3.connect(path) as connection:
        name = f"node{number:03d}"
        connection.execute("UPDATE source SET node = ?, device = device || ?", (name, f"-{number}"))
        connection.execute("UPDATE head SET node = ?", (name,))
    connection.close()
    return path


def _all(stores: list[Path], url: str, stream: str) -> tuple[float, list[float]]:
    """Wall seconds, and the latency of each transaction."""
    begun = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(_PROCESSES)
    with context.Pool(_PROCESSES, _wait_with, (together,)) as pool:
        parts = [(stores[i::_PROCESSES], url, stream, begun) for i in range(_PROCESSES)]
        results = pool.map(_send, parts)
    first = min(result[0] for result in results)
    last = max(result[1] for result in results)
    return last - first, [latency for result in results for latency in result[2]]


def _send(part: tuple[list[Path], str, str, float]) -> tuple[float, float, list[float]]:
    paths, url, stream, _ = part
    latencies: list[float] = []
    shipment._CHUNKS, shipment._HEADS = 8, 1  # type: ignore[misc] - one window, one flush per transaction
    send = shipment.Shipment._send

    def timed(self: shipment.Shipment, name: str, found: list[Row]) -> None:
        begun = time.perf_counter()
        send(self, name, found)
        if name == stream:
            latencies.append(time.perf_counter() - begun)

    shipment.Shipment._send = timed  # type: ignore[method-assign]
    if stream == "chunk":
        shipment.Shipment._drain = _only(shipment.Shipment._drain, stream)  # type: ignore[method-assign]
    forwarders = [Forwarder(f"sqlite:///{path}", url, path.stem, _Clock()) for path in paths]
    for forwarder in forwarders:
        _warm_up(forwarder, stream)
    latencies.clear()
    _together.wait()
    begun = time.time()
    for forwarder in forwarders:
        state = forwarder.round()
        assert not state.error, state.error
    ended = time.time()
    for forwarder in forwarders:
        forwarder.close()
    return begun, ended, latencies


def _wait_with(barrier: Any) -> None:
    global _together
    _together = barrier


def _warm_up(forwarder: Forwarder, stream: str) -> None:
    """Agents live for months: connecting and learning the sink's numbers is not what is measured."""
    ship = forwarder._connected()
    ship._send_layouts()
    found = ship._pending(stream, 8 if stream == "chunk" else 1)
    ship._send(stream, found)
    ship._acknowledge(stream, found[-1]["seq"])


def _only(drain: object, stream: str) -> object:
    def one(self: shipment.Shipment, name: str, limit: int) -> int:
        return drain(self, name, limit) if name == stream else 0  # type: ignore[operator,no-any-return]

    return one


def _wal(cluster: object, url: str) -> int:
    query = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
    return int(cluster.execute(query, url.rpartition("/")[2])[0][0])  # type: ignore[attr-defined]


def _bytes(cluster: object, url: str) -> int:
    query = "SELECT pg_database_size(current_database())"
    return int(cluster.execute(query, url.rpartition("/")[2])[0][0])  # type: ignore[attr-defined]
