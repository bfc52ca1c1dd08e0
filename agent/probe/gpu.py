"""One physical GPU: what is read every cycle, and what is read every few cycles because it hardly changes.

Values leave in base units under the catalog's names; counters that only make sense as a rate leave raw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from gpudiag.agent.probe.driver import Driver
from gpudiag.agent.probe.entries import Entries
from gpudiag.agent.probe.fields import Field, Fields
from gpudiag.agent.probe.gpm import Gpm
from gpudiag.agent.probe.links import LinkErrors, LinkTraffic
from gpudiag.agent.probe.processes import Processes
from gpudiag.agent.probe.units import MEGA, MILLI, NANO, ONE, PERCENT, convert

Values = dict[str, float]
Counter = list[float]  # value in bytes, what it wraps at

_RATES: dict[Field, tuple[str, int]] = {
    (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0): ("pcie_tx_bytes_per_second", ONE),
    (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0): ("pcie_rx_bytes_per_second", ONE),
}
_LINK_WRAP = 2.0**64
_FAST: dict[Field, tuple[str, int]] = {
    (pynvml.NVML_FI_DEV_MEMORY_TEMP, 0): ("memory_temperature_celsius", ONE),
    (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0): ("energy_joules_total", MILLI),
    (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, 0): ("throttle_power_seconds_total", NANO),
    (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 0): ("throttle_thermal_seconds_total", NANO),
    (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 0): ("throttle_thermal_seconds_total", NANO),
    (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 0): (
        "throttle_brake_seconds_total",
        NANO,
    ),
}
_SLOW: dict[Field, tuple[str, int]] = {
    (pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, 0): ("power_limit_watts", MILLI),
    (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 0): ("pcie_replays_total", ONE),
    (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, 0): ("ecc_corrected_total", ONE),
    (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0): ("ecc_uncorrected_total", ONE),
    (pynvml.NVML_FI_DEV_RETIRED_SBE, 0): ("retired_pages_total", ONE),
    (pynvml.NVML_FI_DEV_RETIRED_DBE, 0): ("retired_pages_total", ONE),
    (pynvml.NVML_FI_DEV_REMAPPED_COR, 0): ("remapped_rows_corrected_total", ONE),
    (pynvml.NVML_FI_DEV_REMAPPED_UNC, 0): ("remapped_rows_uncorrected_total", ONE),
    (pynvml.NVML_FI_DEV_REMAPPED_PENDING, 0): ("remap_pending", ONE),
    (pynvml.NVML_FI_DEV_REMAPPED_FAILURE, 0): ("remap_failed", ONE),
    (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0): ("recovery_action", ONE),
}
_REMAPPED = (
    "remapped_rows_corrected_total",
    "remapped_rows_uncorrected_total",
    "remap_pending",
    "remap_failed",
)
_CAUSES = (
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
)


class Gpu:
    """Reads one GPU through its handle."""

    def __init__(
        self, driver: Driver, handle: Any, uuid: str, driver_version: str, memory: float | None
    ) -> None:
        self.uuid = uuid
        self.entries = Entries(driver, handle)
        self.gpm = Gpm(self.entries)
        self.links = LinkErrors(self.entries)
        self.traffic = LinkTraffic(self.entries)
        self._fields = Fields(self.entries)
        self._processes = Processes(self.entries, driver_version, memory)

    def fast(self) -> dict[str, Any]:
        """This cycle's readings: `gpm` and `nvml` values, raw `counters`, `processes` (None: not told)."""
        fields = self._fields.read((*_RATES, *_FAST, *self.traffic.wanted))
        at = self.entries.driver.monotonic()  # of the counters: their rates are as good as this
        values = _scaled(_FAST, fields)
        if "energy_joules_total" not in values:
            self._older(values, "energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", MILLI)
        self._single(values)
        processes = self._processes.read()
        if processes is not None:
            values["processes"] = len(processes)
        return {
            "at": at,
            "gpm": self.gpm.read(),
            "nvml": values,
            "counters": self._counters(fields),
            "processes": processes,
        }

    def slow(self) -> Values:
        """Error counters, limits and the PCIe link."""
        values = _scaled(_SLOW, self._fields.read(_SLOW))
        self._without_fields(values)
        read = self.entries.read
        _put(values, "pcie_link_generation", read("nvmlDeviceGetCurrPcieLinkGeneration", pynvml.nvmlDeviceGetCurrPcieLinkGeneration))  # fmt: skip
        _put(values, "pcie_link_width", read("nvmlDeviceGetCurrPcieLinkWidth", pynvml.nvmlDeviceGetCurrPcieLinkWidth))  # fmt: skip
        _put(values, "temperature_margin_celsius", read("nvmlDeviceGetMarginTemperature", pynvml.nvmlDeviceGetMarginTemperature))  # fmt: skip
        _put(values, "nvlink_errors_total", self.links.total(self._fields))
        return values

    def _single(self, values: Values) -> None:
        read = self.entries.read
        used = read("nvmlDeviceGetUtilizationRates", pynvml.nvmlDeviceGetUtilizationRates)
        if used is not None:
            _put(values, "gpu_util_ratio", used.gpu, PERCENT)
            _put(values, "memory_util_ratio", used.memory, PERCENT)
        values.update(memory(self.entries))
        _put(values, "power_watts", read("nvmlDeviceGetPowerUsage", pynvml.nvmlDeviceGetPowerUsage), MILLI)
        _put(
            values,
            "temperature_celsius",
            read("nvmlDeviceGetTemperature", pynvml.nvmlDeviceGetTemperature, 0),
        )
        _put(values, "sm_clock_hertz", self._clock("sm", pynvml.NVML_CLOCK_SM), MEGA)
        _put(values, "memory_clock_hertz", self._clock("memory", pynvml.NVML_CLOCK_MEM), MEGA)
        _put(values, "clock_event_reasons", self._reasons())

    def _clock(self, which: str, kind: int) -> int | None:
        return self.entries.read(f"nvmlDeviceGetClockInfo({which})", pynvml.nvmlDeviceGetClockInfo, kind)

    def _reasons(self) -> int | None:
        reasons: int | None = self.entries.read("nvmlDeviceGetCurrentClocksEventReasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons)  # fmt: skip
        if reasons is not None:
            return reasons
        return self.entries.read("nvmlDeviceGetCurrentClocksThrottleReasons", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)  # fmt: skip

    def _counters(self, fields: dict[Field, float]) -> dict[str, Counter]:
        counters = {}
        for field, (name, scale) in _RATES.items():
            if field in fields:
                bits = 32 if field in self._fields.narrow else 64
                counters[name] = [fields[field] * scale, 2.0**bits * scale]
        for name, total in self.traffic.bytes(fields, self._fields).items():
            counters[name] = [total, _LINK_WRAP]
        return counters

    def _without_fields(self, values: Values) -> None:
        """Ask the older, single functions for what the field values did not give."""
        if "power_limit_watts" not in values:
            self._older(values, "power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", MILLI)
        if "pcie_replays_total" not in values:
            self._older(values, "pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", ONE)
        for kind, name in enumerate(("ecc_corrected_total", "ecc_uncorrected_total")):
            if name not in values:
                call = f"nvmlDeviceGetTotalEccErrors({name})"
                _put(values, name, self.entries.read(call, pynvml.nvmlDeviceGetTotalEccErrors, kind, 0))
        if "remap_pending" not in values:
            rows = self.entries.read("nvmlDeviceGetRemappedRows", pynvml.nvmlDeviceGetRemappedRows)
            values.update(zip(_REMAPPED, rows or (), strict=False))
        if "retired_pages_total" not in values:
            causes = [self.entries.read(f"nvmlDeviceGetRetiredPages({cause})", pynvml.nvmlDeviceGetRetiredPages, cause) for cause in _CAUSES]  # fmt: skip
            told = [pages for pages in causes if pages is not None]
            _put(values, "retired_pages_total", sum(map(len, told)) if told else None)

    def _older(self, values: Values, name: str, call: str, scale: int) -> None:
        function: Callable[[Any], float] = getattr(pynvml, call)
        _put(values, name, self.entries.read(call, function), scale)


def memory(entries: Entries) -> Values:
    """Device memory; with the first version of the call, what is used includes what the driver reserves."""
    new = entries.read("nvmlDeviceGetMemoryInfo_v2", pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
    if new is not None:
        return {"memory_used_bytes": new.used, "memory_reserved_bytes": new.reserved, "memory_total_bytes": new.total}  # fmt: skip
    old = entries.read("nvmlDeviceGetMemoryInfo", pynvml.nvmlDeviceGetMemoryInfo)
    return {} if old is None else {"memory_used_bytes": old.used, "memory_total_bytes": old.total}


def _scaled(table: dict[Field, tuple[str, int]], fields: dict[Field, float]) -> Values:
    values: Values = {}
    for field, (name, scale) in table.items():
        if field in fields:
            values[name] = values.get(name, 0.0) + convert(fields[field], scale)
    return values


def _put(values: Values, name: str, value: float | None, scale: int = ONE) -> None:
    if value is not None:
        values[name] = convert(value, scale)
