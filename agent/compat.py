"""The names of dcgm-exporter beside our own (`metrics.compat = "dcgm"`), so that existing dashboards go on working.

Names, units (MHz, MiB, percent, millijoules, nanoseconds) and labels are those of dcgm-exporter's default counters and
of the NVIDIA dashboard 12239; both spellings of the host's name are given. A value we do not have gives no series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client.core import Metric

from gpudiag.agent.families import Families
from gpudiag.agent.sampler import Snapshot
from gpudiag.storage.job import Device
from gpudiag.storage.prometheus.dcgm_names import DCGM_NAMES
from gpudiag.storage.sample import Frame, Source

_MIB = 1 << 20


def dcgm(node: str) -> Callable[[Snapshot], Families]:
    """Families of the snapshot under dcgm-exporter's names, for `SnapshotCollector(fresh=...)`."""

    def families(snapshot: Snapshot) -> Families:
        labels = {
            frame.source: _labels(node, frame.source, snapshot.devices.get(frame.source))
            for frame in snapshot.frames
            if frame.source.scope == "gpu"
        }
        for alias in DCGM_NAMES:
            found = _values(snapshot, alias.metric)
            values = {source: value * alias.theirs / alias.base for source, value in found}
            yield from _family(alias.name, alias.metric, labels, values)
        free = {frame.source: _free_mib(frame) for frame in snapshot.frames if frame.source in labels}
        known = {source: value for source, value in free.items() if value is not None}
        yield from _family("DCGM_FI_DEV_FB_FREE", "memory not in use", labels, known)
        yield from _family("DCGM_FI_DEV_XID_ERRORS", "last Xid", labels, _last_xid(snapshot, labels))

    return families


def _values(snapshot: Snapshot, metric: str) -> list[tuple[Source, float]]:
    gpus = (frame for frame in snapshot.frames if frame.source.scope == "gpu")
    return [(frame.source, frame.values[metric]) for frame in gpus if metric in frame.values]


def _family(
    name: str,
    made_of: str,
    labels: Mapping[Source, Mapping[str, str]],
    values: Mapping[Source, float],
) -> Families:
    """Untyped, since dcgm-exporter's counters do not end in `_total`."""
    family = Metric(name, f"As in dcgm-exporter, made of {made_of}", "unknown")
    for source, value in values.items():
        family.add_sample(name, dict(labels[source]), value)
    if family.samples:
        yield family


def _labels(node: str, source: Source, device: Device | None) -> Mapping[str, str]:
    index = "" if device is None or device.index is None else str(device.index)
    minor = index if device is None or device.minor is None else str(device.minor)
    return {
        "gpu": index,
        "UUID": source.device,
        "pci_bus_id": device.pci_bus_id if device else "",
        "device": f"nvidia{minor}" if minor else "",
        "modelName": device.model if device else "",
        "Hostname": node,
        "hostname": node,
        "DCGM_FI_DRIVER_VERSION": device.driver if device else "",
    }


def _free_mib(frame: Frame) -> float | None:
    total, used = frame.values.get("memory_total_bytes"), frame.values.get("memory_used_bytes")
    if total is None or used is None:
        return None
    return max(total - used - frame.values.get("memory_reserved_bytes", 0.0), 0.0) / _MIB


def _last_xid(snapshot: Snapshot, sources: Mapping[Source, object]) -> Mapping[Source, float]:
    """Code of the latest Xid per device since the start of the agent; 0 when there was none."""
    latest = dict.fromkeys((source.device for source in sources), (0, 0))
    for (device, kind, code), (_, time_ms) in snapshot.events.items():
        if kind == "xid" and device in latest:
            latest[device] = max(latest[device], (time_ms, code))
    return {source: float(latest[source.device][1]) for source in sources}
