"""A recording into a store, flush by flush, as the agent would have done it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from bench.scenarios.build import Recording

from gpudiag.storage.sample import Block, Frame
from gpudiag.storage.store import Store

_FLUSH_MS = 10_000


def write(recording: Recording, store: Store) -> None:
    """Store the job, its devices, allocations, events and samples."""
    store.put_job(recording.job)
    store.put_devices(recording.devices.values())
    store.put_allocations(recording.allocations)
    store.put_events(recording.events)
    ordered = sorted(
        (frame for block in recording.blocks.values() for frame in frames(block)), key=lambda f: f.time_ms
    )
    flush: list[Frame] = []
    for frame in ordered:
        if flush and frame.time_ms // _FLUSH_MS != flush[0].time_ms // _FLUSH_MS:
            store.append(flush)
            flush = []
        flush.append(frame)
    store.append(flush)


def frames(block: Block) -> Iterator[Frame]:
    names = list(block.columns)
    table = np.stack([block.columns[name] for name in names], axis=1)
    for time_ms, row in zip(block.times_ms.tolist(), table, strict=True):
        values = {name: float(value) for name, value in zip(names, row, strict=True) if not np.isnan(value)}
        if values:
            yield Frame(
                block.source, time_ms, values, {n: block.origins[n] for n in values if n in block.origins}
            )
