"""PCIe rates of GPUs that have neither byte counters nor GPM: the call that watches the link for 20 ms.

Run between cycles, at a random instant so that it does not beat with the training step, and only for a share of
the time: what it says is a small sample, hence an origin of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pynvml

from gpudiag.agent.probe.entries import Entries
from gpudiag.agent.probe.failures import GpuLostError

WINDOW = 0.04  # seconds: sent and received, 20 ms each (nvml.h)
SHARE = 0.25  # of the interval, at most
KILO = 1000.0
_CALL = "nvmlDeviceGetPcieThroughput"
_DIRECTIONS = {
    "pcie_tx_bytes_per_second": pynvml.NVML_PCIE_UTIL_TX_BYTES,
    "pcie_rx_bytes_per_second": pynvml.NVML_PCIE_UTIL_RX_BYTES,
}

Target = tuple[str, Entries]  # UUID and entry points


class Snapshots:
    """Plans one round of snapshots after each cycle and keeps their results for the next."""

    def __init__(
        self, monotonic: Callable[[], float], uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._monotonic = monotonic
        self._uniform = uniform
        self._plan: list[tuple[float, Target]] = []
        self._values: dict[str, dict[str, float]] = {}
        self._first = 0

    def plan(self, targets: Sequence[Target], interval: float) -> None:
        """Spread the next snapshots over the coming `interval` seconds; GPUs take turns when there are many."""
        self._plan = []
        if not targets:
            return
        fitting = min(len(targets), max(1, int(SHARE * interval / WINDOW)))
        chosen = [targets[(self._first + turn) % len(targets)] for turn in range(fitting)]
        self._first = (self._first + fitting) % len(targets)
        now, latest = self._monotonic(), max(0.0, interval - fitting * WINDOW - WINDOW)
        self._plan = sorted(
            ((now + self._uniform(0.0, latest), one) for one in chosen), key=lambda due: due[0]
        )

    def wait(self) -> float | None:
        """Seconds until the next snapshot is due, or None."""
        return max(0.0, self._plan[0][0] - self._monotonic()) if self._plan else None

    def take(self) -> None:
        """The next snapshot of the plan, now."""
        _, (uuid, entries) = self._plan.pop(0)
        try:
            read = {
                name: entries.read(f"{_CALL}({name})", pynvml.nvmlDeviceGetPcieThroughput, direction)
                for name, direction in _DIRECTIONS.items()
            }
        except GpuLostError:
            return  # the next cycle will see it too, and report it
        self._values[uuid] = {name: value * KILO for name, value in read.items() if value is not None}

    def collect(self, uuid: str) -> dict[str, float]:
        """What was seen of this GPU since the last cycle."""
        return self._values.pop(uuid, {})
