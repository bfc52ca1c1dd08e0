"""NFS reads of the host, from mountstats (statvers 1.0 and later)."""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.counters import Counters
from gpudiag.agent.collectors.frames import node_frame
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame

MILLISECONDS = 1e-3
_PATHS = ("proc/1/mountstats", "proc/self/mountstats")
_SERVER_READ_BYTES = (
    4  # after "bytes:": normal read, normal write, direct read, direct write, server read, ...
)
_READ_OPERATIONS, _READ_RTT_MS = (
    0,
    6,
)  # after "READ:": ops, sent, timeouts, bytes out, bytes in, queue, rtt, ...


def parse_mountstats(text: str) -> dict[str, float]:
    """Counters `EXPORT/bytes`, `EXPORT/ops`, `EXPORT/rtt_ms` of each NFS export; bind mounts show one export twice."""
    found: dict[str, float] = {}
    export = ""
    for line in text.splitlines():
        if line.startswith("device "):
            words = line.split()
            is_nfs = "fstype" in words and words[words.index("fstype") + 1].startswith("nfs")
            export = words[1] if is_nfs else ""
            continue
        words = line.split()
        if not export or not words:
            continue
        if words[0] == "bytes:" and len(words) > _SERVER_READ_BYTES + 1:
            found[f"{export}/bytes"] = float(words[1 + _SERVER_READ_BYTES])
        elif words[0] == "READ:" and len(words) > _READ_RTT_MS + 1:
            found[f"{export}/ops"] = float(words[1 + _READ_OPERATIONS])
            found[f"{export}/rtt_ms"] = float(words[1 + _READ_RTT_MS])
    return found


class NfsCollector:
    """`nfs_read_bytes_per_second`, and `nfs_read_rtt_seconds` while something is read."""

    name = "nfs"

    def __init__(self, root: HostRoot, node: str, clock: Clock) -> None:
        self._root, self._node = root, node
        self._counters = Counters(clock.monotonic)

    def collect(self, now_ms: int) -> Iterable[Frame]:
        text = self._root.first(_PATHS)
        readings = {} if text is None else parse_mountstats(text)
        if not readings:
            raise NothingToCollect(Message("no NFS mount"))
        change = self._counters.advance(readings)
        if change is None:
            return []
        operations, waited = change.total("/ops"), change.total("/rtt_ms", MILLISECONDS)
        return node_frame(
            self._node,
            now_ms,
            {
                "nfs_read_bytes_per_second": change.total("/bytes"),
                "nfs_read_rtt_seconds": waited / operations if operations and waited is not None else None,
            },
        )

    def close(self) -> None:
        """Nothing is held."""
