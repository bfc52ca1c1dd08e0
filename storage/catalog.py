"""Every metric gpudiag knows: unit, kind, range, help and the field it comes from.

The one source of truth for names: collectors, /metrics, rule checking, docs and reports read it. Numbers in
`field` are DCGM field ids, `GPM n` NVML GPM metric ids, `NVML n` NVML field ids (nvml.h, dcgm_fields.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "state"]
Scope = Literal["gpu", "node", "job"]

_LARGE = 1e18


@dataclass(frozen=True)
class Metric:
    """One name of the catalog; `minimum`..`maximum` bound believable values, in `unit`."""

    name: str
    scope: Scope
    unit: str
    kind: Kind
    help: str
    field: str
    maximum: float = _LARGE
    minimum: float = 0.0
    integer: bool = False

    @property
    def exposition_name(self) -> str:
        """The name on /metrics: `gpudiag_<scope>_<name>`, the scope not doubled."""
        prefix = "" if self.name.startswith(f"{self.scope}_") else f"{self.scope}_"
        return f"gpudiag_{prefix}{self.name}"


def _ratio(scope: Scope, name: str, help: str, field: str, maximum: float = 1.0) -> Metric:
    return Metric(name, scope, "ratio", "gauge", help, field, maximum)


def _bytes(scope: Scope, name: str, help: str, field: str) -> Metric:
    return Metric(name, scope, "bytes", "gauge", help, field, integer=True)


def _rate(scope: Scope, name: str, help: str, field: str, maximum: float = 1e13) -> Metric:
    return Metric(name, scope, "bytes_per_second", "gauge", help, field, maximum)


def _gauge(
    scope: Scope, name: str, unit: str, help: str, field: str, maximum: float = _LARGE, minimum: float = 0.0
) -> Metric:
    return Metric(name, scope, unit, "gauge", help, field, maximum, minimum)


def _count(scope: Scope, name: str, help: str, field: str, kind: Kind = "gauge") -> Metric:
    return Metric(name, scope, "count", kind, help, field, integer=True)


def _total(scope: Scope, name: str, help: str, field: str, unit: str = "count") -> Metric:
    return Metric(name, scope, unit, "counter", help, field, integer=unit == "count")


def _state(scope: Scope, name: str, help: str, field: str, maximum: float = _LARGE) -> Metric:
    return Metric(name, scope, "state", "state", help, field, maximum, integer=True)


# fmt: off
GPU_METRICS = (
    _ratio("gpu", "sm_active_ratio", "Share of cycles in which an SM had at least one warp", "DCGM 1002, GPM 2"),
    _ratio("gpu", "sm_occupancy_ratio", "Resident warps relative to the maximum", "DCGM 1003, GPM 3"),
    _ratio("gpu", "tensor_active_ratio", "Share of cycles in which a tensor pipe was active", "DCGM 1004, GPM 5"),
    _ratio("gpu", "dram_active_ratio", "Share of cycles in which device memory moved data", "DCGM 1005, GPM 10"),
    _ratio("gpu", "graphics_active_ratio", "Share of time the graphics or compute engine was active", "DCGM 1001, GPM 1"),
    _ratio("gpu", "fp64_active_ratio", "Share of cycles in which the FP64 pipe was active", "DCGM 1006, GPM 11"),
    _ratio("gpu", "fp32_active_ratio", "Share of cycles in which the FP32 pipe was active", "DCGM 1007, GPM 12"),
    _ratio("gpu", "fp16_active_ratio", "Share of cycles in which the FP16 pipe was active", "DCGM 1008, GPM 13"),
    _ratio("gpu", "gpu_util_ratio", "Share of time at least one kernel ran; not SM activity", "DCGM 203, nvmlDeviceGetUtilizationRates"),
    _ratio("gpu", "memory_util_ratio", "Share of time device memory was read or written", "DCGM 204, nvmlDeviceGetUtilizationRates"),
    _bytes("gpu", "memory_used_bytes", "Device memory in use, without what the driver reserves", "DCGM 252, nvmlDeviceGetMemoryInfo_v2"),
    _bytes("gpu", "memory_reserved_bytes", "Device memory the driver keeps for itself", "DCGM 253, nvmlDeviceGetMemoryInfo_v2"),
    _bytes("gpu", "memory_total_bytes", "Device memory", "DCGM 250, nvmlDeviceGetMemoryInfo"),
    _rate("gpu", "pcie_rx_bytes_per_second", "PCIe, host to device", "DCGM 1010, NVML 198, GPM 21"),
    _rate("gpu", "pcie_tx_bytes_per_second", "PCIe, device to host", "DCGM 1009, NVML 197, GPM 20"),
    _rate("gpu", "nvlink_rx_bytes_per_second", "NVLink, received over all links", "DCGM 1012, NVML 139, GPM 60"),
    _rate("gpu", "nvlink_tx_bytes_per_second", "NVLink, sent over all links", "DCGM 1011, NVML 138, GPM 61"),
    _gauge("gpu", "power_watts", "watts", "Power drawn by the board", "DCGM 155, nvmlDeviceGetPowerUsage", 5000),
    _gauge("gpu", "power_limit_watts", "watts", "Enforced power limit", "DCGM 164, NVML 190, nvmlDeviceGetEnforcedPowerLimit", 5000),
    _total("gpu", "energy_joules_total", "Energy since the driver was loaded", "DCGM 156, nvmlDeviceGetTotalEnergyConsumption", "joules"),
    _gauge("gpu", "temperature_celsius", "celsius", "GPU die", "DCGM 150, nvmlDeviceGetTemperature", 150, -50),
    _gauge("gpu", "memory_temperature_celsius", "celsius", "Device memory", "DCGM 140, NVML 82", 150, -50),
    _gauge("gpu", "temperature_margin_celsius", "celsius", "Degrees left before slowdown", "DCGM 153, nvmlDeviceGetMarginTemperature", 150, -50),
    _gauge("gpu", "sm_clock_hertz", "hertz", "SM clock", "DCGM 100, nvmlDeviceGetClockInfo", 1e10),
    _gauge("gpu", "memory_clock_hertz", "hertz", "Memory clock", "DCGM 101, nvmlDeviceGetClockInfo", 1e11),
    _state("gpu", "clock_event_reasons", "Bit mask of why clocks are not higher", "DCGM 112, nvmlDeviceGetCurrentClocksEventReasons"),
    _total("gpu", "throttle_thermal_seconds_total", "Time slowed down for heat", "NVML 269 + 270", "seconds"),
    _total("gpu", "throttle_power_seconds_total", "Time slowed down by the power cap", "NVML 74", "seconds"),
    _total("gpu", "throttle_brake_seconds_total", "Time slowed down by the external power brake", "NVML 271", "seconds"),
    _state("gpu", "pcie_link_generation", "PCIe generation the link runs at now", "DCGM 237, nvmlDeviceGetCurrPcieLinkGeneration", 16),
    _state("gpu", "pcie_link_width", "PCIe lanes the link uses now", "DCGM 238, nvmlDeviceGetCurrPcieLinkWidth", 64),
    _total("gpu", "pcie_replays_total", "PCIe packets sent again", "DCGM 202, nvmlDeviceGetPcieReplayCounter"),
    _total("gpu", "ecc_corrected_total", "ECC errors corrected since driver load", "DCGM 310, nvmlDeviceGetTotalEccErrors"),
    _total("gpu", "ecc_uncorrected_total", "ECC errors not corrected since driver load", "DCGM 311, nvmlDeviceGetTotalEccErrors"),
    _total("gpu", "remapped_rows_corrected_total", "Rows remapped after corrected errors", "DCGM 394, nvmlDeviceGetRemappedRows"),
    _total("gpu", "remapped_rows_uncorrected_total", "Rows remapped after uncorrected errors", "DCGM 393, nvmlDeviceGetRemappedRows"),
    _state("gpu", "remap_pending", "A row remap waits for a reset", "DCGM 396, nvmlDeviceGetRemappedRows", 1),
    _state("gpu", "remap_failed", "A row remap failed", "DCGM 395, nvmlDeviceGetRemappedRows", 1),
    _total("gpu", "retired_pages_total", "Pages retired (before Ampere)", "DCGM 390 + 391, nvmlDeviceGetRetiredPages"),
    _total("gpu", "nvlink_errors_total", "NVLink replay, recovery and CRC errors over all links", "DCGM 409 419 429 439, nvmlDeviceGetNvLinkErrorCounter"),
    _state("gpu", "recovery_action", "What the driver itself asks for: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset", "NVML 230", 16),
    _count("gpu", "processes", "Compute processes on the device", "nvmlDeviceGetComputeRunningProcesses"),
    _bytes("gpu", "torch_allocated_bytes", "Memory of live tensors, peak since the last report", "torch memory_stats allocated_bytes.all.peak"),
    _bytes("gpu", "torch_reserved_bytes", "Memory the caching allocator holds, peak since the last report", "torch memory_stats reserved_bytes.all.peak"),
    _bytes("gpu", "torch_inactive_split_bytes", "Free pieces of split blocks", "torch memory_stats inactive_split_bytes.all.current"),
    _total("gpu", "torch_alloc_retries_total", "Failed cudaMalloc calls that flushed the cache and retried", "torch memory_stats num_alloc_retries"),
    _state("gpu", "torch_allocator", "Which allocator: 0 native, 1 native with expandable segments, 2 cudaMallocAsync", "torch get_allocator_backend, PYTORCH_ALLOC_CONF", 2),
    _total("gpu", "torch_ooms_total", "Out-of-memory errors raised", "torch memory_stats num_ooms"),
)

NODE_METRICS = (
    _ratio("node", "cpu_busy_ratio", "Share of all CPUs that did work", "/proc/stat"),
    _ratio("node", "cpu_iowait_ratio", "Share of all CPUs idle with I/O outstanding", "/proc/stat"),
    _count("node", "cpus", "CPUs online", "/proc/stat"),
    _bytes("node", "memory_available_bytes", "Memory that can be given out without swapping", "/proc/meminfo MemAvailable"),
    _bytes("node", "memory_total_bytes", "Memory of the host", "/proc/meminfo MemTotal"),
    _rate("node", "swap_in_bytes_per_second", "Read back from swap", "/proc/vmstat pswpin"),
    _rate("node", "swap_out_bytes_per_second", "Written to swap", "/proc/vmstat pswpout"),
    _gauge("node", "major_faults_per_second", "per_second", "Page faults that had to read", "/proc/vmstat pgmajfault"),
    _gauge("node", "refaults_per_second", "per_second", "File pages read again after being evicted", "/proc/vmstat workingset_refault_file"),
    _ratio("node", "pressure_cpu_some_ratio", "Share of time some task waited for a CPU", "/proc/pressure/cpu total"),
    _ratio("node", "pressure_io_some_ratio", "Share of time some task waited for I/O", "/proc/pressure/io total"),
    _ratio("node", "pressure_io_full_ratio", "Share of time all tasks waited for I/O", "/proc/pressure/io total"),
    _ratio("node", "pressure_memory_some_ratio", "Share of time some task waited for memory", "/proc/pressure/memory total"),
    _ratio("node", "pressure_memory_full_ratio", "Share of time all tasks waited for memory", "/proc/pressure/memory total"),
    _rate("node", "disk_read_bytes_per_second", "Read from whole disks", "/proc/diskstats"),
    _rate("node", "disk_write_bytes_per_second", "Written to whole disks", "/proc/diskstats"),
    _gauge("node", "disk_read_await_seconds", "seconds", "Mean time of a read, over the disk that waited longest", "/proc/diskstats", 3600),
    _ratio("node", "disk_busy_ratio", "Share of time the busiest disk had work", "/proc/diskstats io_ticks"),
    _rate("node", "network_rx_bytes_per_second", "Received by physical interfaces", "/proc/net/dev"),
    _rate("node", "network_tx_bytes_per_second", "Sent by physical interfaces", "/proc/net/dev"),
    _rate("node", "infiniband_rx_bytes_per_second", "Received by InfiniBand ports", "/sys/class/infiniband port_rcv_data"),
    _rate("node", "infiniband_tx_bytes_per_second", "Sent by InfiniBand ports", "/sys/class/infiniband port_xmit_data"),
    _rate("node", "nfs_read_bytes_per_second", "Read from NFS servers", "/proc/self/mountstats"),
    _gauge("node", "nfs_read_rtt_seconds", "seconds", "Mean round trip of an NFS read", "/proc/self/mountstats", 3600),
    _bytes("node", "shm_used_bytes", "Used in /dev/shm", "statvfs"),
)

JOB_METRICS = (
    _gauge("job", "job_cpus_allowed", "cpus", "CPUs the job may use: cpuset and quota", "cpuset.cpus, cpu.max"),
    _ratio("job", "job_cpu_busy_ratio", "CPU used relative to what is allowed", "cpu.stat", 1.5),
    _ratio("job", "job_cpu_throttled_ratio", "Share of scheduling periods in which the quota stopped the job", "cpu.stat nr_throttled"),
    _ratio("job", "job_pressure_cpu_some_ratio", "Share of time some task of the job waited for a CPU", "cpu.pressure"),
    _ratio("job", "job_pressure_io_some_ratio", "Share of time some task of the job waited for I/O", "io.pressure"),
    _ratio("job", "job_pressure_memory_full_ratio", "Share of time all tasks of the job waited for memory", "memory.pressure"),
    _bytes("job", "job_memory_working_set_bytes", "Memory of the job that cannot be reclaimed: current less inactive file, with shared memory", "memory.current, memory.stat"),
    _bytes("job", "job_memory_anon_bytes", "Anonymous memory of the job", "memory.stat anon"),
    _bytes("job", "job_memory_file_bytes", "Page cache of the job", "memory.stat file"),
    _bytes("job", "job_memory_shmem_bytes", "Shared memory and tmpfs of the job", "memory.stat shmem"),
    _bytes("job", "job_memory_limit_bytes", "Tightest memory limit above the job", "memory.max of the ancestors"),
    _total("job", "job_oom_kills_total", "Processes of the job killed for memory", "memory.events oom_kill"),
    _rate("job", "job_read_bytes_per_second", "Read from storage by the job", "io.stat, /proc/PID/io"),
    _rate("job", "job_write_bytes_per_second", "Written to storage by the job", "io.stat, /proc/PID/io"),
    _ratio("job", "main_cpu_ratio", "CPU of the busiest main process, 1 is one core", "/proc/PID/stat", 1024),
    _count("job", "loader_workers", "Child processes that feed the GPU processes", "/proc/PID/stat"),
    _ratio("job", "loader_cpu_ratio", "Mean CPU of a worker, 1 is one core", "/proc/PID/stat", 64),
    _ratio("job", "loader_dstate_ratio", "Share of workers in uninterruptible sleep", "/proc/PID/stat"),
    _bytes("job", "process_pss_bytes", "Proportional memory of the job's process tree", "/proc/PID/smaps_rollup"),
    _count("job", "job_processes", "Processes of the job", "cgroup.procs"),
    _gauge("job", "step_seconds", "seconds", "Length of a training step", "gpudiag.probe", 86400),
    _gauge("job", "steps_per_second", "per_second", "Training steps", "gpudiag.probe"),
    _gauge("job", "samples_per_second", "per_second", "Training samples, over all ranks", "gpudiag.probe"),
    _ratio("job", "input_wait_ratio", "Share of step time spent waiting for the next batch", "gpudiag.probe"),
)

# fmt: on

METRICS = {(metric.scope, metric.name): metric for metric in (*GPU_METRICS, *NODE_METRICS, *JOB_METRICS)}
_LOOKUP_ORDER: dict[str, tuple[Scope, ...]] = {
    "gpu": ("gpu", "job", "node"),
    "node": ("node",),
    "job": ("job", "node"),
}


def metric(scope: str, name: str) -> Metric:
    """The catalog entry; raises `KeyError` for an unknown name."""
    return METRICS[(scope, name)]  # type: ignore[index]


def resolve(scope: str, name: str) -> Metric | None:
    """What a rule of `scope` means by `name`: its own metrics first, then its job's, then its node's.

    `node_memory_total_bytes` and the like name another scope's metric outright. `None`: unknown.
    """
    for candidate in _LOOKUP_ORDER[scope]:
        found = METRICS.get((candidate, name))
        if found is None and name.startswith(f"{candidate}_"):
            found = METRICS.get((candidate, name[len(candidate) + 1 :]))
        if found is not None:
            return found
    return None
