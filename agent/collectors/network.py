"""Traffic of the host's physical network interfaces, from /proc/net/dev."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.counters import Counters
from gpudiag.agent.collectors.frames import node_frame
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame

# what process 1 sees is the host's network even when this process has a namespace of its own
_PATHS = ("proc/1/net/dev", "proc/net/dev")
_VIRTUAL = re.compile(
    r"lo$|veth|docker|br-|cali|cni|flannel|virbr|vnet|ifb|dummy|tun|tap|bond|team|wg|vxlan|cilium"
)


def parse_net_dev(text: str) -> dict[str, tuple[float, float]]:
    """Bytes received and sent per interface."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.rpartition(":")
        words = rest.split()
        if colon and len(words) >= 9:
            found[name.strip()] = (float(words[0]), float(words[8]))
    return found


class NetworkCollector:
    """`network_rx_bytes_per_second`, `network_tx_bytes_per_second`: no bridges, bonds and tunnels counted twice."""

    name = "network"

    def __init__(self, root: HostRoot, node: str, clock: Clock) -> None:
        self._root, self._node = root, node
        self._counters = Counters(clock.monotonic)

    def collect(self, now_ms: int) -> Iterable[Frame]:
        text = self._root.first(_PATHS)
        interfaces = {} if text is None else parse_net_dev(text)
        chosen = self._physical(interfaces)
        if not chosen:
            raise NothingToCollect(Message("no network interface"))
        counters = {}
        for name in chosen:
            counters[f"{name}/rx"], counters[f"{name}/tx"] = interfaces[name]
        change = self._counters.advance(counters)
        if change is None:
            return []
        return node_frame(
            self._node,
            now_ms,
            {
                "network_rx_bytes_per_second": change.total("/rx"),
                "network_tx_bytes_per_second": change.total("/tx"),
            },
        )

    def _physical(self, interfaces: Iterable[str]) -> list[str]:
        names = list(interfaces)
        with_device = [name for name in names if self._root.exists(f"sys/class/net/{name}/device")]
        return with_device or [name for name in names if not _VIRTUAL.match(name)]

    def close(self) -> None:
        """Nothing is held."""
