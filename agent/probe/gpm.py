"""SM activity and its kin from NVML's GPU performance monitoring: two samples apart in time make one reading.

Hopper and newer. Percent become ratios, MiB/s bytes/s; each metric has its own return code and may be NaN.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pynvml

from gpudiag.agent.probe.driver import Driver
from gpudiag.agent.probe.entries import Entries
from gpudiag.agent.probe.failures import DriverError
from gpudiag.agent.probe.units import MIB, PERCENT, convert

METRICS = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: ("graphics_active_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_SM_UTIL: ("sm_active_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: ("sm_occupancy_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: ("tensor_active_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: ("dram_active_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_FP64_UTIL: ("fp64_active_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_FP32_UTIL: ("fp32_active_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_FP16_UTIL: ("fp16_active_ratio", PERCENT),
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: ("pcie_tx_bytes_per_second", MIB),
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: ("pcie_rx_bytes_per_second", MIB),
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: ("nvlink_rx_bytes_per_second", MIB),
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: ("nvlink_tx_bytes_per_second", MIB),
}
REFRESH = 0.1  # seconds: the hardware's own refresh (nvml.h); closer samples say nothing new
SUPPORT = "nvmlGpmQueryDeviceSupport"
_ENTRY = struct.Struct("=IId24x")  # nvmlGpmMetric_t: id, return, value, three pointers
_FIRST = pynvml.c_nvmlGpmMetricsGet_t.metrics.offset

Take = Callable[[Any, Any], Any]  # (handle, sample)


class Gpm:
    """Two samples of one device, older and newer."""

    def __init__(self, entries: Entries, take: Take = pynvml.nvmlGpmSampleGet) -> None:
        self._entries = entries
        self._take = take
        self._samples: list[Any] = []
        self._taken = -math.inf
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for position, metric in enumerate(METRICS):
            self._request.metrics[position].metricId = metric
        self._answers = memoryview(self._request).cast("B")[_FIRST : _FIRST + _ENTRY.size * len(METRICS)]

    def read(self) -> dict[str, float]:
        """Means since the call before; empty on the first call and where there is no GPM."""
        if not self._supported():
            return {}
        driver = self._entries.driver
        older, newer = self._samples
        if driver.monotonic() - self._taken < REFRESH:
            return {}
        if self._entries.read("nvmlGpmSampleGet", self._sample, newer) is None:
            self._taken = -math.inf
            return {}
        had_older = self._taken > -math.inf
        self._taken = driver.monotonic()
        self._samples.reverse()
        return self._metrics(driver, older, newer) if had_older else {}

    def free(self) -> None:
        """Give the samples back to the driver."""
        for sample in self._samples:
            _free(self._entries.driver, sample)
        self._samples = []
        self._taken = -math.inf

    def _sample(self, handle: Any, sample: Any) -> bool:
        self._take(handle, sample)
        return True

    def _supported(self) -> bool:
        if len(self._samples) == 2:
            return True
        answer = self._entries.read(SUPPORT, pynvml.nvmlGpmQueryDeviceSupport)
        if answer is None:
            return False
        if not answer.isSupportedDevice:
            self._entries.cannot(SUPPORT, "no GPM on this GPU: it needs Hopper or newer")
            return False
        while len(self._samples) < 2:
            sample = self._entries.read("nvmlGpmSampleAlloc", lambda _: pynvml.nvmlGpmSampleAlloc())
            if sample is None:
                return False
            self._samples.append(sample)
        return True

    def _metrics(self, driver: Driver, older: Any, newer: Any) -> dict[str, float]:
        self._request.sample1, self._request.sample2 = older, newer
        answer = self._entries.read("nvmlGpmMetricsGet", lambda _: pynvml.nvmlGpmMetricsGet(self._request))
        return {} if answer is None else dict(self._good())

    def _good(self) -> list[tuple[str, float]]:
        values = []
        for metric, code, value in _ENTRY.iter_unpack(self._answers):
            name, scale = METRICS[metric]
            if code == pynvml.NVML_SUCCESS and math.isfinite(value):
                values.append((name, convert(value, scale)))
        return values


def _free(driver: Driver, sample: Any) -> None:
    try:
        driver.call("nvmlGpmSampleFree", pynvml.nvmlGpmSampleFree, sample)
    except DriverError:
        return  # the driver is gone, and the sample with it
