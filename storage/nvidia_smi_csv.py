"""Reads logs recorded by `nvidia-smi --query-gpu=... --format=csv -l 1` into blocks of samples.

Everything is read and checked before anything is handed on: a log with a mistake yields nothing but a
`LocatedError` that lists its mistakes.
"""

from __future__ import annotations

import math
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

import numpy as np

from gpudiag.errors import InputError, LocatedError, Problem
from gpudiag.message import Message
from gpudiag.storage.job import Device
from gpudiag.storage.log_text import Place, cells, read_lines
from gpudiag.storage.log_time import EXPECTED, LogClock
from gpudiag.storage.nvidia_smi_columns import (
    IDENTITY,
    KNOWN,
    LIMITS,
    Slot,
    canonical,
    is_missing,
    number,
    slots,
)
from gpudiag.storage.sample import Block, Frame, Source

ORIGIN = "nvml"  # nvidia-smi prints what NVML says
_MAX_PROBLEMS = 10
_BATCH_MS = 900_000
_ATTRIBUTES = (*IDENTITY[1:], *LIMITS, "memory.total", "power.limit", "enforced.power.limit")


@dataclass(frozen=True)
class Options:
    """How to read a log: node it came from (unless it says), zone of its times, strptime format, its columns."""

    node: str
    zone: tzinfo | None = None
    time_format: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Log:
    """What the logs said: samples per device, attributes of the devices, and what a person should know."""

    blocks: tuple[Block, ...]
    devices: tuple[Device, ...]
    ignored_columns: tuple[str, ...] = ()
    notes: tuple[Message, ...] = ()

    @property
    def start_ms(self) -> int:
        return min(int(block.times_ms[0]) for block in self.blocks)

    @property
    def end_ms(self) -> int:
        """One sampling interval (the median) after the last sample."""
        return max(int(block.times_ms[-1]) + interval_ms(block) for block in self.blocks)

    def batches(self) -> Iterator[list[Frame]]:
        """All samples as frames, one list per quarter of an hour, so that memory stays bounded."""
        first = self.start_ms // _BATCH_MS * _BATCH_MS
        for start in range(first, self.end_ms + 1, _BATCH_MS):
            frames = [frame for block in self.blocks for frame in _frames(block, start, start + _BATCH_MS)]
            if frames:
                yield frames


def interval_ms(block: Block) -> int:
    """Median distance of the samples; a second when there is only one."""
    return int(np.median(np.diff(block.times_ms))) if len(block) > 1 else 1000


def _frames(block: Block, start_ms: int, end_ms: int) -> Iterator[Frame]:
    low, high = np.searchsorted(block.times_ms, (start_ms, end_ms))
    for at in range(int(low), int(high)):
        values = {
            name: float(column[at]) for name, column in block.columns.items() if not math.isnan(column[at])
        }
        if values:
            yield Frame(block.source, int(block.times_ms[at]), values, dict.fromkeys(values, ORIGIN))


def read(paths: Sequence[Path], options: Options, lines: Callable[[Path], Iterator[str]] = read_lines) -> Log:
    """Read one job's logs, in any order. `lines` gives the lines of a file, for whoever wants to watch.

    Raises `InputError` when a file cannot be read or holds no samples, `LocatedError` with every mistake found.
    """
    reading = _Reading(options, lines)
    for path in paths:
        reading.file(path)
    return reading.finish()


@dataclass
class _Track:
    """Samples of one device as they are read."""

    device: Device
    identity: str
    times_ms: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)

    def add(self, time_ms: int, values: dict[str, float]) -> None:
        for name in values.keys() - self.columns.keys():
            self.columns[name] = array("d", [math.nan]) * len(self.times_ms)
        self.times_ms.append(time_ms)
        for name, column in self.columns.items():
            column.append(values.get(name, math.nan))

    def forget_copies(self) -> int:
        """Leave out rows that say the same of the same instant as one before; how many those were."""
        rows = np.stack(
            [np.frombuffer(column, dtype=np.float64).view(np.int64) for column in self.columns.values()]
            + [np.frombuffer(self.times_ms, dtype=np.int64)]
        )
        _, first = np.unique(rows, axis=1, return_index=True)
        kept = np.sort(first)
        copies = len(self.times_ms) - len(kept)
        if copies:
            self.times_ms = array("q", rows[-1][kept].tobytes())
            self.columns = {
                name: array("d", row[kept].tobytes()) for name, row in zip(self.columns, rows, strict=False)
            }
        return copies

    def block(self) -> Block:
        """In time order, each instant once."""
        times, first = np.unique(np.frombuffer(self.times_ms, dtype=np.int64), return_index=True)
        columns = {
            name: np.frombuffer(column, dtype=np.float64)[first] for name, column in self.columns.items()
        }
        measured = {name: column for name, column in columns.items() if not np.isnan(column).all()}
        return Block(self.device.source, times, measured, dict.fromkeys(measured, ORIGIN))


@dataclass(frozen=True)
class _Header:
    """The columns of a file: where each is, what metrics they give, and which cells describe the device."""

    names: tuple[str, ...]
    positions: dict[str, tuple[int, str]]
    slots: tuple[Slot, ...]
    attributes: tuple[int, ...]

    @classmethod
    def parse(cls, columns: Sequence[str]) -> _Header:
        named = [canonical(column) for column in columns]
        positions = {name: (at, unit) for at, (name, unit) in enumerate(named)}
        attributes = tuple(positions[name][0] for name in _ATTRIBUTES if name in positions)
        return cls(tuple(name for name, _ in named), positions, slots(positions), attributes)

    def text(self, row: Sequence[str], name: str) -> str:
        """A cell as text, empty when missing or not asked for."""
        at, _ = self.positions.get(name, (-1, ""))
        return "" if at < 0 or is_missing(row[at]) else row[at]

    def number(self, row: Sequence[str], name: str, base: str = "") -> float | None:
        """A cell in base units, None when missing, unreadable or not asked for."""
        at, unit = self.positions.get(name, (-1, ""))
        try:
            value = number(row[at], unit, base) if at >= 0 else math.nan
        except ValueError:
            return None
        return None if math.isnan(value) else value

    def whole(self, row: Sequence[str], name: str) -> int | None:
        """As `number`, for counts."""
        value = self.number(row, name)
        return None if value is None else int(value)


class _Reading:
    """The state of reading several logs of one job."""

    def __init__(self, options: Options, lines: Callable[[Path], Iterator[str]]) -> None:
        self._options = options
        self._lines = lines
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._described: dict[tuple[tuple[str, ...], tuple[str, ...]], _Track] = {}
        self._devices: list[Device] = []
        self._ignored: dict[str, None] = {}
        self._rejected: Counter[str] = Counter()
        self._complaints: Counter[Message] = Counter()
        self._notes: list[Message] = []
        self._problems: list[Problem] = []

    def file(self, path: Path) -> None:
        """Read one file line by line: only its numbers are kept."""
        clock = LogClock(self._options.zone, self._options.time_format)
        header: _Header | None = None
        delimiter = ","
        for at, line in enumerate(self._lines(path), 1):
            text = line.strip()
            if not text:
                continue
            if header is None:
                delimiter = max(",;\t", key=text.count)
                header = self._first_header(Place(str(path), at, text, delimiter))
                if not self._options.columns:
                    continue
            place = Place(str(path), at, text, delimiter)
            header = self._line(header, place, clock, complete=line.endswith("\n"))
            if len(self._problems) >= _MAX_PROBLEMS:
                break
        if header is None:
            raise InputError(f"{path}: the file is empty; expected a log of nvidia-smi --format=csv")

    def _line(self, header: _Header, place: Place, clock: LogClock, complete: bool) -> _Header:
        """Take one line; the header that holds from here on."""
        row = cells(place.text, place.delimiter)
        if canonical(row[0])[0] == header.names[0]:
            return self._header(row)
        name = Path(place.file).name
        if len(row) < len(header.names) and place.text.startswith(_COMPLAINTS):
            said = Message("{file}: nvidia-smi says: {text}", file=name, text=place.text[:160])
            self._complaints[said] += 1
        elif not complete and len(row) < len(header.names):
            told = "{place}: the last line is cut off and was left out"
            self._notes.append(Message(told, place=f"{name}:{place.line}"))
        else:
            self._row(header, row, clock, place)
        return header

    def _first_header(self, first: Place) -> _Header:
        header = self._header(self._options.columns or cells(first.text, first.delimiter))
        if "timestamp" not in header.positions:
            raise LocatedError([_no_header(first, header)])
        if not header.slots:
            raise LocatedError([first.problem(0, "none of these columns is a metric that gpudiag knows")])
        return header

    def _header(self, columns: Sequence[str]) -> _Header:
        header = _Header.parse(columns)
        self._ignored.update(dict.fromkeys(name for name in header.names if name not in KNOWN))
        return header

    def _row(self, header: _Header, row: list[str], clock: LogClock, place: Place) -> None:
        if len(row) != len(header.names):
            expected = f"expected {len(header.names)} cells as in the header, found {len(row)}"
            self._problems.append(place.problem(0, expected))
            return
        at = header.positions["timestamp"][0]
        try:
            time_ms = clock.parse(row[at])
        except (ValueError, OverflowError, OSError):
            self._problems.append(place.problem(at, f"expected {EXPECTED}"))
            return
        self._track(header, row, time_ms).add(time_ms, self._values(header, row, place))

    def _values(self, header: _Header, row: list[str], place: Place) -> dict[str, float]:
        values: dict[str, float] = {}
        for slot in header.slots:
            try:
                value = slot.value(row)
            except ValueError as error:
                self._problems.append(place.problem(slot.cells[0][0], f"{slot.recipe.columns[0]}: {error}"))
                continue
            if slot.minimum <= value <= slot.maximum:
                values[slot.recipe.metric] = value
            elif not math.isnan(value):
                self._rejected[slot.recipe.columns[0]] += 1
        return values

    def _track(self, header: _Header, row: list[str], time_ms: int) -> _Track:
        described = (header.names, tuple(row[at] for at in header.attributes))
        track = self._described.get(described)
        if track is None:
            track = self._described[described] = self._describe(header, row, time_ms)
        return track

    def _describe(self, header: _Header, row: list[str], time_ms: int) -> _Track:
        node = header.text(row, "hostname") or self._options.node
        identity = _identity(header, row)
        device = _device(header, row, Source(node, _uuid(node, identity)), time_ms)
        self._devices.append(device)
        return self._tracks.setdefault((node, identity), _Track(device, identity))

    def finish(self) -> Log:
        if self._problems:
            raise LocatedError(self._problems)
        blocks = tuple(self._block(track) for track in self._tracks.values())
        if not any(block.columns for block in blocks):
            raise InputError("the log has a header but no value: nothing was measured")
        self._notes += [
            Message(
                "{count} values of {name} are out of range and were left out", count=str(count), name=name
            )
            for name, count in self._rejected.items()
        ]
        self._notes += [
            Message("{text} ({count} times)", text=text, count=str(count))
            for text, count in self._complaints.items()
        ]
        devices = sorted(self._devices, key=lambda device: device.since_ms)
        return Log(blocks, tuple(devices), tuple(self._ignored), tuple(self._notes))

    def _block(self, track: _Track) -> Block:
        copies = 0 if track.identity == _ANONYMOUS else track.forget_copies()
        block = track.block()
        if not track.identity.startswith(_OWN_UUID) and _interleaved(track):
            raise InputError(_several(track.identity))
        repeated = copies + len(track.times_ms) - len(block)
        if repeated:
            told = "{count} rows repeat an instant of {device} and were left out"
            self._notes.append(Message(told, count=str(repeated), device=block.source.device))
        return block


_ANONYMOUS = "only"
# what nvidia-smi writes among the rows when it loses a GPU: the log of just that job must be readable
_COMPLAINTS = ("Unable to determine the device handle", "Failed to initialize NVML", "GPU is lost")
_OWN_UUID = ("GPU-", "MIG-")


def _interleaved(track: _Track) -> bool:
    """Rows come in groups: at least a third follow their predecessor five times faster than the groups do."""
    steps = np.diff(np.sort(np.frombuffer(track.times_ms, dtype=np.int64)))
    return len(steps) >= 10 and bool(np.mean(steps < 0.2 * np.quantile(steps, 0.9)) > 0.3)


def _several(identity: str) -> str:
    """Why rows that differ at one time cannot be one GPU, and what would tell them apart."""
    if identity == _ANONYMOUS:
        return (
            "several rows at nearly the same time, and no column says of which GPU: expected a column index, uuid "
            "or pci.bus_id that tells them apart"
        )
    return (
        f"GPU {identity} has several rows at nearly the same time that do not agree: logs of several machines in one, "
        "or of several loggers; expected one logger's file, or a column hostname or uuid that tells them apart"
    )


def _no_header(first: Place, header: _Header) -> Problem:
    if any(name in KNOWN for name in header.names):
        return first.problem(
            0, "no column timestamp; expected --query-gpu=timestamp,index,utilization.gpu,..."
        )
    return first.problem(
        0,
        "expected the column names as nvidia-smi --format=csv prints them (without noheader); "
        "if the log has none, give them by --columns",
    )


def _identity(header: _Header, row: list[str]) -> str:
    """What tells this GPU from the others of its node; a masked UUID (all zeros) does not."""
    text = header.text(row, "uuid")
    if text.startswith(_OWN_UUID) and text[4:].strip("0-"):
        return text
    return header.text(row, "pci.bus_id") or header.text(row, "index") or _ANONYMOUS


def _uuid(node: str, identity: str) -> str:
    """The device's own UUID, or one derived from node and index that is the same for every part of a log."""
    if identity.startswith(_OWN_UUID):
        return identity
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{identity}')}"


def _device(header: _Header, row: list[str], source: Source, time_ms: int) -> Device:
    limit = header.number(row, "enforced.power.limit", "watts")
    return Device(
        source,
        time_ms,
        index=header.whole(row, "index"),
        pci_bus_id=header.text(row, "pci.bus_id"),
        model=header.text(row, "name"),
        driver=header.text(row, "driver_version"),
        memory_total_bytes=header.number(row, "memory.total", "bytes"),
        power_limit_watts=header.number(row, "power.limit", "watts") if limit is None else limit,
        max_sm_clock_hertz=header.number(row, "clocks.max.sm", "hertz"),
        max_memory_clock_hertz=header.number(row, "clocks.max.memory", "hertz"),
        max_pcie_link_generation=header.whole(row, "pcie.link.gen.max"),
        max_pcie_link_width=header.whole(row, "pcie.link.width.max"),
        compute_capability=header.text(row, "compute_cap"),
    )
