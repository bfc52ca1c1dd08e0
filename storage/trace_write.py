"""A job's samples as rows of a trace, window by window, so that memory does not grow with the job."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpudiag.errors import InputError
from gpudiag.storage.job import Job
from gpudiag.storage.sample import JOB_PREFIX, Block, Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.store import Reader
from gpudiag.storage.trace_rows import IDENTITY, import_arrow

Row = tuple[int, str, str, dict[str, float]]
_STEP_MS = 4 * WINDOW_MS
_BEFORE_MS = 360_000  # a sample before the job holds into it; how long, the two before that one say
_BEFORE_SAMPLES = 3


def write(path: Path, format: str, reader: Reader, job: Job, sources: Sequence[Source], end_ms: int) -> int:
    """Write the table; returns its number of rows. The last samples before the job are part of it."""
    if format not in _WRITERS:
        raise InputError(f"unknown format {format!r}: expected csv, jsonl or parquet")
    metrics = sorted({name for block in _blocks(reader, job, sources, end_ms) for name in block.columns})
    return _WRITERS[format](path, metrics, _windows(reader, job, sources, end_ms))


def passes(job: Job, end_ms: int) -> int:
    """How often `write` reads each source: for its metrics, its origins, what was before, and window by window."""
    return 3 + len(_starts(job, end_ms))


def _starts(job: Job, end_ms: int) -> range:
    return range(job.start_ms - job.start_ms % _STEP_MS, end_ms, _STEP_MS)


def _blocks(reader: Reader, job: Job, sources: Sequence[Source], end_ms: int) -> Iterator[Block]:
    for source in sources:
        yield reader.read(source, job.start_ms, end_ms)


def _windows(reader: Reader, job: Job, sources: Sequence[Source], end_ms: int) -> Iterator[list[Row]]:
    """Rows of an hour at a time, by time, node and device; each metric of the origin it has over the whole job."""
    origins = {block.source: block.origins for block in _blocks(reader, job, sources, end_ms)}
    yield _before(reader, job, sources, origins)
    for start in _starts(job, end_ms):
        rows: list[Row] = []
        for source in sources:
            span = max(start, job.start_ms), min(start + _STEP_MS, end_ms)
            for block in _read(reader, source, *span, origins[source]):
                rows += _rows(block, _device_name(source, job), origins[source])
        yield sorted(rows, key=lambda row: row[:3])


def _read(
    reader: Reader, source: Source, start_ms: int, end_ms: int, origins: Mapping[str, str]
) -> list[Block]:
    """A reader shows the origin that measured most of what it reads: where that is another, it reads less at a time."""
    block = reader.read(source, start_ms, end_ms)
    hidden = any(origins.get(name, "") in others for name, others in block.dropped_origins.items())
    if not hidden or end_ms - start_ms < 2:
        return [block]
    middle = (start_ms + end_ms) // 2
    return _read(reader, source, start_ms, middle, origins) + _read(reader, source, middle, end_ms, origins)


def _before(reader: Reader, job: Job, sources: Sequence[Source], origins: Mapping[Source, Any]) -> list[Row]:
    """The latest rows before the job in which each metric has its last values: what the job's first seconds show."""
    rows: list[Row] = []
    for source in sources:
        blocks = _read(reader, source, job.start_ms - _BEFORE_MS, job.start_ms, origins[source])
        found = [row for block in blocks for row in _rows(block, _device_name(source, job), origins[source])]
        rows += _last(found)
    return sorted(rows, key=lambda row: row[:3])


def _last(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows that hold one of a metric's last values."""
    seen: Counter[str] = Counter()
    for row in reversed(rows):
        if any(seen[name] < _BEFORE_SAMPLES for name in row[3]):
            yield row
        seen.update(row[3].keys())


def _rows(block: Block, device: str, origins: Any) -> Iterator[Row]:
    names = [name for name in block.columns if block.origins.get(name, "") == origins.get(name, "")]
    columns = [block.columns[name].tolist() for name in names]
    node = block.source.node
    for time_ms, *row in zip(block.times_ms.tolist(), *columns, strict=True):
        values = {name: value for name, value in zip(names, row, strict=True) if not math.isnan(value)}
        yield time_ms, node, device, values


def _device_name(source: Source, job: Job) -> str:
    return f"{JOB_PREFIX}{job.id}" if source.device == f"{JOB_PREFIX}{job.key}" else source.device


def time_text(time_ms: int) -> str:
    """UNIX seconds with as many decimals as needed."""
    seconds, rest = divmod(time_ms, 1000)
    return f"{seconds}.{rest:03d}".rstrip("0") if rest else str(seconds)


def number_text(value: float) -> str:
    """The shortest text that reads back as the same double."""
    return repr(value).removesuffix(".0")


def _write_csv(path: Path, metrics: Sequence[str], windows: Iterator[list[Row]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*IDENTITY, *metrics))
        for rows in windows:
            count += len(rows)
            for time_ms, node, device, values in rows:
                cells = (number_text(values[name]) if name in values else "" for name in metrics)
                out.writerow((time_text(time_ms), node, device, *cells))
    return count


def _write_jsonl(path: Path, metrics: Sequence[str], windows: Iterator[list[Row]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for rows in windows:
            count += len(rows)
            for time_ms, node, device, values in rows:
                row = {"time": time_ms / 1000, "node": node, "device": device, **values}
                file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    return count


def _write_parquet(path: Path, metrics: Sequence[str], windows: Iterator[list[Row]]) -> int:
    arrow, parquet = import_arrow()
    names = arrow.dictionary(arrow.int32(), arrow.string())
    fields = [("time", arrow.timestamp("ms", "UTC")), ("node", names), ("device", names)]
    schema = arrow.schema([*fields, *((name, arrow.float64()) for name in metrics)])
    count = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as out:
        for rows in windows:
            if not rows:
                continue
            count += len(rows)
            times, nodes, devices, values = zip(*rows, strict=True)
            columns = [times, nodes, devices, *([row.get(name) for row in values] for name in metrics)]
            arrays = [arrow.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
            out.write_table(arrow.Table.from_arrays(arrays, schema=schema))
    return count


_WRITERS: dict[str, Callable[[Path, Sequence[str], Iterator[list[Row]]], int]] = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}
