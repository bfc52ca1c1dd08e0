"""What the diagnosis said about a scenario, beside what is true; small enough to send between processes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from bench.rules import baselines, live
from bench.scenarios.build import Recording, build
from bench.scenarios.reader import RecordingReader
from bench.scenarios.spec import Scenario
from bench.scenarios.truth import CAUSES

from gpudiag.rules.diagnosis import diagnose_samples
from gpudiag.rules.model import Diagnosis, Finding
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples

TOGETHER_S = 300  # so many seconds' evaluations at once; tests show that the agent's 10 s give the same


@dataclass(frozen=True)
class Said:
    """One finding: seconds of the job, device numbers, and where it stands among those not explained by others."""

    rule: str
    severity: str
    cause: str
    intervals: tuple[tuple[float, float], ...]
    announced: float
    devices: tuple[int, ...]
    explained: bool
    lost_hours: float


@dataclass(frozen=True)
class Outcome:
    """A scenario's result. `truth` and `waterfall` are shares of the allocation per cause, in the order of `CAUSES`.

    `live` tells what the agent's engine said otherwise.
    """

    scenario: Scenario
    gpu_hours: float
    said: tuple[Said, ...]
    onsets: tuple[tuple[float, float], ...]
    oom_s: float | None
    truth: tuple[float, ...]
    waterfall: tuple[float, ...]
    not_evaluated: frozenset[str]
    seconds: float
    live: tuple[str, ...] = ()
    alarms: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def roots(self) -> tuple[Said, ...]:
        """Findings that no other explains, in the order of the report."""
        return tuple(one for one in self.said if not one.explained)


def examine(scenario: Scenario, ruleset: RuleSet) -> Outcome:
    """Build the scenario, diagnose it with every rule of the set, and run the baselines on the same samples."""
    recording = build(scenario)
    reader = RecordingReader(recording)
    began = time.process_time()
    samples = JobSamples.read(reader, recording.job, 0)
    diagnosis = diagnose_samples(samples, ruleset)
    took = time.process_time() - began
    ratios = {bucket.cause: bucket.ratio for bucket in diagnosis.waterfall}
    otherwise = live.differences(recording, samples, ruleset, TOGETHER_S)
    return Outcome(
        scenario=scenario,
        gpu_hours=recording.gpu_hours,
        said=tuple(_said(finding, diagnosis, recording) for finding in diagnosis.findings),
        onsets=recording.truth.onsets,
        oom_s=recording.truth.oom_s,
        truth=tuple(float(v) for v in recording.truth.ratios()),
        waterfall=tuple(ratios.get(cause, 0.0) for cause in CAUSES),
        not_evaluated=frozenset(item.rule for item in diagnosis.not_evaluated),
        seconds=took,
        live=tuple(otherwise),
        alarms=baselines.alarms(recording),
    )


def _said(finding: Finding, diagnosis: Diagnosis, recording: Recording) -> Said:
    start = recording.job.start_ms
    numbers = {source: number for number, source in enumerate(recording.devices)}
    intervals = tuple(((i.start_ms - start) / 1000, (i.end_ms - start) / 1000) for i in finding.intervals)
    return Said(
        finding.rule,
        finding.severity,
        finding.cause,
        intervals,
        (finding.announced_ms - start) / 1000,
        tuple(numbers[source] for source in finding.sources if source in numbers),
        bool(finding.explained_by),
        finding.lost_gpu_hours,
    )


def seconds_of(intervals: tuple[tuple[float, float], ...]) -> float:
    return float(np.sum([last - first for first, last in intervals])) if intervals else 0.0
