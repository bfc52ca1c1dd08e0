"""dcgm-exporter's names of what gpudiag knows, and its units: one table for exporting and for reading.

Source: dcgm-exporter's default counters, and the names of its next metrics schema (`newer`).
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class DcgmName:
    """`theirs` of the exporter's units are `base` of the metric's base unit: 1 MiB is 1,048,576 bytes, 100 % is 1.

    `newer` is another name with base units that is only read.
    """

    name: str
    metric: str
    theirs: int = 1
    base: int = 1
    newer: str = ""


DCGM_NAMES = (
    DcgmName("DCGM_FI_DEV_SM_CLOCK", "sm_clock_hertz", base=10**6),
    DcgmName("DCGM_FI_DEV_MEM_CLOCK", "memory_clock_hertz", base=10**6),
    DcgmName("DCGM_FI_DEV_MEMORY_TEMP", "memory_temperature_celsius"),
    DcgmName("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius"),
    DcgmName("DCGM_FI_DEV_POWER_USAGE", "power_watts"),
    DcgmName("DCGM_FI_DEV_POWER_MGMT_LIMIT", "power_limit_watts"),
    DcgmName("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", theirs=10**3),
    DcgmName("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replays_total"),
    DcgmName("DCGM_FI_DEV_GPU_UTIL", "gpu_util_ratio", theirs=100, newer="DCGM_FI_DEV_GPU_UTIL_RATIO"),
    DcgmName("DCGM_FI_DEV_MEM_COPY_UTIL", "memory_util_ratio", theirs=100),
    DcgmName("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "clock_event_reasons"),
    DcgmName("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "clock_event_reasons"),
    DcgmName("DCGM_FI_DEV_POWER_VIOLATION", "throttle_power_seconds_total", theirs=10**9),
    DcgmName("DCGM_FI_DEV_THERMAL_VIOLATION", "throttle_thermal_seconds_total", theirs=10**9),
    DcgmName("DCGM_FI_DEV_FB_USED", "memory_used_bytes", base=_MIB),
    DcgmName("DCGM_FI_DEV_FB_RESERVED", "memory_reserved_bytes", base=_MIB),
    DcgmName("DCGM_FI_DEV_FB_TOTAL", "memory_total_bytes", base=_MIB),
    DcgmName("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected_total"),
    DcgmName("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected_total"),
    DcgmName("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "remapped_rows_corrected_total"),
    DcgmName("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows_uncorrected_total"),
    DcgmName("DCGM_FI_DEV_ROW_REMAP_PENDING", "remap_pending"),
    DcgmName("DCGM_FI_DEV_ROW_REMAP_FAILURE", "remap_failed"),
    DcgmName("DCGM_FI_DEV_PCIE_LINK_GEN", "pcie_link_generation"),
    DcgmName("DCGM_FI_DEV_PCIE_LINK_WIDTH", "pcie_link_width"),
    DcgmName("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "graphics_active_ratio", newer="DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    DcgmName("DCGM_FI_PROF_SM_ACTIVE", "sm_active_ratio", newer="DCGM_FI_PROF_SM_UTIL_RATIO"),
    DcgmName("DCGM_FI_PROF_SM_OCCUPANCY", "sm_occupancy_ratio", newer="DCGM_FI_PROF_SM_OCCUPANCY_RATIO"),
    DcgmName("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio", newer="DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    DcgmName("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active_ratio", newer="DCGM_FI_PROF_DRAM_UTIL_RATIO"),
    DcgmName("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "fp64_active_ratio"),
    DcgmName("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "fp32_active_ratio"),
    DcgmName("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "fp16_active_ratio"),
    DcgmName("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_tx_bytes_per_second"),
    DcgmName("DCGM_FI_PROF_PCIE_RX_BYTES", "pcie_rx_bytes_per_second"),
    DcgmName("DCGM_FI_PROF_NVLINK_TX_BYTES", "nvlink_tx_bytes_per_second"),
    DcgmName("DCGM_FI_PROF_NVLINK_RX_BYTES", "nvlink_rx_bytes_per_second"),
)  # fmt: skip
