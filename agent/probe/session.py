"""One initialisation of the driver: the devices it found and a cycle over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pynvml

from gpudiag.agent.probe import inventory, mig
from gpudiag.agent.probe.driver import LOST, Driver, describe, library_path
from gpudiag.agent.probe.failures import DriverGoneError, GpuLostError
from gpudiag.agent.probe.framing import Message
from gpudiag.agent.probe.gpu import Gpu
from gpudiag.agent.probe.mig import Instance
from gpudiag.agent.probe.snapshot import Snapshots
from gpudiag.agent.probe.xid import Listener

SLOW_EVERY = 10  # cycles


class Session:
    """Opens the driver on creation; raises `DriverGoneError` or `DriverError` when it cannot."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        driver.call("nvmlInitWithFlags", pynvml.nvmlInit)
        self.version = driver.call("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion)
        self.snapshots = Snapshots(driver.monotonic)
        self._gpus: list[Gpu] = []
        self._instances: dict[str, list[Instance]] = {}
        self._attributes: dict[str, inventory.Attributes] = {}
        self._lost: dict[str, Message] = {}
        self._listener = Listener(driver)
        self._cycle = 0
        self._sent: Message = {}
        self._silent: list[Message] = []
        self._discover()

    def sample(self, interval: float) -> Message:
        """One cycle over all devices; `interval` seconds are left until the next one."""
        self.driver.begin()
        started = self.driver.monotonic()
        readings = [reading for number, gpu in enumerate(self._gpus) for reading in self._gpu(number, gpu)]
        reply: Message = {"gpus": readings, "lost": self._lost, "events": self._listener.read()}
        self._raise_when_all_failed(readings)
        reply |= self._changed({"inventory": self._inventory()})
        if self._cycle % SLOW_EVERY <= 1:
            reply |= self._changed({"absent": self._absent()})
        self._cycle += 1
        self.snapshots.plan(self._without_pcie(readings), interval)
        name, seconds = self.driver.slowest
        took = self.driver.monotonic() - started
        return reply | {"calls": self.driver.calls, "slowest": [name, seconds], "seconds": took}

    def between(self) -> float | None:
        """Do what is due between two cycles; seconds until there is more to do, None for nothing."""
        wait = self.snapshots.wait()
        if wait == 0.0:
            self.snapshots.take()
            wait = self.snapshots.wait()
        return wait

    def close(self) -> None:
        """Give everything back to the driver."""
        for reader in self._readers():
            if reader.uuid not in self._lost:
                reader.gpm.free()
        self._listener.free()
        self.driver.call("nvmlShutdown", pynvml.nvmlShutdown)

    # one GPU -----------------------------------------------------------------------------------------

    def _gpu(self, number: int, gpu: Gpu) -> Iterable[Message]:
        if gpu.uuid in self._lost:
            return []
        self.driver.progress.device(gpu.uuid)
        slow = (self._cycle + number) % SLOW_EVERY == 0 or self._cycle == 0
        try:
            if slow:
                self._slice(gpu)
            readings = [self._reading(gpu, gpu.fast())]
            if slow:
                readings[0]["slow"] = gpu.slow()
            return readings + self._instance_readings(gpu)
        except GpuLostError as error:
            self._lost[gpu.uuid] = error.told()
            self._instances.pop(gpu.uuid, None)
            return []

    def _instance_readings(self, gpu: Gpu) -> list[Message]:
        readings = [self._reading(one, one.fast()) for one in self._instances.get(gpu.uuid, [])]
        if all(reading["nvml"] for reading in readings):
            return readings
        self._slice(gpu, anew=True)  # an instance that answers nothing is none any more
        return [self._reading(one, one.fast()) for one in self._instances.get(gpu.uuid, [])]

    def _reading(self, reader: Gpu | Instance, values: Message) -> Message:
        snapshot = self.snapshots.collect(reader.uuid)
        if snapshot:
            values["snapshot"] = snapshot
        return {"uuid": reader.uuid, **values}

    def _slice(self, gpu: Gpu, anew: bool = False) -> None:
        """Bring the instances of a GPU up to date; those that stay keep their samples unless `anew`."""
        handle = gpu.entries.handle
        found = mig.slices(self.driver, handle) if mig.enabled(gpu.entries) else []
        known = self._instances.get(gpu.uuid, [])
        if not anew and [one.uuid for one in found] == [one.uuid for one in known]:
            return
        for old in known:
            old.gpm.free()
        self._instances[gpu.uuid] = [Instance(self.driver, handle, one, self.version) for one in found]

    # all GPUs ----------------------------------------------------------------------------------------

    def _discover(self) -> None:
        found, self._silent = inventory.handles(self.driver)
        mute = [one for one in self._silent if one["code"] not in LOST]
        if mute and not found:
            raise DriverGoneError(mute[0]["code"], mute[0]["operation"], mute[0]["reason"])
        for uuid, (index, handle) in found.items():
            try:
                self._attributes[uuid] = inventory.attributes(self.driver, uuid, index, handle)
            except GpuLostError as error:
                self._attributes[uuid] = {"uuid": uuid, "index": index}
                self._lost[uuid] = error.told()
            memory = self._attributes[uuid].get("memory_total_bytes")
            self._gpus.append(Gpu(self.driver, handle, uuid, self.version, memory))
        self._listener.listen({uuid: handle for uuid, (_, handle) in found.items() if uuid not in self._lost})

    def _readers(self) -> list[Gpu | Instance]:
        instances = [one for those in self._instances.values() for one in those]
        return [*self._gpus, *instances]

    def _inventory(self) -> Message:
        devices = []
        for gpu in self._gpus:
            own = self._attributes[gpu.uuid]
            devices.append(own)
            devices += [
                inventory.slice_attributes(own, one.slice) for one in self._instances.get(gpu.uuid, [])
            ]
        return {
            "driver": self.version, "library": library_path() if not self._sent else self._sent["inventory"]["library"],
            "devices": devices, "silent": self._silent, "events": self._listener.reason,
        }  # fmt: skip

    def _absent(self) -> Message:
        return {one.uuid: dict(one.entries.absent) for one in self._readers() if one.entries.absent}

    def _changed(self, parts: Message) -> Message:
        """Those parts that differ from what was sent last."""
        changed = {name: part for name, part in parts.items() if self._sent.get(name) != part}
        self._sent.update(changed)
        return changed

    def _raise_when_all_failed(self, readings: list[Message]) -> None:
        """A driver that answers nothing about any GPU (as after losing the device files) is as good as gone."""
        if readings and not any(reading["nvml"] or reading["gpm"] for reading in readings):
            unknown = pynvml.NVML_ERROR_UNKNOWN
            raise DriverGoneError(unknown, "every call on every GPU", describe(unknown))

    def _without_pcie(self, readings: list[Message]) -> list[tuple[str, Any]]:
        if self._cycle < 3:  # GPM speaks from the second cycle on
            return []
        name = "pcie_rx_bytes_per_second"
        bare = {one["uuid"] for one in readings if name not in one["counters"] and name not in one["gpm"]}
        return [(gpu.uuid, gpu.entries) for gpu in self._gpus if gpu.uuid in bare]
