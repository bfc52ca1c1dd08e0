"""One job in our own database and behind a real Prometheus or VictoriaMetrics as dcgm-exporter names it: one report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.scenarios import development
from bench.scenarios.build import build
from bench.scenarios.write import frames
from command_line import Gpudiag
from prometheus import Serve

from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.prometheus.dialect import DCGM, MEBIBYTE
from gpudiag.storage.sample import Block, Source
from gpudiag.storage.store import JobFilter

pytestmark = pytest.mark.integration
NODE = "gpu01"
SCENARIO = "development/disk-gappy+thermal/1"
# what dcgm-exporter calls it today, and by how much its unit is larger; the total is the sum of three others there
NAMES = {
    item.metric.name: (item.name, item.scale)
    for item in reversed(DCGM.translations)
    if item.metric.scope == "gpu" and item.metric.name != "memory_total_bytes"
}
Blocks = Mapping[Source, Block]


@pytest.fixture(scope="module")
def measured() -> tuple[Blocks, str, float]:
    """Two GPUs for three quarters of an hour until ten minutes ago, as far as dcgm-exporter tells; model; memory."""
    scenario = next(one for one in development.scenarios() if one.name == SCENARIO)
    recording = build(replace(scenario, workload=replace(scenario.workload, hours=0.75)))
    shift = (int(time.time()) - 600) * 1000 - recording.job.end_ms  # type: ignore[operator]
    blocks, memory, model = {}, 0.0, ""
    for source, block in recording.blocks.items():
        if source.scope == "gpu":
            columns = {name: block.columns[name] for name in NAMES if name in block.columns}
            own = Source(NODE, source.device)
            blocks[own] = Block(own, block.times_ms + shift, columns, dict.fromkeys(columns, "dcgm"))
            memory = recording.devices[source].memory_total_bytes or 0.0
            model = recording.devices[source].model
    return blocks, model, memory


def exposition(blocks: Blocks, model: str, memory: float) -> str:
    return "\n".join([*_lines(blocks, model, memory), "# EOF", ""])


def _lines(blocks: Blocks, model: str, memory: float) -> Iterator[str]:
    series: dict[str, list[str]] = {}
    for index, (source, block) in enumerate(sorted(blocks.items())):
        labels = f'gpu="{index}",UUID="{source.device}",modelName="{model}",Hostname="{NODE}",hpc_job="42"'
        named = {NAMES[name][0]: column / NAMES[name][1] for name, column in block.columns.items()}
        used = named["DCGM_FI_DEV_FB_USED"] + named.get("DCGM_FI_DEV_FB_RESERVED", 0.0)
        named["DCGM_FI_DEV_FB_FREE"] = memory / MEBIBYTE - used
        for name, values in named.items():
            for at, value in zip(block.times_ms.tolist(), values.tolist(), strict=True):
                if not np.isnan(value):
                    series.setdefault(name, []).append(f"{name}{{{labels}}} {value!r} {at / 1000:.3f}")
    for name, lines in series.items():
        yield f"# TYPE {name} gauge"
        yield from lines


def stored(url: str, blocks: Blocks, model: str, memory: float, job: Job) -> None:
    """The same samples and the same facts of job and devices, no more."""
    store = open_store(url, node=NODE)
    store.put_job(job)
    assert job.end_ms is not None
    for index, source in enumerate(sorted(blocks)):
        store.put_devices([Device(source, job.start_ms, index=index, model=model, memory_total_bytes=memory)])
        store.put_allocations([Allocation(job.key, source, job.start_ms, job.end_ms, "hook")])
        store.append(list(frames(blocks[source])))
    store.close()


def fired(report: Any) -> dict[tuple[str, str], dict[str, float]]:
    """Rule and devices to what the finding measured."""
    return {
        (one["rule"], ",".join(sorted(one["devices"]))): {
            "lost_gpu_hours": one["lost_gpu_hours"],
            **{piece["name"]: piece["value"] for piece in one["evidence"] if piece["value"] is not None},
        }
        for one in report["findings"]
    }


@pytest.fixture(params=["prometheus", "victoria_metrics"])
def serve(request: pytest.FixtureRequest) -> Serve:
    fixture: Serve = request.getfixturevalue(request.param)
    return fixture


def test_the_same_samples_give_the_same_report_from_sqlite_and_from_prometheus(
    measured: tuple[Blocks, str, float], serve: Serve, gpudiag: Gpudiag, tmp_path: Path
) -> None:
    blocks, model, memory = measured
    server = f"prometheus+{serve(exposition(*measured))}"
    [job] = open_reader(server).jobs(JobFilter(id="42"))
    first = min(int(block.times_ms[0]) for block in blocks.values())
    last = max(int(block.times_ms[-1]) for block in blocks.values())
    assert job.start_ms == first
    assert job.end_ms == pytest.approx(last + 1000, abs=100)
    file = f"sqlite:///{tmp_path}/same.db"
    stored(file, blocks, model, memory, job)

    ours, theirs = (gpudiag("report", "--job", "42", "--json", "--db", url) for url in (file, server))
    assert (ours.code, theirs.code) == (0, 0), ours.err + theirs.err
    mine, other = json.loads(ours.out), json.loads(theirs.out)

    assert {rule for rule, _ in fired(mine)} >= {"clocks/thermal-throttle", "input/data-loader-stall"}
    assert set(fired(other)) == set(fired(mine))
    for key, values in fired(mine).items():
        assert fired(other)[key] == pytest.approx(values, rel=1e-3, abs=1e-6), key
    lost = {one["cause"]: one["gpu_hours"] for one in mine["waterfall"]["buckets"]}
    assert {one["cause"]: one["gpu_hours"] for one in other["waterfall"]["buckets"]} == pytest.approx(lost, abs=1e-3)  # fmt: skip
    assert other["coverage"]["ratio"] == pytest.approx(mine["coverage"]["ratio"], abs=1e-3)
    assert other["rules"]["passed"] == mine["rules"]["passed"]

    # what no exporter gave is named with its reason, in both, and never passed in silence
    reasons = {one["rule"]: one["reason"] for one in other["rules"]["not_evaluated"]}
    assert reasons == {one["rule"]: one["reason"] for one in mine["rules"]["not_evaluated"]}
    assert "job_memory_working_set_bytes" in reasons["memory/host-oom-imminent"]
    assert not set(reasons) & set(other["rules"]["passed"])

    page = gpudiag("report", "--job", "42", "--db", server)
    assert page.code == 0
    assert page.out.startswith("Job 42 ")
    assert gpudiag("report", "--job", "43", "--db", server).code != 0
