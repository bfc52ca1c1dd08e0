"""The trace format: a job's samples as one wide table, and what the job was in a JSON file beside it.

`NAME.csv`, `.jsonl` or `.parquet` has the columns `time,node,device,<metric>...`: time in UNIX seconds or ISO 8601;
device a UUID, `node` or `job:<id>`; empty is missing. `NAME.json` is optional, see `trace_job`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpudiag.errors import InputError
from gpudiag.message import Message
from gpudiag.storage import trace_job, trace_rows, trace_write
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Block, Frame, Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.store import Reader, Store

FORMATS = ("csv", "jsonl", "parquet")


@dataclass(frozen=True)
class Trace:
    """One job and everything measured for it; `notes` say what of the file was left out, and why.

    `exported`: the job is as gpudiag wrote it, key and all.
    """

    job: Job
    blocks: tuple[Block, ...]
    devices: tuple[Device, ...]
    allocations: tuple[Allocation, ...]
    events: tuple[Event, ...] = ()
    notes: tuple[Message, ...] = ()
    exported: bool = False

    def batches(self) -> Iterator[list[Frame]]:
        """All samples as frames in time order, one list per 15-minute window."""
        if not self.blocks:
            return
        windows = (
            np.unique(np.concatenate([block.times_ms // WINDOW_MS for block in self.blocks])) * WINDOW_MS
        )
        for window in windows.tolist():
            frames = [frame for block in self.blocks for frame in _frames(block, window)]
            if frames:
                yield frames


def read_trace(path: Path, job_id: str = "", *, name: str = "", user: str = "") -> Trace:
    """The job in a trace; without a JSON file all its devices and all its time are job `job_id`.

    Raises `InputError` for a file that cannot be read, `LocatedError` with the mistakes in it.
    """
    format_of(path)
    table = trace_rows.read(path)
    return _trace(path, table, trace_job.read(path.with_suffix(".json")), job_id, name, user)


def write_trace(path: Path, reader: Reader, job: Job, now_ms: int, format: str = "") -> int:
    """Write the job's samples (those of its devices, nodes and of itself) and NAME.json; how many rows.

    Raises `InputError` for an unknown format, a missing pyarrow or a file that cannot be written.
    """
    end_ms = job.end_ms if job.end_ms is not None else now_ms
    allocations = reader.allocations(job.key)
    sources = trace_job.sources(job, allocations, reader.sources(job.start_ms, end_ms))
    try:
        rows = trace_write.write(path, format or format_of(path), reader, job, sources, end_ms)
        trace_job.write(path.with_suffix(".json"), reader, job, allocations, sources, end_ms)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    return rows


def reads(reader: Reader, job: Job, now_ms: int) -> int:
    """How many blocks `write_trace` will read, for whoever wants to watch it."""
    end_ms = job.end_ms if job.end_ms is not None else now_ms
    measured = reader.sources(job.start_ms, end_ms)
    sources = trace_job.sources(job, reader.allocations(job.key), measured)
    return len(sources) * (trace_write.passes(job, end_ms) + 1)


def store_trace(store: Store, trace: Trace) -> None:
    """Put everything into a store; the job comes last, so that it is only there when all of it is."""
    for frames in trace.batches():
        store.append(frames)
    store.put_devices(trace.devices)
    store.put_events(trace.events)
    store.put_allocations(trace.allocations)
    store.put_job(trace.job)


def format_of(path: Path) -> str:
    """By the suffix; raises `InputError`."""
    suffix = path.suffix.removeprefix(".")
    if suffix not in FORMATS:
        raise InputError(f"{path}: expected a name that ends in .csv, .jsonl or .parquet")
    return suffix


def _trace(
    path: Path, table: trace_rows.Table, said: trace_job.Said, job_id: str, name: str, user: str
) -> Trace:
    blocks = table.blocks
    if not blocks:
        raise InputError(f"{path}: no samples; expected rows of time,node,device and at least one metric")
    start_ms = min(int(block.times_ms[0]) for block in blocks)
    end_ms = max(int(block.times_ms[-1]) + _interval_ms(block) for block in blocks)
    job = trace_job.job_of(said, path, job_id, name, user, start_ms, end_ms)
    blocks = tuple(trace_job.renamed(block, job, said) for block in blocks)
    measured = tuple(block.source for block in blocks)
    return Trace(
        job,
        blocks,
        trace_job.devices_of(said, job, measured),
        trace_job.allocations_of(said, job, measured),
        trace_job.events_of(said, job),
        table.notes,
        job.key == said.job.get("key"),
    )


def _interval_ms(block: Block) -> int:
    """Median distance of the samples; a second when there is only one."""
    return int(np.median(np.diff(block.times_ms))) if len(block) > 1 else 1000


def _frames(block: Block, window: int) -> Iterator[Frame]:
    low, high = np.searchsorted(block.times_ms, (window, window + WINDOW_MS))
    names = list(block.columns)
    matrix = [column[low:high].tolist() for column in block.columns.values()]
    for time_ms, *row in zip(block.times_ms[low:high].tolist(), *matrix, strict=True):
        values = {name: value for name, value in zip(names, row, strict=True) if not math.isnan(value)}
        if values:
            origins = {metric: origin for metric, origin in block.origins.items() if metric in values}
            yield Frame(Source(block.source.node, block.source.device), time_ms, values, origins)
