"""Pressure stall information: how long tasks waited for CPU, I/O and memory (PSI, kernel 4.20 and later)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.counters import Change, Counters
from gpudiag.agent.collectors.frames import node_frame
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame

MICROSECONDS = 1e-6
METRICS = {
    "cpu.some": "pressure_cpu_some_ratio",
    "io.some": "pressure_io_some_ratio",
    "io.full": "pressure_io_full_ratio",
    "memory.some": "pressure_memory_some_ratio",
    "memory.full": "pressure_memory_full_ratio",
}


def parse_pressure(resource: str, text: str) -> dict[str, float]:
    """Microseconds stalled since boot as `resource.some` and `resource.full`."""
    found = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        for word in rest.split():
            if word.startswith("total="):
                found[f"{resource}.{kind}"] = float(word[6:])
    return found


def stall_ratios(change: Change, metrics: Mapping[str, str]) -> dict[str, float | None]:
    """Share of the time stalled, per metric name; the counter may run a little ahead of our clock."""
    rates = {name: change.rate(key, MICROSECONDS) for key, name in metrics.items()}
    return {name: None if rate is None else min(1.0, rate) for name, rate in rates.items()}


class PressureCollector:
    """`pressure_{cpu,io,memory}_{some,full}_ratio`."""

    name = "pressure"

    def __init__(self, root: HostRoot, node: str, clock: Clock) -> None:
        self._root, self._node = root, node
        self._counters = Counters(clock.monotonic)

    def collect(self, now_ms: int) -> Iterable[Frame]:
        totals: dict[str, float] = {}
        for resource in ("cpu", "io", "memory"):
            # with psi=0 the files are there but opening them fails
            text = self._root.read_if_there(f"proc/pressure/{resource}")
            if text is not None:
                totals.update(parse_pressure(resource, text))
        if not totals:
            raise NothingToCollect(Message("this kernel has no pressure stall information"))
        change = self._counters.advance(totals)
        return [] if change is None else node_frame(self._node, now_ms, stall_ratios(change, METRICS))

    def close(self) -> None:
        """Nothing is held."""
