"""What is known about a node at one instant, wherever it comes from: the agent's /metrics, the store, or the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpudiag.message import NOTHING, Message
from gpudiag.storage.job import Device
from gpudiag.storage.sample import NODE, Frame

_GPU_PREFIX = "gpudiag_gpu_"
_NODE_PREFIX = "gpudiag_node_"


@dataclass(frozen=True)
class JobOnGpu:
    """The job a device belongs to."""

    id: str
    user: str = ""
    name: str = ""


@dataclass(frozen=True)
class OpenFinding:
    """A rule that fires now."""

    rule: str
    severity: str


@dataclass(frozen=True)
class RecentEvent:
    """When an event of this kind and code last happened; `uuid` is empty for the node's own."""

    kind: str
    code: int
    uuid: str
    time_ms: int


@dataclass(frozen=True)
class Gpu:
    """One device now: attributes, values in base units (absent: not measured), job and open findings."""

    uuid: str
    index: int | None = None
    model: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    job: JobOnGpu | None = None
    findings: tuple[OpenFinding, ...] = ()


@dataclass(frozen=True)
class NodeView:
    """The node now. `seen_by` is `agent`, `store` or `driver`; `trouble` says why the driver gives nothing.

    `unknown` says why that could not be found out. `absent[uuid][entry point]` is the reason why the driver does not
    answer that call, `driver` its version.
    """

    time_ms: int
    seen_by: str
    gpus: tuple[Gpu, ...] = ()
    host: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[OpenFinding, ...] = ()
    events: tuple[RecentEvent, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    driver: str = ""
    trouble: Message = NOTHING
    unknown: Message = NOTHING
    processes: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Gathered:
    """What the lines of an exposition add up to."""

    values: dict[str, dict[str, float]] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    info: dict[str, Mapping[str, str]] = field(default_factory=dict)
    jobs: dict[str, JobOnGpu] = field(default_factory=dict)
    findings: dict[str, list[OpenFinding]] = field(default_factory=dict)
    events: list[RecentEvent] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    absent: dict[str, dict[str, str]] = field(default_factory=dict)
    state: str = ""
    nvml_success: float = 1.0
    time_ms: int = 0

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        uuid = labels.get("uuid", "")
        if name == "gpudiag_gpu_info":
            self.info[uuid] = labels
        elif name == "gpudiag_job_info":
            self.jobs[uuid] = JobOnGpu(labels["job_id"], labels.get("user", ""), labels.get("job_name", ""))
        elif name == "gpudiag_finding_active":
            self.findings.setdefault(uuid, []).append(OpenFinding(labels["rule"], labels["severity"]))
        elif name == "gpudiag_event_last_timestamp_seconds":
            code = int(labels.get("code") or 0)
            self.events.append(RecentEvent(labels["kind"], code, uuid, round(value * 1000)))
        elif name == "gpudiag_gpu_lost":
            self.lost[uuid] = labels["reason"]
        elif name == "gpudiag_driver_entry_absent":
            self.absent.setdefault(uuid, {})[labels["entry"]] = labels["reason"]
        elif name == "gpudiag_driver_state" and value:
            self.state = labels["state"]
        elif name == "gpudiag_collector_success" and labels["collector"] == "nvml":
            self.nvml_success = value
        elif name == "gpudiag_last_tick_timestamp_seconds":
            self.time_ms = round(value * 1000)
        elif name.startswith(_GPU_PREFIX) and uuid:
            self.values.setdefault(uuid, {})[name.removeprefix(_GPU_PREFIX)] = value
        elif name.startswith(_NODE_PREFIX):
            self.host[name.removeprefix(_NODE_PREFIX)] = value


def from_metrics(text: str) -> NodeView:
    """The view that the agent's exposition gives; raises `ValueError` for a text that is none."""
    from prometheus_client.parser import text_string_to_metric_families

    gathered = _Gathered()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            gathered.add(sample.name, sample.labels, sample.value)
    if not gathered.time_ms:
        raise ValueError("no gpudiag_last_tick_timestamp_seconds")
    return NodeView(
        gathered.time_ms,
        "agent",
        tuple(_gpu(uuid, gathered) for uuid in _by_index(gathered)),
        gathered.host,
        tuple(gathered.findings.get("", ())),
        tuple(gathered.events),
        gathered.lost,
        gathered.absent,
        next((labels["driver"] for labels in gathered.info.values() if labels.get("driver")), ""),
        _trouble(gathered),
        processes=_processes(gathered.values),
    )


def _trouble(gathered: _Gathered) -> Message:
    """Released is on request, and a host without a driver has no success or failure of the collector."""
    if gathered.nvml_success or gathered.state == "released":
        return NOTHING
    return Message("the agent cannot read the driver: {state}", state=Message(gathered.state or "failed"))


def _by_index(gathered: _Gathered) -> Sequence[str]:
    def order(uuid: str) -> tuple[int, str]:
        index = gathered.info.get(uuid, {}).get("index", "")
        return (int(index) if index.isdigit() else 1 << 20, uuid)

    return sorted(gathered.values.keys() | gathered.info.keys(), key=order)


def _gpu(uuid: str, gathered: _Gathered) -> Gpu:
    info = gathered.info.get(uuid, {})
    index = info.get("index", "")
    # the scope is not doubled in names such as gpu_util_ratio
    values = {
        "gpu_util_ratio" if name == "util_ratio" else name: value
        for name, value in gathered.values.get(uuid, {}).items()
    }
    return Gpu(
        uuid,
        int(index) if index.isdigit() else None,
        info.get("model", ""),
        values,
        gathered.jobs.get(uuid),
        tuple(gathered.findings.get(uuid, ())),
    )


def _processes(values: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    return {uuid: int(found["processes"]) for uuid, found in values.items() if "processes" in found}


def from_frames(
    time_ms: int,
    seen_by: str,
    frames: Iterable[Frame],
    devices: Mapping[str, Device],
    jobs: Mapping[str, JobOnGpu],
    **more: object,
) -> NodeView:
    """The view that the latest frame of each source gives; devices and jobs by UUID."""
    latest: dict[str, Frame] = {}
    for frame in frames:
        if frame.source.scope != "job":
            latest[frame.source.device] = frame
    host = latest.pop(NODE, None)
    uuids = sorted(latest.keys() | devices.keys(), key=lambda uuid: (_index(devices.get(uuid)), uuid))
    gpus = []
    for uuid in uuids:
        device = devices.get(uuid)
        values = latest[uuid].values if uuid in latest else {}
        model = device.model if device else ""
        gpus.append(Gpu(uuid, device.index if device else None, model, values, jobs.get(uuid)))
    return NodeView(time_ms, seen_by, tuple(gpus), host.values if host else {}, **more)  # type: ignore[arg-type]


def _index(device: Device | None) -> int:
    return 1 << 20 if device is None or device.index is None else device.index
