"""The alert rules are accepted by Prometheus, name the job, resolve, and see a repeated Xid."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from programs import require

from gpudiag.agent.xid import load_catalogue
from gpudiag.cli.alerts import command
from gpudiag.rules.alerts import alert_groups, alert_name
from gpudiag.rules.loader import builtin

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy/prometheus/gpudiag-alerts.yaml"
FATAL = [xid.code for xid in load_catalogue().values() if xid.is_fatal]

CASES = """
rule_files: [alerts.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: gpudiag_finding_active{rule="memory/gpu-oom-imminent",severity="critical",uuid="GPU-1",instance="n1"}
        values: _x4 1x5 stale
      - series: gpudiag_job_info{uuid="GPU-1",instance="n1",job_id="42",job_name="llm",user="ann",job_key="c/42/1"}
        values: 1x20
      - series: gpudiag_job_info{uuid="GPU-1",instance="n1",job_id="43",job_name="x",user="bob",job_key="c/43/1"}
        values: 1x20
    alert_rule_test:
      - {alertname: GpudiagMemoryGpuOomImminent, eval_time: 3m, exp_alerts: []}
      - alertname: GpudiagMemoryGpuOomImminent
        eval_time: 6m
        exp_alerts:
          - exp_labels: {rule: memory/gpu-oom-imminent, severity: critical, uuid: GPU-1, instance: n1, job_id: "42", job_name: llm, user: ann, job_key: c/42/1}
            exp_annotations: {summary: "%s", description: "Job 42 of ann, GPU GPU-1 on n1. See: gpudiag report --job 42"}
          - exp_labels: {rule: memory/gpu-oom-imminent, severity: critical, uuid: GPU-1, instance: n1, job_id: "43", job_name: x, user: bob, job_key: c/43/1}
            exp_annotations: {summary: "%s", description: "Job 43 of bob, GPU GPU-1 on n1. See: gpudiag report --job 43"}
      - {alertname: GpudiagMemoryGpuOomImminent, eval_time: 16m, exp_alerts: []}
  - interval: 1m
    input_series:
      - series: gpudiag_finding_active{rule="memory/gpu-oom-imminent",severity="warning",uuid="GPU-2",instance="n1"}
        values: 1x5
    alert_rule_test:
      - alertname: GpudiagMemoryGpuOomImminent
        eval_time: 2m
        exp_alerts:
          - exp_labels: {rule: memory/gpu-oom-imminent, severity: warning, uuid: GPU-2, instance: n1}
            exp_annotations: {summary: "%s", description: "GPU GPU-2 on n1."}
  - interval: 1m
    input_series:
      - series: gpudiag_event_last_timestamp_seconds{kind="xid",code="79",uuid="GPU-1",instance="n1"}
        values: _x2 120x20
      - series: gpudiag_event_last_timestamp_seconds{kind="xid",code="13",uuid="GPU-1",instance="n1"}
        values: 0x20
    alert_rule_test:
      - alertname: GpudiagXidFatal
        eval_time: 4m
        exp_alerts:
          - exp_labels: {severity: critical, kind: xid, code: "79", uuid: GPU-1, instance: n1}
            exp_annotations: {summary: The driver reported an error after which the GPU needs a reset or a repair., description: Xid 79 on GPU GPU-1 on n1.}
      - {alertname: GpudiagXidFatal, eval_time: 20m, exp_alerts: []}
  - interval: 1m
    input_series:
      - {series: 'gpudiag_gpu_info{uuid="GPU-1",instance="n1"}', values: 1x60}
      - {series: 'gpudiag_gpu_info{uuid="GPU-2",instance="n1"}', values: 1x10 stale}
    alert_rule_test:
      - {alertname: GpudiagGpuMissing, eval_time: 9m, exp_alerts: []}
      - alertname: GpudiagGpuMissing
        eval_time: 30m
        exp_alerts:
          - exp_labels: {severity: critical, instance: n1}
            exp_annotations: {summary: A GPU that was there is not seen any more., description: 1 GPUs are left on n1.}
  - interval: 1m
    input_series:
      - {series: 'gpudiag_store_up{instance="n1"}', values: 1 1 0x7 1x10}
      - {series: 'gpudiag_forward_lag_seconds{instance="n1"}', values: 10x4 660x20}
    alert_rule_test:
      - {alertname: GpudiagStoreFailing, eval_time: 6m, exp_alerts: []}
      - alertname: GpudiagStoreFailing
        eval_time: 8m
        exp_alerts:
          - exp_labels: {severity: warning, instance: n1}
            exp_annotations:
              summary: The agent cannot write to its database.
              description: "Samples wait in memory on n1 and are given up after a while: look at the disk."
      - {alertname: GpudiagStoreFailing, eval_time: 12m, exp_alerts: []}
      - {alertname: GpudiagForwardingBehind, eval_time: 9m, exp_alerts: []}
      - alertname: GpudiagForwardingBehind
        eval_time: 11m
        exp_alerts:
          - exp_labels: {severity: warning, instance: n1}
            exp_annotations:
              summary: The central database lags behind.
              description: n1 has not sent samples of the last 11m 0s.
  - interval: 1m
    input_series:
      - series: gpudiag_events_total{kind="xid",code="31",uuid="GPU-1",instance="n1"}
        values: _x3 1x5 2x5 3x60
      - series: gpudiag_events_total{kind="xid",code="13",uuid="GPU-1",instance="n1"}
        values: 2x80
      - series: gpudiag_events_total{kind="xid",code="43",uuid="GPU-1",instance="n2"}
        values: 1x1500 2 3 3 4 4 0 0 0
    alert_rule_test:
      - {alertname: GpudiagXidRepeated, eval_time: 14m, exp_alerts: []}
      - alertname: GpudiagXidRepeated
        eval_time: 16m
        exp_alerts:
          - exp_labels: {severity: warning, kind: xid, code: "31", uuid: GPU-1, instance: n1}
            exp_annotations: {summary: The same driver error came at least three times in a day., description: Xid 31 on GPU GPU-1 on n1.}
      - {alertname: GpudiagXidRepeated, eval_time: 1500m, exp_alerts: []}
      - alertname: GpudiagXidRepeated
        eval_time: 1505m
        exp_alerts:
          - exp_labels: {severity: warning, kind: xid, code: "43", uuid: GPU-1, instance: n2}
            exp_annotations: {summary: The same driver error came at least three times in a day., description: Xid 43 on GPU GPU-1 on n2.}
  - interval: 1m
    input_series:
      - {series: 'gpudiag_gpu_recovery_action{uuid="GPU-1",instance="n1"}', values: 0x4 2x4 0x4}
      - {series: 'gpudiag_event_last_timestamp_seconds{kind="driver_hung",instance="n1"}', values: _x4 300x20}
    alert_rule_test:
      - {alertname: GpudiagRecoveryAction, eval_time: 4m, exp_alerts: []}
      - alertname: GpudiagRecoveryAction
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: critical, uuid: GPU-1, instance: n1}
            exp_annotations:
              summary: The driver itself asks for a recovery action.
              description: "Action 2 (1 reset, 2 reboot, 3 drain, 4 drain and reset) for GPU GPU-1 on n1."
      - {alertname: GpudiagRecoveryAction, eval_time: 11m, exp_alerts: []}
      - {alertname: GpudiagDriverHung, eval_time: 3m, exp_alerts: []}
      - alertname: GpudiagDriverHung
        eval_time: 4m
        exp_alerts:
          - exp_labels: {severity: critical, kind: driver_hung, instance: n1}
            exp_annotations: {summary: The NVIDIA driver does not answer., description: "The node n1 needs a look, usually a reboot."}
      - {alertname: GpudiagDriverHung, eval_time: 16m, exp_alerts: []}
  - interval: 1m
    input_series:
      - {series: 'gpudiag_collector_success{collector="nvml",instance="n1"}', values: 1x4 0x12 1x5}
      - {series: 'gpudiag_collector_last_success_timestamp_seconds{collector="nvml",instance="n1"}', values: 0+60x2 120x20}
      - {series: 'gpudiag_collector_last_success_timestamp_seconds{collector="cpu",instance="n1"}', values: 0+60x4 240x20}
    alert_rule_test:
      - {alertname: GpudiagCollectorFailing, eval_time: 14m, exp_alerts: []}
      - alertname: GpudiagCollectorFailing
        eval_time: 16m
        exp_alerts:
          - exp_labels: {severity: warning, collector: nvml, instance: n1}
            exp_annotations: {summary: A collector of the agent fails., description: Collector nvml on n1.}
      - {alertname: GpudiagCollectorFailing, eval_time: 18m, exp_alerts: []}
      - {alertname: GpudiagAgentSilent, eval_time: 9m, exp_alerts: []}
      - alertname: GpudiagAgentSilent
        eval_time: 10m
        exp_alerts:
          - exp_labels: {severity: warning, instance: n1}
            exp_annotations: {summary: The agent answers but measures nothing., description: No collector on n1 has succeeded for five minutes.}
"""


def finding_case(rule_id: str, summary: str) -> dict[str, Any]:
    """A finding that opens after 5 minutes on a job's GPU and closes after 10: the alert does so in the same minute."""
    on = 'uuid="GPU-1",instance="n1"'
    job = {"job_id": "42", "job_name": "llm", "user": "ann", "job_key": "k"}
    fired = {
        "exp_labels": {"rule": rule_id, "severity": "warning", "uuid": "GPU-1", "instance": "n1", **job},
        "exp_annotations": {
            "summary": summary,
            "description": "Job 42 of ann, GPU GPU-1 on n1. See: gpudiag report --job 42",
        },
    }
    times = {"4m": [], "5m": [fired], "9m": [fired], "10m": []}
    return {
        "interval": "1m",
        "input_series": [
            {
                "series": f'gpudiag_finding_active{{rule="{rule_id}",severity="warning",{on}}}',
                "values": "_x5 1x4 stale",
            },
            {
                "series": f'gpudiag_job_info{{{on},job_id="42",job_name="llm",user="ann",job_key="k"}}',
                "values": "1x20",
            },
        ],
        "alert_rule_test": [
            {"alertname": alert_name(rule_id), "eval_time": at, "exp_alerts": expected}
            for at, expected in times.items()
        ],
    }


@pytest.fixture
def alerts(tmp_path: Path) -> Path:
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.dump(alert_groups(builtin(), FATAL)))
    return path


def promtool(*arguments: object) -> str:
    done = subprocess.run(
        [require("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.integration
def test_promtool_accepts_the_rules_and_they_fire_as_written(alerts: Path) -> None:
    promtool("check", "rules", alerts)
    cases = alerts.parent / "cases.yaml"
    cases.write_text(CASES.replace("%s", builtin()["memory/gpu-oom-imminent"].summary))
    promtool("test", "rules", cases)


@pytest.mark.integration
def test_the_alert_of_every_rule_fires_with_its_finding_names_the_job_and_resolves(alerts: Path) -> None:
    cases = [finding_case(rule.id, rule.summary) for rule in builtin().active()]
    assert len(cases) >= 30
    path = alerts.parent / "findings.yaml"
    document = {"rule_files": [alerts.name], "evaluation_interval": "1m", "tests": cases}
    path.write_text(yaml.safe_dump(document))
    promtool("test", "rules", path)


def test_every_stable_rule_has_an_alert() -> None:
    names = {alert["alert"] for group in alert_groups(builtin(), FATAL)["groups"] for alert in group["rules"]}
    assert {alert_name(rule.id) for rule in builtin().active()} <= names
    assert len(builtin().active()) > 0


def test_alerts_ask_only_for_metrics_that_exist() -> None:
    documented = set(re.findall(r"`(gpudiag_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    for group in alert_groups(builtin(), FATAL)["groups"]:
        for alert in group["rules"]:
            assert set(re.findall(r"gpudiag_\w+", alert["expr"])) <= documented, alert["alert"]


def fatal_codes(content: str) -> set[str]:
    match = re.search(r'kind="xid",code=~"([\d|\s]+)"', content)
    assert match
    return set(match[1].split("|"))


def test_fatal_xids_are_what_the_catalogue_and_the_site_say(tmp_path: Path) -> None:
    assert {"48", "79", "95", "119", "140"} <= fatal_codes(SHIPPED.read_text())
    assert not {"13", "31", "43", "45", "63", "94"} & fatal_codes(SHIPPED.read_text())
    site = tmp_path / "xids.yaml"
    site.write_text("gpudiag_xids: 1\nxids:\n  79: {action: none, class: info}\n  31: {action: drain_node}\n")
    shown = CliRunner().invoke(command, ["--xid-catalogue", str(site)]).output
    assert "31" in fatal_codes(shown)
    assert "79" not in fatal_codes(shown)


def test_golden_rule_file_for_sites() -> None:
    shown = CliRunner().invoke(command).output
    if os.environ.get("GPUDIAG_WRITE_GOLDEN"):
        SHIPPED.write_text(shown)
    assert SHIPPED.read_text() == shown, "run `make golden`"
