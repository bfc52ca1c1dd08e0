"""Compute processes of a device, and the drivers whose list cannot be read as documented.

Drivers 535.43 to 535.86 fill nvmlDeviceGetComputeRunningProcesses_v3 with a larger structure than every other
driver, so that all entries after the first are garbage; their older function is right.
"""

from __future__ import annotations

from typing import Any

import pynvml

from gpudiag.agent.probe.entries import Entries

NEW = "nvmlDeviceGetComputeRunningProcesses_v3"
OLD = "nvmlDeviceGetComputeRunningProcesses_v2"
PID_LIMIT = 1 << 22  # the kernel's PID_MAX_LIMIT
_WRONG_LAYOUT = "the list is laid out wrongly by this driver"

Process = list[int | None]  # pid, bytes used or None where the driver does not say


def wrong_layout(driver_version: str) -> bool:
    """Whether this is one of the drivers with the larger structure."""
    try:
        major, minor = (int(part) for part in driver_version.split(".")[:2])
    except ValueError:
        return False
    return major == 535 and 43 <= minor <= 86


class Processes:
    """Lists the processes of one device, `limit` bytes of memory being the most one can use."""

    def __init__(self, entries: Entries, driver_version: str, limit: float | None) -> None:
        self._entries = entries
        self._limit = limit if limit else float("inf")
        if wrong_layout(driver_version):
            entries.cannot(NEW, _WRONG_LAYOUT, pause=float("inf"))

    def read(self) -> list[Process] | None:
        """Processes now; None when the driver does not tell."""
        found = self._entries.read(NEW, pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
        if found is not None and not all(map(self._plausible, found)):
            self._entries.cannot(NEW, _WRONG_LAYOUT)
            found = None
        if found is None:
            found = self._entries.read(OLD, pynvml.nvmlDeviceGetComputeRunningProcesses_v2)
        if found is None:
            return None
        return [[entry.pid, entry.usedGpuMemory] for entry in found if self._plausible(entry)]

    def _plausible(self, entry: Any) -> bool:
        used = entry.usedGpuMemory
        return 0 < entry.pid <= PID_LIMIT and (used is None or used <= self._limit)
