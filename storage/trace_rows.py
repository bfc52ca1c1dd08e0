"""Rows of a trace, from CSV, JSON lines or Parquet, gathered into one block per source."""

from __future__ import annotations

import csv
import difflib
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from gpudiag.errors import InputError, LocatedError, Problem
from gpudiag.message import Message
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.sample import Block, Floats, Source

IDENTITY = ("time", "node", "device")
_MAX_PROBLEMS = 10
_LATEST_SECONDS = 1e11  # the year 5138: larger numbers are milliseconds
_TIME = "expected UNIX seconds or ISO 8601, such as 1764504000.5 or 2025-11-30T12:00:00Z"


@dataclass(frozen=True)
class Table:
    """The samples of a trace, by source, and what was left out of them."""

    blocks: tuple[Block, ...]
    notes: tuple[Message, ...]


def read(path: Path) -> Table:
    """All rows of a trace. Raises `InputError`, and `LocatedError` with up to ten mistakes."""
    gathering = _Gathering(str(path))
    try:
        _READERS[path.suffix](path, gathering)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or _line(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: this is no text in UTF-8 ({error.reason}); expected a trace") from error
    return gathering.finish()


@dataclass
class _Track:
    """Samples of one source as they are read."""

    times_ms: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)

    def add(self, time_ms: int, values: dict[str, float]) -> None:
        for name in values.keys() - self.columns.keys():
            self.columns[name] = array("d", [math.nan]) * len(self.times_ms)
        self.times_ms.append(time_ms)
        for name, column in self.columns.items():
            column.append(values.get(name, math.nan))


class _Gathering:
    """Collects rows and mistakes; everything is checked before anything is handed on."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._problems: list[Problem] = []

    def row(self, time_ms: int, node: str, device: str, values: dict[str, float]) -> None:
        self._tracks.setdefault((node, device), _Track()).add(time_ms, values)

    def problem(self, line: int, column: int, message: str, text: str = "") -> None:
        self._problems.append(Problem(self._file, line, column, message, text))
        if len(self._problems) >= _MAX_PROBLEMS:
            raise LocatedError(self._problems)

    def finish(self) -> Table:
        if self._problems:
            raise LocatedError(self._problems)
        left_out: Counter[Message] = Counter()
        blocks = [_block(Source(*key), track, left_out) for key, track in sorted(self._tracks.items())]
        notes = tuple(
            Message("{count} values left out: {reason}", count=str(count), reason=why)
            for why, count in left_out.items()
        )
        return Table(tuple(block for block in blocks if block.columns), notes)


def _block(source: Source, track: _Track, left_out: Counter[Message]) -> Block:
    """In time order, each instant once (the last row of it stands), believable values only."""
    times = np.frombuffer(track.times_ms, np.int64)
    unique, last = np.unique(times[::-1], return_index=True)
    order = len(times) - 1 - last
    columns: dict[str, Floats] = {}
    for name, values in sorted(track.columns.items()):
        column = _believable(source.scope, name, np.frombuffer(values, np.float64)[order], left_out)
        if not np.isnan(column).all():
            columns[name] = column
    return Block(source, unique, columns)


def _believable(scope: str, name: str, column: Floats, left_out: Counter[Message]) -> Floats:
    metric = METRICS.get((scope, name))  # type: ignore[arg-type]
    if metric is None:
        left_out[_unknown(scope, name)] += int(np.count_nonzero(~np.isnan(column)))
        return np.full(len(column), np.nan)
    wrong = (column < metric.minimum) | (column > metric.maximum)
    if wrong.any():
        least, most = f"{metric.minimum:g}", f"{metric.maximum:g} {metric.unit}"
        left_out[Message("{name} is outside {least} to {most}", name=name, least=least, most=most)] += int(
            wrong.sum()
        )
    return np.where(wrong, np.nan, column)


def _unknown(scope: str, name: str) -> Message:
    close = difflib.get_close_matches(name, [metric for known, metric in METRICS if known == scope], 1)
    if not close:
        return Message("gpudiag knows no {scope} metric {name}", scope=Message(scope), name=name)
    known = "gpudiag knows no {scope} metric {name} (did you mean {close}?)"
    return Message(known, scope=Message(scope), name=name, close=close[0])


def _read_csv(path: Path, gathering: _Gathering) -> None:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        try:
            header = [name.strip() for name in next(rows, [])]
            places = _places(header, gathering)
            for cells in rows:
                if cells:
                    _csv_row(cells, header, places, rows.line_num, gathering)
        except csv.Error as error:
            gathering.problem(rows.line_num, 1, f"not CSV: {error}")


def _places(header: Sequence[str], gathering: _Gathering) -> list[int]:
    missing = [name for name in IDENTITY if name not in header]
    if missing:
        text = ",".join(header)
        gathering.problem(
            1, 1, f"no column {', '.join(missing)}; expected time,node,device,<metric>...", text
        )
        raise LocatedError(gathering._problems)
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        gathering.problem(1, 1, f"column {twice[0]} is there twice", ",".join(header))
    return [header.index(name) for name in IDENTITY]


def _csv_row(
    cells: list[str], header: list[str], places: list[int], line: int, gathering: _Gathering
) -> None:
    text = ",".join(cells)
    if len(cells) != len(header):
        gathering.problem(line, 1, f"{len(cells)} cells, expected {len(header)}", text)
        return
    values: dict[str, float] = {}
    for position, (name, cell) in enumerate(zip(header, cells, strict=True)):
        if position in places or not cell.strip():
            continue
        number = number_of(cell)
        if number is None:
            gathering.problem(line, _column(cells, position), f"{name}: expected a number or nothing", text)
        else:
            values[name] = number
    time_ms = parse_time(cells[places[0]])
    if time_ms is None:
        gathering.problem(line, _column(cells, places[0]), _TIME, text)
        return
    _identified(cells[places[1]].strip(), cells[places[2]].strip(), time_ms, values, line, text, gathering)


def _identified(
    node: object,
    device: object,
    time_ms: int,
    values: dict[str, float],
    line: int,
    text: str,
    gathering: _Gathering,
) -> None:
    if is_name(node) and is_name(device):
        gathering.row(time_ms, str(node), str(device), values)
    else:
        gathering.problem(line, 1, "expected a node and a device (a UUID, node or job:<id>)", text)


def is_name(value: object) -> bool:
    """Text that a database, a terminal and a URL take: not empty, without control characters."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def number_of(value: object) -> float | None:
    """A double (NaN and infinities too); None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and "_" in value:  # only Python calls 1_000 a number
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _column(cells: Sequence[str], position: int) -> int:
    return sum(len(cell) + 1 for cell in cells[:position]) + 1


def parse_time(given: object) -> int | None:
    """UNIX milliseconds of UNIX seconds or ISO 8601 (without an offset: UTC), 1970 to 5138; None when it is neither."""
    seconds = number_of(given)
    if seconds is None and isinstance(given, str):
        seconds = _parse_iso(given.strip())
    return round(seconds * 1000) if seconds is not None and 0 <= seconds < _LATEST_SECONDS else None


def _parse_iso(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00").replace("z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()


def _read_jsonl(path: Path, gathering: _Gathering) -> None:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                _jsonl_row(text.rstrip("\n"), line, gathering)


def _jsonl_row(text: str, line: int, gathering: _Gathering) -> None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        gathering.problem(line, getattr(error, "colno", 1), f"not JSON: {getattr(error, 'msg', error)}", text)
        return
    if not isinstance(row, dict) or not set(IDENTITY) <= row.keys():
        gathering.problem(line, 1, "expected an object with time, node, device and metrics", text)
        return
    time_ms = parse_time(row["time"])
    if time_ms is None:
        gathering.problem(line, 1, _TIME, text)
        return
    values: dict[str, float] = {}
    for name, value in row.items():
        if name in IDENTITY or value is None:
            continue
        number = None if isinstance(value, str) else number_of(value)
        if number is None:
            gathering.problem(line, 1, f"{name}: expected a number or null", text)
            continue
        values[name] = number
    _identified(row["node"], row["device"], time_ms, values, line, text, gathering)


def _read_parquet(path: Path, gathering: _Gathering) -> None:
    arrow, parquet = import_arrow()
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowInvalid as error:
        raise InputError(f"{path}: not a Parquet file ({_line(error)})") from error
    missing = [name for name in IDENTITY if name not in file.schema_arrow.names]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}; expected time,node,device,<metric>...")
    for done, (time_ms, node, device, values) in enumerate(_arrow_rows(path, file), 1):
        if time_ms is None:
            gathering.problem(done, 1, _TIME)
        else:
            _identified(node, device, time_ms, values, done, "", gathering)


def _line(error: Exception) -> str:
    """What pyarrow says over several lines."""
    return " ".join(str(error).split())


def _arrow_rows(path: Path, file: Any) -> Iterator[tuple[int | None, object, object, dict[str, float]]]:
    try:
        for batch in file.iter_batches():
            yield from _arrow_batch(batch)
    except (
        ValueError,
        TypeError,
        OSError,
        NotImplementedError,
    ) as error:  # pyarrow's errors are of these kinds
        raise InputError(f"{path}: {_line(error)}") from error


def _arrow_batch(batch: Any) -> Iterator[tuple[int | None, object, object, dict[str, float]]]:
    names = [name for name in batch.schema.names if name not in IDENTITY]
    times = _arrow_times(batch.column("time"))
    columns = [batch.column(name).cast("double").to_pylist() for name in names]
    nodes, devices = batch.column("node").to_pylist(), batch.column("device").to_pylist()
    for time_ms, node, device, *row in zip(times, nodes, devices, *columns, strict=True):
        values = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        yield time_ms, node, device, values


def _arrow_times(column: Any) -> list[int | None]:
    if str(column.type).startswith("timestamp"):
        arrow, _ = import_arrow()
        milliseconds = column.cast(arrow.timestamp("ms", column.type.tz or "UTC"), safe=False)
        return [
            None if ms is None else parse_time(ms / 1000) for ms in milliseconds.cast("int64").to_pylist()
        ]
    return [parse_time(value) for value in column.to_pylist()]


def import_arrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet part; raises `InputError` when the extra is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install 'gpudiag[parquet]'") from None
    return pyarrow, pyarrow.parquet


_READERS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
