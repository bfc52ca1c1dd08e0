"""A stored day of a job on one or several nodes of eight GPUs, written as sealed windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bench.storage.samples import GpuDay

from gpudiag.storage import partitions
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.layout import Layout
from gpudiag.storage.open import open_store
from gpudiag.storage.piece import Piece
from gpudiag.storage.sample import Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.sqlstore import SqlStore

JOB = "1"


def write(url: str, made: Sequence[GpuDay], start_ms: int, seconds: int, nodes: int) -> None:
    """One job on `nodes` nodes, each with the samples of `made`, in an empty database."""
    store = open_store(url, node="node1")
    assert isinstance(store, SqlStore)
    end_ms = start_ms + 1000 * seconds
    job = Job(f"bench/{JOB}/0", JOB, start_ms, end_ms, name="bench")
    gpus = [(_on_node(day.source, node), day) for node in range(nodes) for day in made]
    store.put_job(job)
    store.put_devices(_device(source, start_ms) for source, _ in gpus)
    store.put_allocations(Allocation(job.key, source, start_ms, end_ms, "bench") for source, _ in gpus)
    if not store.database.sqlite:
        partitions.add(store.database, range(start_ms, end_ms, WINDOW_MS))
    for window in range(start_ms, end_ms, WINDOW_MS):
        with store.writing() as connection:
            for source, day in gpus:
                store._sealer._put(connection, window, _piece(source, day, window))
    store.close()


def _on_node(source: Source, node: int) -> Source:
    return Source(f"node{node + 1}", source.device.replace("GPU-", f"GPU-{node:02x}", 1))


def _piece(source: Source, day: GpuDay, window: int) -> Piece:
    low, high = np.searchsorted(day.times_ms, (window, window + WINDOW_MS))
    layout = Layout(tuple((name, "dcgm" if name == "sm_active_ratio" else "") for name in day.columns))
    columns = np.stack([column[low:high] for column in day.columns.values()])
    return Piece(source, layout, day.times_ms[low:high], columns)


def _device(source: Source, since_ms: int) -> Device:
    return Device(
        source,
        since_ms,
        model="NVIDIA H100 80GB HBM3",
        memory_total_bytes=80 * 2.0**30,
        power_limit_watts=700,
        max_sm_clock_hertz=1.98e9,
        max_pcie_link_generation=5,
        max_pcie_link_width=16,
    )
