"""DCGM fields by number: what each measures here, and the names under which it is exported.

Numbers stay, names changed in DCGM 4.6 (`..._ACTIVE` became `..._UTIL_RATIO` and so on): both are known. Violation times
(240, 241) are nanoseconds, what NVML gives; headers before DCGM 3 and exporters before 4.5 call them microseconds, but
hand on the same number [NVIDIA/dcgm-exporter pull request 589].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpudiag.agent.probe.units import MEGA, MIB, MILLI, NANO, ONE, PERCENT, convert

_ROUND_RATIO = 4
OVERSHOOT = 1.01  # above that it is garbage, and left for the range check to count


@dataclass(frozen=True)
class Field:
    """A field: the metric it is or adds to, its scale into base units (see `units.convert`), and its names."""

    metric: str
    scale: int
    names: tuple[str, ...]


def _device(metric: str, scale: int, *names: str) -> Field:
    return Field(metric, scale, tuple(f"DCGM_FI_DEV_{name}" for name in names))


def _profiling(metric: str, *names: str) -> Field:
    return Field(metric, ONE, tuple(f"DCGM_FI_PROF_{name}" for name in names))


XID = 230
FB_TOTAL, FB_FREE, FB_USED, FB_RESERVED = 250, 251, 252, 253
FIELDS: dict[int, Field] = {
    100: _device("sm_clock_hertz", MEGA, "SM_CLOCK"),
    101: _device("memory_clock_hertz", MEGA, "MEM_CLOCK"),
    112: _device("clock_event_reasons", ONE, "CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS"),
    140: _device("memory_temperature_celsius", ONE, "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS"),
    150: _device("temperature_celsius", ONE, "GPU_TEMP", "GPU_TEMP_CELSIUS"),
    153: _device("temperature_margin_celsius", ONE, "GPU_TEMP_LIMIT", "GPU_TEMP_MARGIN_CELSIUS"),
    155: _device("power_watts", ONE, "POWER_USAGE", "BOARD_POWER_WATTS"),
    156: _device("energy_joules_total", MILLI, "TOTAL_ENERGY_CONSUMPTION"),
    164: _device("power_limit_watts", ONE, "ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    202: _device("pcie_replays_total", ONE, "PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL"),
    203: _device("gpu_util_ratio", PERCENT, "GPU_UTIL", "GPU_UTIL_RATIO"),
    204: _device("memory_util_ratio", PERCENT, "MEM_COPY_UTIL"),
    XID: _device("", ONE, "XID_ERRORS", "XID_ERROR"),
    237: _device("pcie_link_generation", ONE, "PCIE_LINK_GEN"),
    238: _device("pcie_link_width", ONE, "PCIE_LINK_WIDTH"),
    240: _device("throttle_power_seconds_total", NANO, "POWER_VIOLATION"),
    241: _device("throttle_thermal_seconds_total", NANO, "THERMAL_VIOLATION"),
    FB_TOTAL: _device("memory_total_bytes", MIB, "FB_TOTAL"),
    FB_FREE: _device("", MIB, "FB_FREE"),
    FB_USED: _device("memory_used_bytes", MIB, "FB_USED"),
    FB_RESERVED: _device("memory_reserved_bytes", MIB, "FB_RESERVED"),
    310: _device("ecc_corrected_total", ONE, "ECC_SBE_VOL_TOTAL"),
    311: _device("ecc_uncorrected_total", ONE, "ECC_DBE_VOL_TOTAL"),
    390: _device("retired_pages_total", ONE, "RETIRED_SBE", "PAGE_RETIRED_SBE_TOTAL"),
    391: _device("retired_pages_total", ONE, "RETIRED_DBE", "PAGE_RETIRED_DBE_TOTAL"),
    393: _device("remapped_rows_uncorrected_total", ONE, "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL"),
    394: _device("remapped_rows_corrected_total", ONE, "CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL"),
    395: _device("remap_failed", ONE, "ROW_REMAP_FAILURE", "ROW_REMAP_FAILED"),
    396: _device("remap_pending", ONE, "ROW_REMAP_PENDING"),
    409: _device("nvlink_errors_total", ONE, "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_CRC_FLIT_ERROR_TOTAL"),
    419: _device("nvlink_errors_total", ONE, "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLINK_CRC_DATA_ERROR_TOTAL"),
    429: _device("nvlink_errors_total", ONE, "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_REPLAY_ERROR_TOTAL"),
    439: _device("nvlink_errors_total", ONE, "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLINK_RECOVERY_ERROR_TOTAL"),
    1001: _profiling("graphics_active_ratio", "GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO"),
    1002: _profiling("sm_active_ratio", "SM_ACTIVE", "SM_UTIL_RATIO"),
    1003: _profiling("sm_occupancy_ratio", "SM_OCCUPANCY", "SM_OCCUPANCY_RATIO"),
    1004: _profiling("tensor_active_ratio", "PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO"),
    1005: _profiling("dram_active_ratio", "DRAM_ACTIVE", "DRAM_UTIL_RATIO"),
    1006: _profiling("fp64_active_ratio", "PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO"),
    1007: _profiling("fp32_active_ratio", "PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO"),
    1008: _profiling("fp16_active_ratio", "PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO"),
    1009: _profiling("pcie_tx_bytes_per_second", "PCIE_TX_BYTES"),
    1010: _profiling("pcie_rx_bytes_per_second", "PCIE_RX_BYTES"),
    1011: _profiling("nvlink_tx_bytes_per_second", "NVLINK_TX_BYTES"),
    1012: _profiling("nvlink_rx_bytes_per_second", "NVLINK_RX_BYTES"),
}  # fmt: skip
NUMBERS = {name: number for number, field in FIELDS.items() for name in field.names}
_BLANKS = (
    (0x7FFFFFF0, 0x7FFFFFFF),  # int32: blank, not found, not supported, not permitted, ...
    (140737488355328.0, 140737488355343.0),  # double
    (9.223372036854775e18, math.inf),  # int64, rounded by the exposition format
)


def blank(value: float) -> bool:
    """Whether DCGM means "no value" by it."""
    return not math.isfinite(value) or any(low <= value <= high for low, high in _BLANKS)


def metrics(fields: Mapping[int, float]) -> dict[str, float]:
    """Base-unit values of the catalog's metrics from fields by number; blanks are absent, sums only of what is there."""
    good = {number: value for number, value in fields.items() if not blank(value)}
    values: dict[str, float] = {}
    for number, value in good.items():
        field = FIELDS.get(number)
        if field is not None and field.metric:
            values[field.metric] = values.get(field.metric, 0.0) + convert(value, field.scale)
    _total_memory(values, good)
    if not values.get("memory_temperature_celsius"):
        values.pop("memory_temperature_celsius", None)  # boards without the sensor say 0
    return {name: _settled(name, value) for name, value in values.items()}


def _settled(name: str, value: float) -> float:
    """A ratio without digits that are noise, and not slightly above one."""
    if not name.endswith("_ratio"):
        return value
    return 1.0 if 1.0 < value <= OVERSHOOT else round(value, _ROUND_RATIO)


def _total_memory(values: dict[str, float], fields: Mapping[int, float]) -> None:
    parts = (FB_FREE, FB_USED, FB_RESERVED)
    if FB_TOTAL not in fields and all(part in fields for part in parts):
        values["memory_total_bytes"] = sum(convert(fields[part], MIB) for part in parts)


def numbered(named: Iterable[tuple[str, float]]) -> dict[int, float]:
    """Fields by number from exported names, with or without Prometheus' `_total`; unknown ones are left out."""
    found: dict[int, float] = {}
    for name, value in named:
        number = NUMBERS.get(name) or NUMBERS.get(name.removesuffix("_total"))
        if number is not None:
            found.setdefault(number, value)
    return found
