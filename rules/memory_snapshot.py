"""What a PyTorch memory snapshot (`torch.cuda.memory._dump_snapshot`) holds, and what fragments in it.

The file is a pickle: only plain containers, numbers and text are accepted, so nothing in it can run code.
Layout of the segments: torch/cuda/_memory_viz.py and c10/cuda/CUDACachingAllocator.h (SegmentInfo, BlockInfo) of
PyTorch 1.10 to 2.13. A snapshot from somebody else is read by `gpudiag.rules.snapshot_process`.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO

from gpudiag.errors import InputError
from gpudiag.message import Message

# Far more than any allocator holds; a small file can name the same block again and again.
BLOCKS_MOST = 2_000_000
_FRAMES_MOST = 500
_TEXT_MOST = 1000
_NUMBER_MOST = 2**64
# Expandable segments give whole pages back to the driver: kSmallBuffer and kLargeBuffer of the allocator.
_PAGES = {"small": 2 * 2**20, "large": 20 * 2**20}
_FRAMEWORK = ("/torch/", "torch::", "c10::", "??")


@dataclass(frozen=True)
class SnapshotBlock:
    """A piece of a segment; `where` is the innermost line of the program (not of PyTorch) that asked for it."""

    address: int
    size: int
    used: bool
    where: str


@dataclass(frozen=True)
class Segment:
    """One reservation from the driver, in bytes, with its blocks in address order."""

    device: int
    address: int
    size: int
    stream: int
    kind: str
    pool_id: tuple[int, int]
    is_expandable: bool
    blocks: tuple[SnapshotBlock, ...]

    @cached_property
    def pool(self) -> Message:
        """Small or large, and whose it is."""
        pool = Message(self.kind)
        if self.pool_id != (0, 0):
            pool = Message("{pool} private {id}", pool=pool, id=f"{self.pool_id[0]}.{self.pool_id[1]}")
        return Message("{pool} expandable", pool=pool) if self.is_expandable else pool

    @cached_property
    def used(self) -> int:
        return sum(block.size for block in self.blocks if block.used)

    @property
    def largest_free(self) -> int:
        return max((block.size for block in self.blocks if not block.used), default=0)

    @cached_property
    def inactive_split(self) -> int:
        """Free bytes that cannot go back to the driver because the segment, or their page of it, is in use."""
        if not self.used:
            return 0
        if not self.is_expandable:
            return max(0, self.size - self.used)
        return sum(self.stuck(block) for block in self.blocks)

    def stuck(self, block: SnapshotBlock) -> int:
        """Bytes of a free block of this segment that cannot go back to the driver."""
        if block.used or not self.used:
            return 0
        if not self.is_expandable:
            return block.size
        page = _PAGES.get(self.kind, _PAGES["large"])
        start = block.address - self.address
        first, last = -(-start // page), (start + block.size) // page
        return block.size - max(0, last - first) * page


@dataclass(frozen=True)
class Fragmentation:
    """Bytes of one device, pool and stream: `ratio` is the share of reserved memory stuck in split segments."""

    device: int
    pool: Message
    stream: int
    segments: int
    reserved: int
    allocated: int
    inactive_split: int
    largest_free: int

    @property
    def ratio(self) -> float:
        return self.inactive_split / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class Pin:
    """An allocation site that keeps otherwise free segments alive: bytes it holds, bytes it pins."""

    where: str
    blocks: int
    held: int
    pinned: int


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise InputError(
            f"refused: the snapshot asks for {module_name}.{global_name}; only plain data is accepted"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise InputError(
            "refused: the snapshot refers to objects outside itself; only plain data is accepted"
        )


def parse(stream: BinaryIO) -> tuple[Segment, ...]:
    """The segments of a snapshot, in this process; raises `InputError` for anything but one made of plain data."""
    try:
        content = _PlainUnpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError,
            OverflowError, MemoryError, UnicodeDecodeError, RecursionError) as error:  # fmt: skip
        raise InputError(f"not a memory snapshot: {error or type(error).__name__}") from None
    segments = (
        content.get("segments") if isinstance(content, dict) else content
    )  # torch.cuda.memory_snapshot()
    if not isinstance(segments, list) or (not isinstance(content, dict) and not segments):
        raise InputError("not a memory snapshot: a dictionary with a list 'segments' was expected")
    blocks = _Blocks()
    try:
        read = [_segment(segment, blocks) for segment in segments]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"not a memory snapshot: a segment lacks or garbles {error}") from None
    return tuple(sorted(read, key=lambda segment: (segment.device, segment.address)))


class _Blocks:
    """Reads the blocks of all segments, and no more of them than any allocator holds."""

    def __init__(self) -> None:
        self._read = 0
        self._sites: dict[str, str] = {}

    def of(self, raw: Mapping[str, Any], address: int) -> Iterator[SnapshotBlock]:
        for block in raw["blocks"]:
            self._read += 1
            if self._read > BLOCKS_MOST:
                raise InputError(f"not a memory snapshot: more than {BLOCKS_MOST} blocks")
            size = _whole(block, "size")
            address = _whole(block, "address", address)
            where = _where(_frames(block))
            yield SnapshotBlock(
                address, size, block["state"].startswith("active"), self._sites.setdefault(where, where)
            )
            address += size


def _segment(raw: Mapping[str, Any], blocks: _Blocks) -> Segment:
    address = _whole(raw, "address")
    first, second = raw.get("segment_pool_id", (0, 0))
    pool = {"first": first, "second": second}
    return Segment(
        device=_whole(raw, "device", 0),
        address=address,
        size=_whole(raw, "total_size"),
        stream=_whole(raw, "stream", 0),
        kind=str(raw.get("segment_type", "unknown"))[:_TEXT_MOST],
        pool_id=(_whole(pool, "first"), _whole(pool, "second")),
        is_expandable=bool(raw.get("is_expandable")),
        blocks=tuple(blocks.of(raw, address)),
    )


def _whole(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    number = raw[name] if default is None else raw.get(name, default)
    if type(number) is not int or not -_NUMBER_MOST <= number <= _NUMBER_MOST:
        raise ValueError(f"'{name}'")
    return number


def _frames(block: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The stack of the block, or of the latest tensor in it, which PyTorch before 2.1 tells first."""
    frames: Sequence[Mapping[str, Any]] = block.get("frames") or ()
    history = block.get("history") or ()
    return frames or (history[0].get("frames") or () if history else ())


def _where(frames: Iterable[Mapping[str, Any]]) -> str:
    """The first frame of the user's program: PyTorch's own frames name no cause."""
    fallback = ""
    for frame in islice(frames, _FRAMES_MOST):
        file, function = str(frame.get("filename", ""))[:_TEXT_MOST], str(frame.get("name", ""))[:_TEXT_MOST]
        line = _whole(frame, "line", 0)
        text = f"{file}:{line} {function}"
        fallback = fallback or text
        if file and not any(part in file or part in function for part in _FRAMEWORK):
            return text
    return fallback


def fragmentation(segments: Iterable[Segment]) -> list[Fragmentation]:
    """Per device, pool and stream, most stuck bytes first."""
    groups: dict[tuple[int, Message, int], list[Segment]] = defaultdict(list)
    for segment in segments:
        groups[(segment.device, segment.pool, segment.stream)].append(segment)
    rows = [
        Fragmentation(
            device=device,
            pool=pool,
            stream=stream,
            segments=len(members),
            reserved=sum(segment.size for segment in members),
            allocated=sum(segment.used for segment in members),
            inactive_split=sum(segment.inactive_split for segment in members),
            largest_free=max(segment.largest_free for segment in members),
        )
        for (device, pool, stream), members in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.inactive_split, row.device, row.pool, row.stream))


def pins(segments: Iterable[Segment]) -> list[Pin]:
    """Who keeps half-empty segments alive, most pinned bytes first; a segment's free bytes are shared by size."""
    blocks: dict[str, int] = defaultdict(int)
    held: dict[str, int] = defaultdict(int)
    pinned: dict[str, float] = defaultdict(float)
    for segment in segments:
        if not segment.inactive_split:
            continue
        for block in segment.blocks:
            if block.used:
                where = block.where or Message("(no stack recorded)")
                blocks[where] += 1
                held[where] += block.size
                pinned[where] += segment.inactive_split * block.size / segment.used
    rows = [Pin(where, blocks[where], held[where], round(pinned[where])) for where in blocks]
    return sorted(rows, key=lambda pin: (-pin.pinned, pin.where))
