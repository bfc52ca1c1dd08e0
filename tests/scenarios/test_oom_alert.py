"""The built-in rule and the shipped alerts on labelled jobs: a leak pages before memory is full, a healthy job never.

The jobs last hours, so the agent's judge is played minute by minute and Prometheus' own tool judges the alerts.
`tests/test_alerting.py` runs the same chain in real time.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.scenarios import development
from bench.scenarios.build import Recording, build
from bench.scenarios.spec import Scenario
from bench.scenarios.write import frames
from programs import require

from gpudiag.agent.live import LiveJudge
from gpudiag.agent.metrics import findings, job_info
from gpudiag.agent.sampler import RunningJob
from gpudiag.rules.loader import builtin

pytestmark = pytest.mark.integration
SHIPPED = Path(__file__).parents[2] / "deploy/prometheus/gpudiag-alerts.yaml"
ALERT = "GpudiagMemoryGpuOomImminent"
MINUTE_MS = 60_000


def small(name: str, hours: float) -> Recording:
    scenario: Scenario = next(one for one in development.scenarios() if one.name == name)
    recording = build(replace(scenario, workload=replace(scenario.workload, gpus=1, hours=hours)))
    recording.job = replace(recording.job, id="42", user="ann")
    return recording


def exposed(recording: Recording) -> dict[str, list[str]]:
    """Series to their values minute by minute, as a scrape of the agent would have seen them; `_` is absent."""
    job = recording.job
    assert job.end_ms is not None
    node = next(iter(recording.devices)).node
    running = RunningJob(replace(job, end_ms=None), tuple(recording.allocations))
    judge = LiveJudge(builtin(), node)
    ordered = sorted(
        (frame for block in recording.blocks.values() for frame in frames(block)), key=lambda one: one.time_ms
    )
    minutes = (job.end_ms - job.start_ms) // MINUTE_MS
    series: dict[str, list[str]] = defaultdict(lambda: ["_"] * (minutes + 10))
    at = 0
    for now_ms in range(job.start_ms + 1000, job.end_ms, 1000):
        first = at
        while at < len(ordered) and ordered[at].time_ms < now_ms:
            at += 1
        judge.observe(now_ms, ordered[first:at], (), [running], recording.devices)
        if (now_ms - job.start_ms) % MINUTE_MS == 0:
            for family in (*findings(judge.open, [running]), *job_info([running])):
                for sample in family.samples:
                    labels = ",".join(f"{name}={json.dumps(value)}" for name, value in {**sample.labels, "instance": node}.items())  # fmt: skip
                    series[f"{sample.name}{{{labels}}}"][(now_ms - job.start_ms) // MINUTE_MS] = "1"
    return series


def oom_series(series: dict[str, list[str]]) -> list[str]:
    return next((values for name, values in series.items() if 'rule="memory/gpu-oom-imminent"' in name), [])


def promtool(folder: Path, series: dict[str, list[str]], expected: dict[str, Any]) -> None:
    """Raises unless the shipped alert is as expected at each time."""
    test = {
        "interval": "1m",
        "input_series": [
            # a scrape marks a series that went as stale; without that the tool would look back five minutes
            {"series": name, "values": " ".join(_marked(values))} for name, values in series.items()
        ],
        "alert_rule_test": [
            {"alertname": ALERT, "eval_time": at, "exp_alerts": alerts} for at, alerts in expected.items()
        ],
    }  # fmt: skip
    cases = folder / "cases.json"
    cases.write_text(json.dumps({"rule_files": [str(SHIPPED)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        [require("promtool"), "test", "rules", str(cases)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _marked(values: list[str]) -> list[str]:
    return [
        "stale" if value == "_" and before == "1" else value
        for before, value in zip(["_", *values], values, strict=False)
    ]


def test_a_leak_pages_well_before_memory_is_full_and_resolves_with_the_job(tmp_path: Path) -> None:
    recording = small("development/leak/1.5/1", hours=1.5)
    job, [uuid] = recording.job, [source.device for source in recording.devices]
    assert job.state == "oom"
    series = exposed(recording)
    last = (job.end_ms - job.start_ms) // MINUTE_MS  # type: ignore[operator]
    first = oom_series(series).index("1")
    assert last - first >= 10, f"open from minute {first}, out of memory at {last}"
    severity = next(name for name, values in series.items() if "gpu-oom" in name and values[last - 1] == "1")
    alert = {
        "exp_labels": {
            "rule": "memory/gpu-oom-imminent", "uuid": uuid, "instance": "node0", "job_id": "42", "job_name": job.name,
            "user": "ann", "cluster": job.cluster, "job_key": job.key, "severity": severity.partition('severity="')[2].partition('"')[0],
        },
        "exp_annotations": {
            "summary": str(builtin()["memory/gpu-oom-imminent"].summary),
            "description": f"Job 42 of ann, GPU {uuid} on node0. See: gpudiag report --job 42",
        },
    }  # fmt: skip
    if not job.name:
        del alert["exp_labels"]["job_name"]
    promtool(tmp_path, series, {f"{first - 1}m": [], f"{last - 1}m": [alert], f"{last + 2}m": []})


@pytest.mark.parametrize("name", [one.name for one in development.scenarios() if one.healthy][:3])
def test_a_healthy_job_pages_nobody(name: str) -> None:
    series = exposed(small(name, hours=0.75))
    assert [one for one in series if one.startswith("gpudiag_finding_active")] == []
    assert any(one.startswith("gpudiag_job_info") for one in series)
