"""How the driver and its probe do: why series of a GPU are missing must be visible where they are missed."""

from __future__ import annotations

from collections.abc import Callable

from gpudiag.agent.collectors.nvml import NvmlCollector
from gpudiag.agent.families import Families, own, single
from gpudiag.agent.sampler import Snapshot

STATES = ("off", "starting", "running", "late", "hung", "unavailable", "released")


def driver(nvml: NvmlCollector) -> Callable[[Snapshot], Families]:
    """Families of the collector's status, for `SnapshotCollector(always=...)`."""

    def families(_: Snapshot) -> Families:
        status = nvml.status
        state = own("gpudiag_driver_state", "state")
        for name in STATES:
            state.add((name,), name == status.state)
        yield state.metric
        yield from single("gpudiag_driver_calls", status.calls)
        yield from single("gpudiag_driver_cycle_seconds", status.cycle_seconds)
        yield from single("gpudiag_probe_starts_total", status.starts)
        absent = own("gpudiag_driver_entry_absent", "uuid", "entry", "reason")
        for uuid, entries in sorted(status.absent.items()):
            for entry, reason in sorted(entries.items()):
                absent.add((uuid, entry, reason), 1)
        yield from absent.filled()
        lost = own("gpudiag_gpu_lost", "uuid", "reason")
        for uuid, reason in sorted(status.lost.items()):
            lost.add((uuid, reason), 1)
        yield from lost.filled()

    return families
