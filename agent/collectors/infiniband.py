"""InfiniBand and RoCE port counters, from /sys/class/infiniband."""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.counters import Counters
from gpudiag.agent.collectors.frames import node_frame
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame

BASE = "sys/class/infiniband"
WORD_BYTES = 4  # IBTA: PortRcvData and PortXmitData count 32-bit words
_COUNTERS = {"rx": "port_rcv_data", "tx": "port_xmit_data"}


class InfinibandCollector:
    """`infiniband_rx_bytes_per_second`, `infiniband_tx_bytes_per_second` over all ports."""

    name = "infiniband"

    def __init__(self, root: HostRoot, node: str, clock: Clock) -> None:
        self._root, self._node = root, node
        self._counters = Counters(clock.monotonic)

    def collect(self, now_ms: int) -> Iterable[Frame]:
        readings = {}
        for adapter in self._root.names(BASE):
            for port in self._root.names(f"{BASE}/{adapter}/ports"):
                readings.update(self._read_port(f"{BASE}/{adapter}/ports/{port}/counters"))
        if not readings:
            raise NothingToCollect(Message("no InfiniBand port"))
        change = self._counters.advance(readings)
        if change is None:
            return []
        return node_frame(
            self._node,
            now_ms,
            {
                "infiniband_rx_bytes_per_second": change.total("/rx", WORD_BYTES),
                "infiniband_tx_bytes_per_second": change.total("/tx", WORD_BYTES),
            },
        )

    def _read_port(self, folder: str) -> dict[str, float]:
        found = {}
        for direction, counter in _COUNTERS.items():
            text = self._root.read_if_there(f"{folder}/{counter}")
            if text is not None and text.strip().isdigit():
                found[f"{folder}/{direction}"] = float(text)
        return found

    def close(self) -> None:
        """Nothing is held."""
