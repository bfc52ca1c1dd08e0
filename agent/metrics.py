"""What /metrics shows: the latest tick, nothing older. Built from the metric catalog and the sampler's snapshot.

A series exists only while its collector delivers: one that failed takes its series along, and when the loop itself
stands still only the agent's own health remains. Identity is the `uuid`; everything else is on the info series.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from gpudiag.agent import health_metrics
from gpudiag.agent.families import Families, Family, own
from gpudiag.agent.recorder import StoreState
from gpudiag.agent.sampler import RunningJob, Snapshot
from gpudiag.storage import catalog
from gpudiag.storage.job import Device
from gpudiag.storage.sample import JOB_PREFIX, NODE, Frame, Source
from gpudiag.storage.store import StoredFinding

LABEL: Mapping[str, tuple[str, ...]] = {"gpu": ("uuid",), "node": (), "job": ("job_key",)}
Extra = Callable[[Snapshot], Families]


class SnapshotCollector(Collector):
    """A prometheus-client collector over the latest snapshot.

    `stale_after` is in seconds of the monotonic clock; `always` and `fresh` yield further families, the latter
    only while the snapshot is fresh.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        store: Callable[[], StoreState],
        monotonic: Callable[[], float],
        stale_after: Callable[[], float],
        fresh: Sequence[Extra] = (),
        always: Sequence[Extra] = (),
    ) -> None:
        self._snapshot = snapshot
        self._store = store
        self._monotonic = monotonic
        self._stale_after = stale_after
        self._fresh = fresh
        self._always = always

    def collect(self) -> Families:
        snapshot = self._snapshot()
        if self._monotonic() - snapshot.monotonic <= self._stale_after():
            yield from samples(snapshot.frames)
            yield from device_info(snapshot.devices, snapshot.frames)
            yield from job_info(snapshot.jobs)
            yield from findings(snapshot.findings, snapshot.jobs)
            for more in self._fresh:
                yield from more(snapshot)
        yield from lost_time(snapshot.lost_seconds)
        yield from events(snapshot.events)
        yield from health_metrics.collectors(snapshot.outcomes)
        yield from health_metrics.loop(snapshot)
        yield from health_metrics.store(self._store())
        for more in self._always:
            yield from more(snapshot)


def registry(collector: Collector) -> CollectorRegistry:
    """A registry of its own, so that nothing else of the process gets in; process metrics included."""
    made = CollectorRegistry()
    made.register(collector)
    ProcessCollector(registry=made)
    return made


def samples(frames: Iterable[Frame]) -> Families:
    """One family per metric that was measured in this tick."""
    families: dict[tuple[str, str], Family] = {}
    for frame in frames:
        scope, labels = frame.source.scope, _labels(frame.source)
        for name, value in frame.values.items():
            family = families.get((scope, name))
            if family is None:
                family = families[scope, name] = _sample_family(scope, name)
            family.add(labels, value)
    for key in sorted(families):
        yield families[key].metric


def _sample_family(scope: str, name: str) -> Family:
    metric = catalog.metric(scope, name)
    return Family(metric.exposition_name, metric.help, LABEL[scope], metric.kind == "counter")


def _labels(source: Source) -> tuple[str, ...]:
    return () if source.device == NODE else (source.device.removeprefix(JOB_PREFIX),)


def device_info(devices: Mapping[Source, Device], frames: Iterable[Frame]) -> Families:
    """Attributes of the devices that delivered something in this tick."""
    family = own(
        "gpudiag_gpu_info",
        *("uuid", "index", "model", "pci_bus_id", "driver", "parent_uuid", "mig_profile"),
    )
    for source in sorted(frame.source for frame in frames):
        device = devices.get(source)
        if device is not None:
            index = "" if device.index is None else device.index
            values = (source.device, index, device.model, device.pci_bus_id, device.driver)
            family.add((*values, device.parent_uuid, device.mig_profile), 1)
    yield from family.filled()


_POD = ("namespace", "pod", "container")


def job_info(jobs: Sequence[RunningJob]) -> Families:
    """One series per job and device it has; one with an empty uuid for a job without devices.

    Pods are named too. Their labels have a prefix: a scrape adds `namespace` and `pod` of the agent's own.
    """
    pods = _POD if any("pod" in running.job.meta for running in jobs) else ()
    labels = ("uuid", "job_key", "job_id", "job_name", "user", "cluster")
    wanted = {_label_name(name): name for one in jobs for name in sorted(one.job.meta.get("labels", ()))}
    family = own("gpudiag_job_info", *labels, *(f"kubernetes_{name}" for name in pods), *wanted)
    for running in jobs:
        job = running.job
        names = [job.meta.get(name, "") for name in pods]
        names += [job.meta.get("labels", {}).get(name, "") for name in wanted.values()]
        for uuid in running.uuids or ("",):
            family.add((uuid, job.key, job.id, job.name, job.user, job.cluster, *names), 1)
    yield from family.filled()


def _label_name(pod_label: str) -> str:
    """`app.kubernetes.io/name` as `kubernetes_label_app_kubernetes_io_name`."""
    return "kubernetes_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", pod_label)


def findings(found: Iterable[StoredFinding], jobs: Sequence[RunningJob]) -> Families:
    """A finding on a job shows on each device of that job, one on the node has no uuid.

    It goes with its job's info series, not at the next judgement: an alert would lose the job's name for seconds.
    """
    devices = {running.job.key: running.uuids for running in jobs}
    family = own("gpudiag_finding_active", "rule", "severity", "uuid")
    active = {
        (finding.rule, finding.severity, uuid)
        for finding in found
        if not finding.job_key or finding.job_key in devices
        for uuid in _finding_uuids(finding.source, devices)
    }
    for labels in sorted(active):
        family.add(labels, 1)
    yield from family.filled()


def _finding_uuids(source: Source, devices: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if source.scope == "gpu":
        return (source.device,)
    return devices.get(source.device.removeprefix(JOB_PREFIX), ()) or ("",)


def lost_time(seconds: Mapping[tuple[str, str], float]) -> Families:
    """What findings cost, as counters: a rate over any window is the share of a GPU that was lost in it."""
    family = own("gpudiag_finding_lost_gpu_seconds_total", "rule", "uuid")
    for labels, lost in sorted(seconds.items()):
        family.add(labels, lost)
    yield from family.filled()


def events(counts: Mapping[tuple[str, str, int], tuple[int, int]]) -> Families:
    """Events counted, and when the latest was: alerts need both, a gauge that sticks to the last code misleads."""
    total = own("gpudiag_events_total", "uuid", "kind", "code")
    last = own("gpudiag_event_last_timestamp_seconds", "uuid", "kind", "code")
    for (device, kind, code), (count, time_ms) in sorted(counts.items()):
        labels = ("" if device == NODE else device, kind, code)
        total.add(labels, count)
        last.add(labels, time_ms / 1000)
    yield from total.filled()
    yield from last.filled()
