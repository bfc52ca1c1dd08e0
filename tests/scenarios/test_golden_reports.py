"""What a person reads of jobs that were slow for a known reason: the built-in rules on labelled jobs, as golden reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from bench.scenarios import development
from bench.scenarios.build import build
from bench.scenarios.reader import RecordingReader
from bench.scenarios.spec import Scenario

from gpudiag.cli.render import text
from gpudiag.cli.render.style import Style
from gpudiag.rules.diagnosis import diagnose
from gpudiag.rules.loader import builtin

FAMILIES = (
    "cpu-steady", "disk-steady", "checkpoint", "fragmentation-hook", "leak", "thermal", "straggler", "never-started", "hung",
    "idle-tail",
)  # fmt: skip


def clearest(family: str) -> Scenario:
    """The job of the family whose fault is largest, on at most four GPUs."""
    found = max(
        (
            scenario
            for scenario in development.scenarios()
            if scenario.family == family and len(scenario.expected) == 1
        ),
        key=lambda scenario: (scenario.expected[0].margin, scenario.name),
    )
    gpus = min(4, found.workload.gpus)
    faults = tuple(
        replace(fault, devices=tuple(sorted({device % gpus for device in fault.devices})))
        for fault in found.faults
    )
    return replace(found, workload=replace(found.workload, gpus=gpus), faults=faults)


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_report_of_a_slow_job(family: str, golden: Callable[[str, str], None]) -> None:
    reader = RecordingReader(build(clearest(family)))
    job = reader.recording.job
    diagnosis = diagnose(reader, job, builtin(), now_ms=(job.end_ms or 0) + 3_600_000)
    said = text.render(diagnosis, style=Style(100))
    assert len(said.splitlines()) <= 60
    golden(f"tests/golden/scenario-{family}.txt", said)
