"""docs/collectors.md lists what there is: each collector, each metric, each event."""

from __future__ import annotations

import re
from pathlib import Path

from gpudiag.agent.clock import SystemClock
from gpudiag.agent.collectors import host_collectors
from gpudiag.agent.collectors.kernel_log import KernelLogCollector
from gpudiag.storage.catalog import METRICS

PAGE = (Path(__file__).parents[3] / "docs" / "collectors.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
IN_PROCESS = "gpudiag.probe"  # the training process tells these itself


def test_each_collector_of_the_host_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert {collector.name for collector in host_collectors("/", "n1", SystemClock())} <= rows


def test_every_metric_of_host_and_job_is_named_and_no_other() -> None:
    known = {
        name
        for (scope, name), metric in METRICS.items()
        if scope in ("node", "job") and not metric.field.startswith(IN_PROCESS)
    }
    assert known - NAMED == set()
    suffixes = ("_ratio", "_bytes", "_per_second", "_seconds", "_total")
    assert {name for name in NAMED if name.endswith(suffixes)} <= {name for _, name in METRICS}


def test_every_event_of_the_kernel_log_is_named() -> None:
    kinds = set(
        re.findall(
            r"[a-z]+_?[a-z_]*[a-z]", (KernelLogCollector.__doc__ or "").partition("`")[2].partition("`")[0]
        )
    )
    assert {"xid", "sxid", "oom_kill"} <= kinds
    assert kinds <= NAMED
