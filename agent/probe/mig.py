"""MIG instances of a GPU, known by UUID: handles and numeric ids are reused as soon as it is sliced anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pynvml

from gpudiag.agent.probe.driver import Driver
from gpudiag.agent.probe.entries import Entries
from gpudiag.agent.probe.gpm import Gpm
from gpudiag.agent.probe.gpu import memory
from gpudiag.agent.probe.processes import Processes


@dataclass(frozen=True)
class Slice:
    """What a MIG instance is."""

    uuid: str
    handle: Any
    gpu_instance: int | None
    profile: str
    memory_bytes: float | None


class Instance:
    """Reads one MIG instance: memory, processes and GPM; everything else belongs to the whole GPU."""

    def __init__(self, driver: Driver, parent: Any, slice_: Slice, driver_version: str) -> None:
        self.uuid = slice_.uuid
        self.slice = slice_
        self.entries = Entries(driver, slice_.handle)
        self._processes = Processes(self.entries, driver_version, slice_.memory_bytes)

        def take(_: Any, sample: Any) -> Any:
            return pynvml.nvmlGpmMigSampleGet(parent, slice_.gpu_instance, sample)

        self.gpm = Gpm(self.entries, take)

    def fast(self) -> dict[str, Any]:
        """This cycle's readings, in the form of a GPU's."""
        values = memory(self.entries)
        processes = self._processes.read()
        if processes is not None:
            values["processes"] = len(processes)
        gpm = self.gpm.read() if self.slice.gpu_instance is not None else {}
        links = [name for name in gpm if name.endswith("_per_second")]
        for name in links:  # the link is the whole GPU's
            del gpm[name]
        return {
            "at": self.entries.driver.monotonic(),
            "gpm": gpm,
            "nvml": values,
            "counters": {},
            "processes": processes,
        }


def enabled(entries: Entries) -> bool:
    """Whether MIG is on now."""
    mode = entries.read("nvmlDeviceGetMigMode", pynvml.nvmlDeviceGetMigMode)
    return bool(mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def slices(driver: Driver, parent: Any) -> list[Slice]:
    """The instances of a GPU with MIG on; empty positions between them are normal."""
    entries = Entries(driver, parent)
    count = entries.read("nvmlDeviceGetMaxMigDeviceCount", pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0
    found = (_slice(driver, entries, position) for position in range(count))
    return [one for one in found if one is not None]


def _slice(driver: Driver, entries: Entries, position: int) -> Slice | None:
    call = f"nvmlDeviceGetMigDeviceHandleByIndex({position})"
    handle = entries.read(call, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, position)
    if handle is None:
        return None
    own = Entries(driver, handle)
    uuid = own.read("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID)
    return None if uuid is None else _describe(own, uuid)


def _describe(entries: Entries, uuid: str) -> Slice:
    instance = entries.read("nvmlDeviceGetGpuInstanceId", pynvml.nvmlDeviceGetGpuInstanceId)
    attributes = entries.read("nvmlDeviceGetAttributes_v2", pynvml.nvmlDeviceGetAttributes)
    if attributes is None:
        return Slice(uuid, entries.handle, instance, "", None)
    size = float(attributes.memorySizeMB << 20)
    return Slice(uuid, entries.handle, instance, _profile(attributes), size)


def _profile(attributes: Any) -> str:
    """NVIDIA's name of the shape: `1g.18gb`, with `1c.` before it where only part of the slices compute."""
    whole, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    part = f"{compute}c." if compute != whole else ""
    return f"{part}{whole}g.{round(attributes.memorySizeMB / 1024)}gb"
