"""One out-of-memory message: its numbers in bytes, and which kind of shortage they tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "shortage", "fragmentation", "another_process", "context_overhead", "private_pools", "absurd_request",
    "process_limit", "pool_exhausted", "kv_cache", "library_memory", "outside_allocator", "kernel_resources",
    "host_oom", "cgroup_oom", "oom_killed", "host_allocation", "shared_memory_full", "worker_died", "unknown",
]  # fmt: skip

# A CUDA context with its kernels, workspaces and communication buffers takes 0.3 to 2 GiB in each process.
CONTEXT_BYTES = 2 * 2**30
# Ten times the whole card is no tensor anybody meant: a corrupt or overflowed shape.
ABSURD_CAPACITIES = 10

# Programs that write GB mean 1024 to the power of 3 as those that write GiB (PyTorch for Metal, Paddle, Ray).
SIZE = r"\d[\d,]{0,25}(?:\.\d{0,12})? ?(?:bytes?\b|[KMGTPE]i?B\b|B\b|[KMGT]\b)"
_SIZE = re.compile(r"(?P<number>[\d,]+(?:\.\d*)?) ?(?P<unit>[A-Za-z]*)")
_POWERS = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
# PyTorch prints the largest number there is where the driver does not tell what a process uses.
_UNTOLD_BYTES = 2**63


@dataclass(frozen=True)
class OomMessage:
    """One message: `kind`, bytes as the message states them (None where it does not), and where it stands.

    `capacity_bytes` is the device's, `limit_bytes` what a limit below it allows; where the host or a cgroup was
    short the numbers are theirs. `others_bytes` is memory of the card that neither this process nor the free part
    accounts for. `text_line` counts from 1; `told` is how many lines of the log tell the same event.
    """

    kind: Kind
    text_line: int
    device: int | None = None
    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None
    limit_bytes: int | None = None
    private_pool_bytes: int | None = None
    others_bytes: int | None = None
    victim_pid: int | None = None
    victim: str | None = None
    victim_resident_bytes: int | None = None
    told: int = 1

    @property
    def cached_bytes(self) -> int | None:
        """Reserved by the allocator and not in use by a tensor."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)


def size_bytes(text: str) -> int:
    """Bytes of `2.00 GiB`, `17.79G`, `25,600,000 bytes` or `4096`; raises `ValueError` for other text."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    unit = match["unit"]
    scale: int = 1024 ** (0 if unit.lower() in ("byte", "bytes") else _POWERS[unit[:1].upper()])
    number = match["number"].replace(",", "")
    return round(float(number) * scale) if "." in number else int(number) * scale


def unless_untold(size: int | None) -> int | None:
    """None for the placeholder of a size that the driver did not tell."""
    return None if size is None or size >= _UNTOLD_BYTES else size


def kind_of(numbers: Mapping[str, int], others: int | None) -> Kind:
    """What was short, by an allocator's own numbers (bytes by their names in `OomMessage`, without `_bytes`)."""
    requested, capacity = numbers.get("requested"), numbers.get("capacity")
    if requested is None or capacity is None:
        return "unknown"
    if requested > ABSURD_CAPACITIES * capacity:
        return "absurd_request"
    if requested > capacity:
        return "shortage"
    free = numbers.get("free")
    if free is None:
        return "unknown"
    reserved = numbers.get("reserved", numbers.get("allocated", 0))
    cached = reserved - numbers.get("allocated", 0)
    if "limit" in numbers:
        room = numbers["limit"] - reserved
        if room < requested <= free and cached < requested - room:
            return "process_limit"
        free = min(free, room)
    if "reserved" not in numbers and capacity - free - reserved >= requested - free > 0:
        return "unknown"  # what the allocator keeps may be all that is missing
    return _shortage(numbers, requested - free, cached, others or 0)


def _shortage(numbers: Mapping[str, int], needed: int, cached: int, others: int) -> Kind:
    pools = numbers.get("pools", 0)
    outside = others + max(0, numbers.get("process", 0) - numbers.get("reserved", 0))
    if others > max(needed, CONTEXT_BYTES):
        return "another_process"
    if pools >= needed and pools > cached:
        return "private_pools"
    if cached >= needed:
        return "fragmentation"
    return "context_overhead" if outside >= needed else "shortage"
