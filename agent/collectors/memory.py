"""Memory and swap of the host, from /proc/meminfo and /proc/vmstat."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.counters import Counters
from gpudiag.agent.collectors.frames import node_frame
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame

KIB = 1024
# kernels before 5.9 did not tell file from anonymous refaults
_REFAULT = ("workingset_refault_file", "workingset_refault")
_SIZES = frozenset(("MemTotal", "MemAvailable"))
_PAGING = frozenset(("pswpin", "pswpout", "pgmajfault", *_REFAULT))


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes of the two lines of /proc/meminfo that are wanted, by name; the file has some 50 more."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in _SIZES:
            words = rest.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) * (KIB if words[1:] == ["kB"] else 1)
            if len(found) == len(_SIZES):
                break
    return found


def parse_vmstat(text: str) -> dict[str, float]:
    """The counters of /proc/vmstat that tell of paging, by name; the file has some 180 more."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in pairs if name in _PAGING}


class MemoryCollector:
    """`memory_available_bytes`, `memory_total_bytes`, swap traffic, major faults and refaults."""

    name = "memory"

    def __init__(
        self, root: HostRoot, node: str, clock: Clock, page_bytes: int = os.sysconf("SC_PAGE_SIZE")
    ) -> None:
        self._root, self._node, self._page_bytes = root, node, page_bytes
        self._counters = Counters(clock.monotonic)

    def collect(self, now_ms: int) -> Iterable[Frame]:
        try:
            memory = parse_meminfo(self._root.read("proc/meminfo"))
        except FileNotFoundError:
            raise NothingToCollect(Message("no /proc/meminfo")) from None
        values: dict[str, float | None] = {
            "memory_available_bytes": memory.get("MemAvailable"),
            "memory_total_bytes": memory.get("MemTotal"),
        }
        return node_frame(self._node, now_ms, {**values, **self._paging()})

    def _paging(self) -> dict[str, float | None]:
        text = self._root.read_if_there("proc/vmstat")
        change = None if text is None else self._counters.advance(parse_vmstat(text))
        if change is None:
            return {}
        refaults = [rate for name in _REFAULT if (rate := change.rate(name)) is not None]
        return {
            "swap_in_bytes_per_second": change.rate("pswpin", self._page_bytes),
            "swap_out_bytes_per_second": change.rate("pswpout", self._page_bytes),
            "major_faults_per_second": change.rate("pgmajfault"),
            "refaults_per_second": refaults[0] if refaults else None,
        }

    def close(self) -> None:
        """Nothing is held."""
