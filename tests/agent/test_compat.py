from __future__ import annotations

import subprocess

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpudiag.agent.collectors.dcgm_fields import FIELDS
from gpudiag.agent.compat import dcgm
from gpudiag.agent.metrics import SnapshotCollector, registry
from gpudiag.agent.probe.units import convert
from gpudiag.agent.recorder import StoreState
from gpudiag.agent.sampler import Snapshot
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Frame, Source

GPU = Source("n1", "GPU-a")
DEVICE = Device(GPU, 1, 3, 3, "00000000:1B:00.0", "NVIDIA H200", "570.1")
LABELS = {
    "gpu": "3",
    "UUID": "GPU-a",
    "pci_bus_id": "00000000:1B:00.0",
    "device": "nvidia3",
    "modelName": "NVIDIA H200",
    "Hostname": "n1",
    "hostname": "n1",
    "DCGM_FI_DRIVER_VERSION": "570.1",
}
from gpudiag.storage.prometheus.dcgm_names import DCGM_NAMES


def expose(
    values: dict[str, float], events: dict[tuple[str, str, int], tuple[int, int]] | None = None
) -> str:
    snapshot = Snapshot(1, 0.0, (Frame(GPU, 1, values),), devices={GPU: DEVICE}, events=events or {})
    collector = SnapshotCollector(lambda: snapshot, StoreState, lambda: 0.0, lambda: 10.0, fresh=[dcgm("n1")])
    return generate_latest(registry(collector)).decode()


def series(text: str) -> dict[str, tuple[dict[str, str], float]]:
    return {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("DCGM_")
    }


def test_units_and_labels_are_those_of_dcgm_exporter() -> None:
    found = series(
        expose(
            {
                "gpu_util_ratio": 0.97,
                "sm_clock_hertz": 1.98e9,
                "memory_used_bytes": 60 * 2**30,
                "memory_total_bytes": 141 * 2**30,
                "memory_reserved_bytes": 2**30,
                "energy_joules_total": 12.5,
                "sm_active_ratio": 0.5,
                "throttle_thermal_seconds_total": 2.0,
            }
        )
    )
    assert {name: value for name, (_, value) in found.items()} == {
        "DCGM_FI_DEV_GPU_UTIL": 97.0,
        "DCGM_FI_DEV_SM_CLOCK": pytest.approx(1980.0),
        "DCGM_FI_DEV_FB_USED": 61440.0,
        "DCGM_FI_DEV_FB_TOTAL": 144384.0,
        "DCGM_FI_DEV_FB_RESERVED": 1024.0,
        "DCGM_FI_DEV_FB_FREE": 81920.0,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 12500.0,
        "DCGM_FI_PROF_SM_ACTIVE": 0.5,
        "DCGM_FI_DEV_THERMAL_VIOLATION": 2e9,
        "DCGM_FI_DEV_XID_ERRORS": 0.0,
    }
    assert all(labels == LABELS for labels, _ in found.values())


def test_the_xid_gauge_is_the_latest_code() -> None:
    events = {("GPU-a", "xid", 79): (1, 200), ("GPU-a", "xid", 94): (5, 100), ("GPU-b", "xid", 13): (1, 300)}
    assert series(expose({"power_watts": 1.0}, events))["DCGM_FI_DEV_XID_ERRORS"][1] == 79.0


def test_every_alias_is_made_of_a_metric_of_the_catalog() -> None:
    assert [alias.metric for alias in DCGM_NAMES if ("gpu", alias.metric) not in METRICS] == []
    assert len({alias.name for alias in DCGM_NAMES}) == len(DCGM_NAMES)


@pytest.mark.integration
def test_promtool_dislikes_nothing_but_what_dcgm_exporter_spells_that_way(promtool: str) -> None:
    text = expose({alias.metric: 1.0 for alias in DCGM_NAMES})
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    complaints = {line.split(" ", 1)[1] for line in done.stderr.splitlines()}
    assert complaints == {
        "label names should be written in 'snake_case' not 'camelCase'",
        "metric name should not include type 'counter'",
    }


def test_fields_by_number_and_by_name_mean_the_same_in_the_same_unit() -> None:
    numbered = {name: field for field in FIELDS.values() for name in field.names}
    both = [alias for alias in DCGM_NAMES if alias.name in numbered]
    assert len(both) > 25
    for alias in both:
        field = numbered[alias.name]
        assert field.metric == alias.metric
        value = 3 * alias.theirs / alias.base
        assert convert(value, field.scale) == pytest.approx(3), alias.name
