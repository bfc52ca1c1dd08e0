"""`torch.cuda.memory`: a caching allocator that splits segments, keeps them, and starts over when the GPU is full."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from . import driver

_GRAIN = 2 << 20


class OutOfMemoryError(RuntimeError):
    pass


@dataclass(eq=False)
class Block:
    """A piece of a segment; the pieces after one another are the whole of it."""

    segment: list[Block]
    size: int
    used: bool


class Allocator:
    def __init__(self) -> None:
        self._segments: list[list[Block]] = []
        self._lock = threading.RLock()
        self._allocated = self._allocated_peak = self._reserved_peak = self._retries = self._ooms = 0

    @property
    def _reserved(self) -> int:
        return sum(block.size for segment in self._segments for block in segment)

    def allocate(self, size: int) -> Block:
        with self._lock:
            size = -(-size // _GRAIN) * _GRAIN
            block = self._cached(size) or self._segment(size)
            if block is None:
                self._retries += 1
                self._segments = [one for one in self._segments if any(block.used for block in one)]
                block = self._segment(size)
            if block is None:
                self._ooms += 1
                raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
            block.used = True
            self._allocated += size
            self._allocated_peak = max(self._allocated_peak, self._allocated)
            self._reserved_peak = max(self._reserved_peak, self._reserved)
            driver.hold(self._reserved)
            return block

    def free(self, block: Block) -> None:
        with self._lock:
            block.used = False
            self._allocated -= block.size
            segment = block.segment
            for place in range(len(segment) - 1, 0, -1):
                if not segment[place].used and not segment[place - 1].used:
                    segment[place - 1].size += segment.pop(place).size

    def _cached(self, size: int) -> Block | None:
        free = [b for segment in self._segments for b in segment if not b.used and b.size >= size]
        if not free:
            return None
        best = min(free, key=lambda block: block.size)
        if best.size > size:
            rest = Block(best.segment, best.size - size, used=False)
            best.segment.insert(best.segment.index(best) + 1, rest)
            best.size = size
        return best

    def _segment(self, size: int) -> Block | None:
        if self._reserved + size > 0.98 * driver.total_bytes():
            return None
        segment: list[Block] = []
        segment.append(Block(segment, size, used=False))
        self._segments.append(segment)
        return segment[0]

    def stats(self) -> dict[str, int]:
        with self._lock:
            split = (b.size for one in self._segments if len(one) > 1 for b in one if not b.used)
            return {
                "allocated_bytes.all.peak": self._allocated_peak,
                "requested_bytes.all.peak": self._allocated_peak,
                "reserved_bytes.all.peak": self._reserved_peak,
                "inactive_split_bytes.all.current": sum(split),
                "num_alloc_retries": self._retries,
                "num_ooms": self._ooms,
            }

    def reset_peaks(self) -> None:
        with self._lock:
            self._allocated_peak, self._reserved_peak = self._allocated, self._reserved


ALLOCATOR = Allocator()


def memory_stats(device: Any = None) -> dict[str, int]:
    return ALLOCATOR.stats()


def reset_peak_memory_stats(device: Any = None) -> None:
    ALLOCATOR.reset_peaks()
