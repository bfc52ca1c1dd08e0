"""How each exporter spells what gpudiag knows: metric names, units, and the labels that identify things.

Sources: dcgm-exporter's default counters and HPC job mapping; plazonic/nvidia_gpu_prometheus_exporter and
cgroup_exporter (jobstats); guilbaults/slurm-job-exporter; our own names from the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpudiag.storage.catalog import GPU_METRICS, JOB_METRICS, METRICS, NODE_METRICS, Metric
from gpudiag.storage.prometheus.dcgm_names import DCGM_NAMES, DcgmName

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Translation:
    """A series name that means `metric` once multiplied by `scale`; `labels` must match too."""

    name: str
    metric: Metric
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """One exporter: what it measures and which labels say of what.

    `job` is the label with the job id; `job_value` a series whose value is the id. `presence` are series that
    exist whenever the exporter sees a GPU. An empty label name: the exporter does not say.
    """

    origin: str
    translations: tuple[Translation, ...]
    device: tuple[str, ...]
    presence: tuple[str, ...]
    job: tuple[str, ...] = ()
    job_value: str = ""
    user: tuple[str, ...] = ()
    host: tuple[str, ...] = ("Hostname", "hostname", "instance")
    index: str = "gpu"
    model: str = ""

    def translate(self, labels: Mapping[str, str]) -> Translation | None:
        """What a series means, or None for one that is not ours to read."""
        return next(
            (
                item
                for item in self.translations
                if item.name == labels.get("__name__")
                and all(labels.get(name) == value for name, value in item.labels.items())
            ),
            None,
        )


def _gpu(name: str, metric: str, scale: float = 1.0, **labels: str) -> Translation:
    return Translation(name, METRICS[("gpu", metric)], scale, labels)


def _dcgm(known: DcgmName) -> Iterator[Translation]:
    """A DCGM field, and its newer name; counters also with the suffix that OpenMetrics gives them."""
    for name, scale in ((known.name, known.base / known.theirs), (known.newer, 1.0)):
        if name:
            yield _gpu(name, known.metric, scale)
            if METRICS[("gpu", known.metric)].kind == "counter":
                yield _gpu(f"{name}_total", known.metric, scale)


DCGM = Dialect(
    origin="dcgm",
    translations=tuple(translation for known in DCGM_NAMES for translation in _dcgm(known)),
    device=("UUID", "uuid"),
    presence=("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP"),
    job=("hpc_job",),
    model="modelName",
)

JOBSTATS = Dialect(
    origin="nvml",
    translations=(
        _gpu("nvidia_gpu_duty_cycle", "gpu_util_ratio", 0.01),
        _gpu("nvidia_gpu_memory_total_bytes", "memory_total_bytes"),
        _gpu("nvidia_gpu_memory_used_bytes", "memory_used_bytes"),
        _gpu("nvidia_gpu_power_usage_milliwatts", "power_watts", 0.001),
        _gpu("nvidia_gpu_temperature_celsius", "temperature_celsius"),
    ),
    device=("uuid",),
    presence=("nvidia_gpu_duty_cycle", "nvidia_gpu_memory_used_bytes"),
    job=("jobid",),
    job_value="nvidia_gpu_jobId",
    user=("userid",),
    host=("instance",),
    index="minor_number",
    model="name",
)

SLURM_JOB_EXPORTER = Dialect(
    origin="nvml",
    translations=(
        _gpu("slurm_job_utilization_gpu", "gpu_util_ratio", 0.01),
        _gpu("slurm_job_utilization_gpu_memory", "memory_util_ratio", 0.01),
        _gpu("slurm_job_memory_usage_gpu", "memory_used_bytes"),
        _gpu("slurm_job_memory_total_gpu", "memory_total_bytes"),
        _gpu("slurm_job_power_gpu", "power_watts", 0.001),
        _gpu("slurm_job_sm_occupancy_gpu", "sm_occupancy_ratio", 0.01),
        _gpu("slurm_job_tensor_gpu", "tensor_active_ratio", 0.01),
        _gpu("slurm_job_fp64_gpu", "fp64_active_ratio", 0.01),
        _gpu("slurm_job_fp32_gpu", "fp32_active_ratio", 0.01),
        _gpu("slurm_job_fp16_gpu", "fp16_active_ratio", 0.01),
        _gpu("slurm_job_pcie_gpu", "pcie_tx_bytes_per_second", direction="TX"),
        _gpu("slurm_job_pcie_gpu", "pcie_rx_bytes_per_second", direction="RX"),
        _gpu("slurm_job_nvlink_gpu", "nvlink_tx_bytes_per_second", direction="TX"),
        _gpu("slurm_job_nvlink_gpu", "nvlink_rx_bytes_per_second", direction="RX"),
    ),
    device=(),
    presence=("slurm_job_utilization_gpu", "slurm_job_memory_usage_gpu"),
    job=("slurmjobid",),
    user=("user",),
    host=("instance",),
    model="gpu_type",
)

OWN = Dialect(
    origin="gpudiag",
    translations=tuple(
        Translation(metric.exposition_name, metric) for metric in (*GPU_METRICS, *NODE_METRICS, *JOB_METRICS)
    ),
    device=("uuid",),
    presence=("gpudiag_job_info",),
    job=("job_id",),
    user=("user",),
    host=("instance",),
    index="",
)

# Best first: where two of them measure the same metric of a device, only the first counts.
DIALECTS = (OWN, DCGM, JOBSTATS, SLURM_JOB_EXPORTER)
