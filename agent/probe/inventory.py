"""Which GPUs and MIG instances there are, and what they are."""

from __future__ import annotations

from typing import Any

import pynvml

from gpudiag.agent.probe.driver import Driver
from gpudiag.agent.probe.entries import Entries
from gpudiag.agent.probe.failures import CannotError, DriverError, DriverGoneError, GpuLostError
from gpudiag.agent.probe.mig import Slice
from gpudiag.agent.probe.units import MEGA, MILLI, convert

Attributes = dict[str, Any]


def handles(driver: Driver) -> tuple[dict[str, tuple[int, Any]], list[Attributes]]:
    """UUID to (index, handle) of GPUs that answer, and index and reason of those that do not."""
    found: dict[str, tuple[int, Any]] = {}
    silent = []
    for index in range(driver.call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)):
        try:
            handle = driver.call("nvmlDeviceGetHandleByIndex_v2", pynvml.nvmlDeviceGetHandleByIndex, index)
            found[driver.call("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, handle)] = (index, handle)
        except DriverGoneError:
            raise
        except DriverError as error:
            silent.append({"index": index, **error.told()})
    return found, silent


def attributes(driver: Driver, uuid: str, index: int, handle: Any) -> Attributes:
    """What a GPU is, under the names of `storage.job.Device`; unknown attributes are left out."""
    read = Entries(driver, handle).read
    pci = read("nvmlDeviceGetPciInfo_v3", pynvml.nvmlDeviceGetPciInfo)
    capability = read("nvmlDeviceGetCudaComputeCapability", pynvml.nvmlDeviceGetCudaComputeCapability)
    memory = read("nvmlDeviceGetMemoryInfo", pynvml.nvmlDeviceGetMemoryInfo)
    found = {
        "uuid": uuid,
        "index": index,
        "minor": read("nvmlDeviceGetMinorNumber", pynvml.nvmlDeviceGetMinorNumber),
        "pci_bus_id": pci.busId if pci else None,
        "model": read("nvmlDeviceGetName", pynvml.nvmlDeviceGetName),
        "memory_total_bytes": memory.total if memory else None,
        "power_limit_watts": _scaled(
            read("nvmlDeviceGetEnforcedPowerLimit", pynvml.nvmlDeviceGetEnforcedPowerLimit), MILLI
        ),
        "max_sm_clock_hertz": _scaled(
            read("sm", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM), MEGA
        ),
        "max_memory_clock_hertz": _scaled(
            read("memory", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM), MEGA
        ),
        "max_pcie_link_generation": read(
            "nvmlDeviceGetMaxPcieLinkGeneration", pynvml.nvmlDeviceGetMaxPcieLinkGeneration
        ),
        "max_pcie_link_width": read("nvmlDeviceGetMaxPcieLinkWidth", pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        "nvlink_count": _links(driver, handle),
        "compute_capability": ".".join(map(str, capability)) if capability else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def slice_attributes(parent: Attributes, slice_: Slice) -> Attributes:
    """What a MIG instance is."""
    shared = ("index", "minor", "pci_bus_id", "model", "compute_capability")
    found = {name: parent[name] for name in shared if name in parent}
    found |= {"uuid": slice_.uuid, "parent_uuid": parent["uuid"], "mig_profile": slice_.profile}
    if slice_.gpu_instance is not None:
        found["gpu_instance"] = slice_.gpu_instance
    if slice_.memory_bytes is not None:
        found["memory_total_bytes"] = slice_.memory_bytes
    return found


def _links(driver: Driver, handle: Any) -> int | None:
    """Links that are up."""
    active = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += driver.call("nvmlDeviceGetNvLinkState", pynvml.nvmlDeviceGetNvLinkState, handle, link)
        except CannotError as error:
            return active if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT or link else None
        except (DriverGoneError, GpuLostError):
            raise
        except DriverError:
            return None
    return active


def _scaled(value: float | None, scale: int) -> float | None:
    return None if value is None else convert(value, scale)
