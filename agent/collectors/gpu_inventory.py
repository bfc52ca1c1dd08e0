"""Which GPUs and MIG instances the node has, and what became of them: lost, back, sliced anew. Known by UUID, never by index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import NODE, Source

Attributes = Mapping[str, Any]


class Inventory:
    """`devices` are all that were ever seen and not sliced away; `lost[uuid]` is the reason why one is not read;
    `instances` maps GPU and instance number to the UUID of a MIG instance."""

    def __init__(self, node: str, known: Iterable[Device] = ()) -> None:
        self._node = node
        self.devices = {device.source.device: device for device in known if device.source.node == node}
        self.lost: dict[str, str] = {}
        self.instances: dict[tuple[str, int], str] = {}
        self._listed: set[str] = set()
        self._nameless: dict[int, str] = {}

    def update(self, listed: Attributes, now_ms: int) -> Iterator[Device | Event]:
        """Take in a new list: devices that are new or changed, and events about those that came or went."""
        found = {one["uuid"]: self._device(one, listed["driver"], now_ms) for one in listed["devices"]}
        yield from self._resliced(found, now_ms)
        for uuid, device in found.items():
            known = self.devices.get(uuid)
            if known is None or replace(known, since_ms=now_ms) != device:
                self.devices[uuid] = device
                yield device
        self._listed = set(found)
        self.instances = {
            (one["parent_uuid"], one["gpu_instance"]): one["uuid"]
            for one in listed["devices"]
            if "gpu_instance" in one
        }
        yield from self._missing(listed["silent"], now_ms)

    def losses(self, lost: Mapping[str, Attributes], now_ms: int) -> Iterator[Event]:
        """GPUs that stopped answering, and those that answer again."""
        for uuid, detail in lost.items():
            if uuid not in self.lost:
                yield self._loss(uuid, detail, now_ms)
        for uuid in [uuid for uuid in self.lost if uuid in self._listed and uuid not in lost]:
            del self.lost[uuid]
            yield Event(Source(self._node, uuid), now_ms, "gpu_recovered")

    def limited(self, uuid: str, watts: float | None, now_ms: int) -> Iterator[Device]:
        """The device anew when somebody changed its power limit."""
        device = self.devices.get(uuid)
        if device is not None and watts and device.power_limit_watts not in (None, watts):
            self.devices[uuid] = replace(device, since_ms=now_ms, power_limit_watts=watts)
            yield self.devices[uuid]

    @property
    def missing(self) -> dict[str, str]:
        """Reasons by UUID, and by `index N` for GPUs that were lost before anybody learnt their UUID."""
        return self.lost | {f"index {index}": reason for index, reason in self._nameless.items()}

    def sliced(self) -> set[str]:
        """GPUs that have MIG instances now."""
        return {device.parent_uuid for device in self.devices.values() if device.parent_uuid}

    def _device(self, attributes: Attributes, driver: str, now_ms: int) -> Device:
        own = {name: value for name, value in attributes.items() if name not in ("uuid", "gpu_instance")}
        return Device(Source(self._node, attributes["uuid"]), now_ms, driver=driver, **own)

    def _resliced(self, found: Mapping[str, Device], now_ms: int) -> Iterator[Event]:
        """One event per GPU whose MIG instances are others than before."""
        for parent in sorted(uuid for uuid, device in found.items() if not device.parent_uuid):
            before, now = _instances(self.devices, parent), _instances(found, parent)
            if before != now and parent in self.devices:
                detail = {"added": sorted(now - before), "removed": sorted(before - now)}
                yield Event(Source(self._node, parent), now_ms, "mig_changed", detail=detail)
            for uuid in before - now:
                del self.devices[uuid]

    def _missing(self, silent: Iterable[Attributes], now_ms: int) -> Iterator[Event]:
        """GPUs that were there before and are not listed, and those that have no name because they do not answer."""
        by_index = {one["index"]: one for one in silent}
        whole = [uuid for uuid, device in self.devices.items() if not device.parent_uuid]
        counted = {"expected": len(whole), "found": len(self._listed.intersection(whole))}
        for uuid in whole:
            if uuid in self._listed:
                continue
            index = self.devices[uuid].index
            detail = by_index.pop(-1 if index is None else index, {"reason": "the driver no longer lists it"})
            if uuid not in self.lost:
                yield self._loss(uuid, {**detail, **counted}, now_ms)
        for index in sorted(by_index.keys() - self._nameless.keys()):
            detail = dict(by_index[index])
            yield Event(Source(self._node, NODE), now_ms, "gpu_lost", detail["code"], index, detail)
        self._nameless = {index: one["reason"] for index, one in by_index.items()}

    def _loss(self, uuid: str, detail: Attributes, now_ms: int) -> Event:
        self.lost[uuid] = detail["reason"]
        return Event(Source(self._node, uuid), now_ms, "gpu_lost", detail.get("code", 0), detail=dict(detail))


def _instances(devices: Mapping[str, Device], parent: str) -> set[str]:
    return {uuid for uuid, device in devices.items() if device.parent_uuid == parent}
