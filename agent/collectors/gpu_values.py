"""From one reading of the probe to a frame: one origin per metric, rates from counters, nothing that contradicts itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

from gpudiag.agent.collectors.rates import IMPLAUSIBLE, Rates
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Frame, Source

GPM, NVML, SNAPSHOT = "gpm", "nvml", "nvml-snapshot"
OVERSHOOT = 1.01  # a ratio over a short window comes out slightly above one; more than that is garbage
SLACK = 2.0  # a late cycle is up to twice as long
HOLD_CYCLES = 15  # what is read every 10 cycles holds until the next reading, with room for one late one
_LANE = {
    1: 0.25e9,
    2: 0.5e9,
    3: 0.985e9,
    4: 1.969e9,
    5: 3.938e9,
    6: 7.563e9,
}  # bytes/s per PCIe lane and direction


class Values:
    """Remembers, per device, counters and what is read less often. `rejected` counts what was dropped, by metric."""

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._interval = interval
        self._hold = HOLD_CYCLES * interval
        self._rates = Rates()
        self._slow: dict[str, tuple[float, dict[str, float]]] = {}
        self.rejected: Counter[str] = Counter()

    def clear(self) -> None:
        """Nothing from before is comparable with what comes."""
        self._rates.clear()
        self._slow.clear()

    def keep(self, devices: Container[str]) -> None:
        """Forget the devices that are not among these: a GPU that is sliced anew makes new ones for ever."""
        self._slow = {uuid: held for uuid, held in self._slow.items() if uuid in devices}
        self._rates.keep(lambda key: isinstance(key, tuple) and key[0] in devices)

    def frame(self, reading: Mapping[str, Any], now_ms: int, device: Device | None) -> Frame:
        """Everything known about the device at this cycle; a metric that could not be read is absent."""
        uuid = reading["uuid"]
        values = {name: _settled(name, value) for name, value in reading["gpm"].items()}
        self._settle(reading, values, device)
        snapshots: dict[str, str] = {}
        for name, value in reading.get("snapshot", {}).items():
            if name not in values:
                values[name], snapshots[name] = value, SNAPSHOT
        own = {**self._held(reading), **reading["nvml"], **self._from_counters(reading, device)}
        origins = dict.fromkeys(values, GPM) | snapshots | dict.fromkeys(own, NVML)
        values |= own
        self._drop_impossible(values)
        return Frame(Source(self._node, uuid), now_ms, values, {name: origins[name] for name in values})

    def _held(self, reading: Mapping[str, Any]) -> dict[str, float]:
        uuid, at = reading["uuid"], reading["at"]
        if "slow" in reading:
            self._slow[uuid] = (at, reading["slow"])
        since, values = self._slow.get(uuid, (at, {}))
        return values if at - since <= self._hold else {}

    def _settle(self, reading: Mapping[str, Any], values: dict[str, float], device: Device | None) -> None:
        """A link with a good counter is read from that alone, even where one reading gives no rate: no mixing."""
        for name, (_, wraps_at) in reading["counters"].items():
            if wraps_at > _ceiling(name, device) * self._interval * SLACK:
                values.pop(name, None)

    def _from_counters(self, reading: Mapping[str, Any], device: Device | None) -> dict[str, float]:
        rates = {}
        for name, (value, wraps_at) in reading["counters"].items():
            ceiling = _ceiling(name, device)
            rate = self._rates.rate((reading["uuid"], name), value, reading["at"], wraps_at, ceiling)
            if rate is not None:
                rates[name] = float(round(rate))
        return rates

    def _drop_impossible(self, values: dict[str, float]) -> None:
        if values.get("memory_temperature_celsius") == 0:
            del values["memory_temperature_celsius"]  # boards without the sensor say 0
        total = values.get("memory_total_bytes")
        if total is not None and values.get("memory_used_bytes", 0.0) > total:
            self._reject(values, "memory_used_bytes")
        if total == 0:
            self._reject(values, "memory_total_bytes")

    def _reject(self, values: dict[str, float], name: str) -> None:
        if values.pop(name, None) is not None:
            self.rejected[name] += 1


def _settled(name: str, value: float) -> float:
    return 1.0 if name.endswith("_ratio") and 1.0 < value <= OVERSHOOT else value


def _ceiling(name: str, device: Device | None) -> float:
    """The fastest that this device's link can be in bytes per second, with a tenth to spare for the clock."""
    if not name.startswith("pcie"):
        return IMPLAUSIBLE
    if device is None or not device.max_pcie_link_width:
        return 16 * _LANE[6] * 1.1
    return device.max_pcie_link_width * _LANE.get(device.max_pcie_link_generation or 6, _LANE[6]) * 1.1
