"""Disks of the host, from /proc/diskstats (Documentation/admin-guide/iostats.rst)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.counters import Change, Counters
from gpudiag.agent.collectors.frames import node_frame
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame

SECTOR_BYTES = 512
MILLISECONDS = 1e-3
_COLUMNS = {"reads": 3, "read_sectors": 5, "read_ms": 6, "write_sectors": 9, "busy_ms": 12}
_WHOLE_DISK = re.compile(r"(?:[shv]d[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+|pmem\d+|dasd[a-z]+)$")


def parse_diskstats(text: str) -> dict[str, dict[str, float]]:
    """Counters per block device."""
    rows = (line.split() for line in text.splitlines())
    return {
        row[2]: {name: float(row[column]) for name, column in _COLUMNS.items()}
        for row in rows
        if len(row) >= 14
    }


def worst_read_await(change: Change, disks: Iterable[str]) -> float | None:
    """Seconds of a mean read on the disk where it took longest; None when nothing was read."""
    waits = []
    for disk in disks:
        reads, milliseconds = change.amount(f"{disk}/reads"), change.amount(f"{disk}/read_ms")
        if reads and milliseconds is not None:
            waits.append(milliseconds * MILLISECONDS / reads)
    return max(waits, default=None)


class DiskCollector:
    """Bytes, read latency and busy time of whole physical disks: no partitions, loop or mapped devices twice."""

    name = "disk"

    def __init__(self, root: HostRoot, node: str, clock: Clock) -> None:
        self._root, self._node = root, node
        self._counters = Counters(clock.monotonic)
        self._known: dict[str, bool] = {}

    def collect(self, now_ms: int) -> Iterable[Frame]:
        try:
            rows = parse_diskstats(self._root.read("proc/diskstats"))
        except FileNotFoundError:
            raise NothingToCollect(Message("no /proc/diskstats")) from None
        disks = [name for name in rows if self._is_whole_disk(name)]
        if not disks:
            raise NothingToCollect(Message("no physical disk"))
        change = self._counters.advance(
            {f"{disk}/{counter}": value for disk in disks for counter, value in rows[disk].items()}
        )
        if change is None:
            return []
        busy = [rate for disk in disks if (rate := change.rate(f"{disk}/busy_ms", MILLISECONDS)) is not None]
        return node_frame(
            self._node,
            now_ms,
            {
                "disk_read_bytes_per_second": change.total("/read_sectors", SECTOR_BYTES),
                "disk_write_bytes_per_second": change.total("/write_sectors", SECTOR_BYTES),
                "disk_read_await_seconds": worst_read_await(change, disks),
                "disk_busy_ratio": min(1.0, max(busy)) if busy else None,
            },
        )

    def _is_whole_disk(self, name: str) -> bool:
        if name not in self._known:
            if self._root.exists("sys/block"):
                self._known[name] = self._root.exists(f"sys/block/{name}/device")
            else:
                self._known[name] = _WHOLE_DISK.match(name) is not None
        return self._known[name]

    def close(self) -> None:
        """Nothing is held."""
