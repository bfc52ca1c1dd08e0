from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpudiag.agent import families
from gpudiag.agent.clock import ManualClock
from gpudiag.agent.families import OWN
from gpudiag.agent.metrics import SnapshotCollector, registry
from gpudiag.agent.recorder import Recorder, StoreState
from gpudiag.agent.sampler import RunningJob, Sampler, Snapshot
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding

GPU = Source("n1", "GPU-a")
OTHER = Source("n1", "GPU-b")
NODE = Source("n1", "node")
JOB = Job("local/42/1767225600", "42", 1_767_225_600_000, name='train "big"\n', user="ann")
ON_JOB = Source("n1", f"job:{JOB.key}")


def expose(snapshot: Snapshot, now: float = 0.0, state: StoreState = StoreState()) -> str:  # noqa: B008 - frozen
    collector = SnapshotCollector(lambda: snapshot, lambda: state, lambda: now, lambda: 10.0)
    return generate_latest(registry(collector)).decode()


def values(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Values of these labels (all of them, sorted by name) to value, of one metric name."""
    return {
        tuple(sample.labels[label] for label in labels or sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(
        time_ms=1_767_225_600_000,
        monotonic=0.0,
        frames=(
            Frame(GPU, 1, {"power_watts": 300.0, "energy_joules_total": 12.5}),
            Frame(OTHER, 1, {"power_watts": 90.0}),
            Frame(NODE, 1, {"cpu_busy_ratio": 0.5}),
            Frame(ON_JOB, 1, {"loader_workers": 4.0, "job_cpu_busy_ratio": 0.25}),
        ),
        devices={GPU: Device(GPU, 1, 0, 0, "00000000:1B:00.0", "NVIDIA H200", "570.1")},
        jobs=(RunningJob(JOB, (Allocation(JOB.key, GPU, 1, None, "hook"), Allocation(JOB.key, OTHER, 1, None, "hook"))),),
        findings=(
            StoredFinding("clocks/thermal-throttle", GPU, 1, None, "warning"),
            StoredFinding("memory/host-oom-imminent", ON_JOB, 1, None, "critical"),
            StoredFinding("memory/host-swap", NODE, 1, None, "info"),
        ),
        events={("GPU-a", "xid", 79): (2, 1_767_225_500_000)},
        ticks=7,
        skipped=1,
    )  # fmt: skip


def test_samples_carry_the_uuid_only_and_base_units(snapshot: Snapshot) -> None:
    text = expose(snapshot)
    assert values(text, "gpudiag_gpu_power_watts") == {("GPU-a",): 300.0, ("GPU-b",): 90.0}
    assert values(text, "gpudiag_gpu_energy_joules_total") == {("GPU-a",): 12.5}
    assert values(text, "gpudiag_node_cpu_busy_ratio") == {(): 0.5}
    assert values(text, "gpudiag_job_cpu_busy_ratio") == {(JOB.key,): 0.25}
    assert values(text, "gpudiag_job_loader_workers") == {(JOB.key,): 4.0}
    assert 'gpudiag_gpu_power_watts{uuid="GPU-a"} 300.0' in text


def test_attributes_and_jobs_are_info_series_to_join_on(snapshot: Snapshot) -> None:
    text = expose(snapshot)
    labels = ("uuid", "index", "model", "pci_bus_id", "driver", "parent_uuid", "mig_profile")
    assert values(text, "gpudiag_gpu_info", *labels) == {
        ("GPU-a", "0", "NVIDIA H200", "00000000:1B:00.0", "570.1", "", ""): 1.0
    }
    labels = ("uuid", "job_key", "job_id", "job_name", "user", "cluster")
    assert values(text, "gpudiag_job_info", *labels) == {
        (uuid, JOB.key, "42", JOB.name, "ann", "local"): 1.0 for uuid in ("GPU-a", "GPU-b")
    }


def test_a_pod_is_named_on_its_job_info(snapshot: Snapshot) -> None:
    pod = replace(JOB, meta={"namespace": "ml", "pod": "train-0", "container": "main"})
    jobs = (RunningJob(pod, (Allocation(JOB.key, GPU, 1, None, "kubelet"),)),)
    labels = ("uuid", "kubernetes_namespace", "kubernetes_pod", "kubernetes_container")
    shown = values(expose(replace(snapshot, jobs=jobs)), "gpudiag_job_info", *labels)
    assert shown == {("GPU-a", "ml", "train-0", "main"): 1.0}


def test_wanted_labels_of_a_pod_are_on_its_job_info(snapshot: Snapshot) -> None:
    named = {"app.kubernetes.io/name": "bert", "team": "vision"}
    pod = replace(JOB, meta={"namespace": "ml", "pod": "train-0", "labels": named})
    other = replace(JOB, key="k/2/1", id="other", meta={"namespace": "ml", "pod": "other"})
    jobs = tuple(RunningJob(one, (Allocation(one.key, GPU, 1, None, "kubelet"),)) for one in (pod, other))
    labels = ("job_id", "kubernetes_label_app_kubernetes_io_name", "kubernetes_label_team")
    found = values(expose(replace(snapshot, jobs=jobs)), "gpudiag_job_info", *labels)
    assert set(found) == {("42", "bert", "vision"), ("other", "", "")}


def test_a_finding_on_a_job_shows_on_each_of_its_devices(snapshot: Snapshot) -> None:
    assert values(expose(snapshot), "gpudiag_finding_active", "rule", "severity", "uuid") == {
        ("clocks/thermal-throttle", "warning", "GPU-a"): 1.0,
        ("memory/host-oom-imminent", "critical", "GPU-a"): 1.0,
        ("memory/host-oom-imminent", "critical", "GPU-b"): 1.0,
        ("memory/host-swap", "info", ""): 1.0,
    }


def test_a_finding_of_a_job_that_ended_goes_with_the_job(snapshot: Snapshot) -> None:
    found = (
        StoredFinding("clocks/thermal-throttle", GPU, 1, None, "warning", JOB.key),
        StoredFinding("clocks/thermal-throttle", OTHER, 1, None, "warning", "local/41/1"),
    )
    shown = values(expose(replace(snapshot, findings=found)), "gpudiag_finding_active", "uuid")
    assert shown == {("GPU-a",): 1.0}


def test_events_are_counted_and_dated(snapshot: Snapshot) -> None:
    text = expose(snapshot)
    assert values(text, "gpudiag_events_total", "uuid", "kind", "code") == {("GPU-a", "xid", "79"): 2.0}
    assert values(text, "gpudiag_event_last_timestamp_seconds", "uuid", "kind", "code") == {
        ("GPU-a", "xid", "79"): 1_767_225_500.0
    }


def test_series_of_a_failed_collector_disappear(clock: ManualClock, memory_store: Any, scripted: Any) -> None:
    nvml = scripted("nvml", GPU, {"power_watts": 300.0})
    sampler = Sampler([nvml], Recorder(memory_store.open, "n1", clock), clock, "n1")
    before = expose(sampler.tick(), clock.monotonic())
    nvml.error = OSError("gone")
    clock.sleep(1)
    after = expose(sampler.tick(), clock.monotonic())
    assert values(before, "gpudiag_collector_success") == {("nvml",): 1.0}
    assert "gpudiag_gpu_power_watts" in before
    assert values(after, "gpudiag_collector_success") == {("nvml",): 0.0}
    assert "gpudiag_gpu_" not in after
    last = values(after, "gpudiag_collector_last_success_timestamp_seconds")
    assert last == {("nvml",): clock.now_ms() / 1000 - 1}


def test_nothing_old_is_repeated_when_the_loop_stands_still(snapshot: Snapshot) -> None:
    text = expose(snapshot, now=10.1)
    assert "gpudiag_gpu_" not in text
    assert "gpudiag_finding_active" not in text
    assert values(text, "gpudiag_last_tick_timestamp_seconds") == {(): 1_767_225_600.0}


def test_a_failing_database_shows_without_hiding_the_samples(snapshot: Snapshot) -> None:
    text = expose(snapshot, state=StoreState(error="disk full", waiting_frames=12, dropped_frames=3))
    assert values(text, "gpudiag_store_up") == {(): 0.0}
    assert values(text, "gpudiag_store_waiting_frames") == {(): 12.0}
    assert values(text, "gpudiag_store_dropped_frames_total") == {(): 3.0}
    assert "gpudiag_gpu_power_watts" in text


def test_every_metric_of_the_catalog_can_be_exposed_once() -> None:
    sources = {"gpu": GPU, "node": NODE, "job": ON_JOB}
    frames = tuple(Frame(sources[scope], 1, {name: 1.0}) for scope, name in METRICS)
    text = expose(Snapshot(time_ms=1, monotonic=0.0, frames=frames, ticks=1))
    names = [metric.exposition_name for metric in METRICS.values()]
    assert len(names) == len(set(names))
    assert not set(names) & set(OWN)
    assert {name for name in names if values(text, name)} == set(names)


@pytest.mark.integration
def test_promtool_finds_nothing_to_say(snapshot: Snapshot, promtool: str) -> None:
    sources = {"gpu": GPU, "node": NODE, "job": ON_JOB}
    frames = tuple(Frame(sources[scope], 1, {name: 1.0}) for scope, name in METRICS)
    text = expose(replace(snapshot, frames=frames))
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_own_metric_is_exposed_by_somebody() -> None:
    agent = Path(families.__file__).parent
    code = "".join(path.read_text() for path in sorted(agent.glob("*.py")) if path.name != "families.py")
    assert [name for name in OWN if f'"{name}"' not in code] == []
