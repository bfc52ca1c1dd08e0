"""CPU time of the host, from /proc/stat (proc_pid_stat(5), proc_stat(5))."""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.counters import Counters
from gpudiag.agent.collectors.frames import node_frame, share
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame

FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
BUSY = ("user", "nice", "system", "irq", "softirq")


def parse_stat(text: str) -> tuple[dict[str, float], int]:
    """Clock ticks of all CPUs per state, and how many CPUs are online; guest time is inside user already."""
    lines = text.split("\n")
    ticks = [float(word) for word in lines[0].split()[1:]]
    cpus = sum(1 for line in lines[1:] if line.startswith("cpu"))
    return dict(zip(FIELDS, ticks, strict=False)), cpus


class CpuCollector:
    """`cpu_busy_ratio`, `cpu_iowait_ratio`, `cpus`."""

    name = "cpu"

    def __init__(self, root: HostRoot, node: str, clock: Clock) -> None:
        self._root, self._node = root, node
        self._counters = Counters(clock.monotonic)

    def collect(self, now_ms: int) -> Iterable[Frame]:
        try:
            ticks, cpus = parse_stat(self._root.read("proc/stat"))
        except FileNotFoundError:
            raise NothingToCollect(Message("no /proc/stat")) from None
        change = self._counters.advance(ticks)
        values: dict[str, float | None] = {"cpus": cpus}
        if change is not None:
            # idle and iowait may step back a little when a CPU wakes: then they count as no growth
            grown = {state: change.amounts.get(state, 0.0) for state in ticks}
            total = sum(grown.values())
            values["cpu_busy_ratio"] = share(sum(grown[state] for state in BUSY if state in grown), total)
            values["cpu_iowait_ratio"] = share(grown.get("iowait"), total)
        return node_frame(self._node, now_ms, values)

    def close(self) -> None:
        """Nothing is held."""
