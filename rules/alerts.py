"""Prometheus alert rules made from the rule files, in the manner of monitoring mixins.

The agent has judged already, with `for` and hysteresis: an alert only says that a finding is open. So what a
report says afterwards and what paged somebody at night are the same sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpudiag.rules.model import SEVERITIES
from gpudiag.rules.ruleset import Rule, RuleSet

# The job that has the GPU joins by uuid; of a GPU that jobs share, each is named in an alert of its own. Picking one
# (topk) would pick another at each evaluation. One severity at a time, so that a GPU has one finding on that side.
_NAMED = "gpudiag_job_info * on (instance, uuid) group_left (rule, severity) {finding}"


def alert_name(rule_id: str) -> str:
    """`input/cpu-bound-loader` -> `GpudiagInputCpuBoundLoader`."""
    return "Gpudiag" + "".join(part.capitalize() for part in re.split(r"[/-]", rule_id))


def alert_groups(ruleset: RuleSet, fatal_xids: Iterable[int]) -> dict[str, Any]:
    """Content of a Prometheus rule file: one alert per active rule, then those about hardware and the agent.

    `fatal_xids` are the codes after which a GPU stays useless until somebody acts.
    """
    findings = [_finding_alert(rule) for rule in ruleset.active()]
    return {
        "groups": [
            {"name": "gpudiag-findings", "rules": findings},
            {"name": "gpudiag-hardware", "rules": [_fatal_xid(fatal_xids), *_HARDWARE]},
            {"name": "gpudiag-agent", "rules": _AGENT},
        ]
    }


def _finding_alert(rule: Rule) -> dict[str, Any]:
    by_severity = [
        f'gpudiag_finding_active{{rule="{rule.id}",severity="{one}"}}' for one in reversed(SEVERITIES)
    ]
    named = [f"({_NAMED.format(finding=finding)})" for finding in by_severity]
    open_finding = f'gpudiag_finding_active{{rule="{rule.id}"}}'
    return _alert(
        alert_name(rule.id),
        "\nor ".join([*named, f"({open_finding} unless on (instance, uuid) gpudiag_job_info)"]),
        rule.summary,
        "{{ if $labels.job_id }}Job {{ $labels.job_id }} of {{ $labels.user }}, {{ end }}"
        "{{ if $labels.uuid }}GPU {{ $labels.uuid }} {{ end }}on {{ $labels.instance }}."
        "{{ if $labels.job_id }} See: gpudiag report --job {{ $labels.job_id }}{{ end }}",
    )


def _alert(
    name: str,
    expression: str,
    summary: str,
    description: str,
    *,
    hold: str = "",
    severity: str = "",
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        **({"for": hold} if hold else {}),
        # A finding carries its own severity, which may rise while it is open.
        **({"labels": {"severity": severity}} if severity else {}),
        "annotations": {"summary": summary, "description": description},
    }


_ON_GPU = "GPU {{ $labels.uuid }} on {{ $labels.instance }}."


def _fatal_xid(codes: Iterable[int]) -> dict[str, Any]:
    """By the time each Xid was last seen: a gauge of the last code sticks for ever and hides a repetition."""
    wanted = "|".join(str(code) for code in sorted(codes))
    return _alert(
        "GpudiagXidFatal",
        f'time() - gpudiag_event_last_timestamp_seconds{{kind="xid",code=~"{wanted}"}} < 600',
        "The driver reported an error after which the GPU needs a reset or a repair.",
        "Xid {{ $labels.code }} on " + _ON_GPU,
        severity="critical",
    )


_HARDWARE = [
    _alert(
        "GpudiagXidRepeated",
        # a series that is new today began with its first event, which an increase does not see
        'increase(gpudiag_events_total{kind="xid"}[1d]) >= 3\n'
        'or (gpudiag_events_total{kind="xid"} >= 3 unless gpudiag_events_total{kind="xid"} offset 1d)',
        "The same driver error came at least three times in a day.",
        "Xid {{ $labels.code }} on " + _ON_GPU,
        severity="warning",
    ),
    _alert(
        "GpudiagRecoveryAction",
        "gpudiag_gpu_recovery_action > 0",
        "The driver itself asks for a recovery action.",
        "Action {{ $value }} (1 reset, 2 reboot, 3 drain, 4 drain and reset) for " + _ON_GPU,
        severity="critical",
    ),
    _alert(
        "GpudiagGpuMissing",
        "count by (instance) (gpudiag_gpu_info) < max_over_time(count by (instance) (gpudiag_gpu_info)[6h:1m])",
        "A GPU that was there is not seen any more.",
        "{{ $value }} GPUs are left on {{ $labels.instance }}.",
        hold="10m",
        severity="critical",
    ),
]
_AGENT = [
    _alert(
        "GpudiagCollectorFailing",
        "gpudiag_collector_success == 0",
        "A collector of the agent fails.",
        "Collector {{ $labels.collector }} on {{ $labels.instance }}.",
        hold="10m",
        severity="warning",
    ),
    _alert(
        "GpudiagStoreFailing",
        "gpudiag_store_up == 0",
        "The agent cannot write to its database.",
        "Samples wait in memory on {{ $labels.instance }} and are given up after a while: look at the disk.",
        hold="5m",
        severity="warning",
    ),
    _alert(
        "GpudiagForwardingBehind",
        "gpudiag_forward_lag_seconds > 600",
        "The central database lags behind.",
        "{{ $labels.instance }} has not sent samples of the last {{ $value | humanizeDuration }}.",
        hold="5m",
        severity="warning",
    ),
    _alert(
        "GpudiagDriverHung",
        'time() - gpudiag_event_last_timestamp_seconds{kind="driver_hung"} < 600',
        "The NVIDIA driver does not answer.",
        "The node {{ $labels.instance }} needs a look, usually a reboot.",
        severity="critical",
    ),
    _alert(
        "GpudiagAgentSilent",
        "time() - max by (instance) (gpudiag_collector_last_success_timestamp_seconds) > 300",
        "The agent answers but measures nothing.",
        "No collector on {{ $labels.instance }} has succeeded for five minutes.",
        severity="warning",
    ),
]
