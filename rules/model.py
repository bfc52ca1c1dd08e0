"""Rules, findings and the diagnosis of a job: plain frozen data. Times are UNIX milliseconds, UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpudiag.storage.job import Device, Event, Job, Json
from gpudiag.storage.sample import Source

Severity = Literal["info", "warning", "critical"]
Maturity = Literal["sandbox", "incubating", "stable", "deprecated"]
Confidence = Literal["possible", "likely", "confirmed"]
Tier = Literal["quick", "medium", "deep"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
CONFIDENCES: tuple[Confidence, ...] = ("possible", "likely", "confirmed")

CAUSES = (
    "before_start", "startup", "warmup", "train", "input_cpu", "input_disk", "input_other", "transfer",
    "checkpoint", "eval", "communication", "straggler", "throttle", "allocator", "host", "hung", "idle",
    "tail", "unattributed", "not_measured",
)  # fmt: skip
PHASES = (
    "before_start", "startup", "warmup", "train", "eval", "checkpoint", "hung", "idle", "interactive",
    "inference", "restart", "tail", "not_measured",
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """Half-open stretch of time."""

    start_ms: int
    end_ms: int

    @property
    def seconds(self) -> float:
        return (self.end_ms - self.start_ms) / 1000


@dataclass(frozen=True)
class Evidence:
    """A measured number that a finding rests on: the expression, its value and unit."""

    name: str
    value: float | None
    unit: str


@dataclass(frozen=True)
class Advice:
    """One rung of a finding's ladder, placeholders filled in."""

    tier: Tier
    text: str


@dataclass(frozen=True)
class Finding:
    """What a rule said about some devices of a job: when, how surely, what it cost, what to do.

    GPU-hours are over all `devices` and `intervals`; `recoverable_gpu_hours` is what the advice could win back.
    `announced_ms` is when the rule could first have told a person.
    """

    rule: str
    summary: str
    severity: Severity
    confidence: Confidence
    cause: str
    sources: tuple[Source, ...]
    intervals: tuple[Interval, ...]
    lost_gpu_hours: float = 0.0
    recoverable_gpu_hours: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    explained_by: str = ""
    announced_ms: int = 0


@dataclass(frozen=True)
class NotEvaluated:
    """A rule that could not be judged, and why; never a silent skip."""

    rule: str
    reason: str


@dataclass(frozen=True)
class PhaseSpan:
    """A stretch of the job in one phase (a name of `PHASES`)."""

    phase: str
    interval: Interval


@dataclass(frozen=True)
class Bucket:
    """GPU time of one cause (a name of `CAUSES`): hours, and share of the allocation."""

    cause: str
    gpu_hours: float
    ratio: float


@dataclass(frozen=True)
class Statistics:
    """A metric over what was measured of a device."""

    mean: float
    minimum: float
    p10: float
    p50: float
    p90: float
    maximum: float


@dataclass(frozen=True)
class DeviceReport:
    """One allocated device: attributes, coverage 0..1, longest idle stretch, statistics and a sparkline.

    `origins` says per metric where it was measured. `timeline` holds the headline metric's mean per
    equal slice of the job, NaN where nothing was measured.
    """

    source: Source
    device: Device | None
    coverage: float
    statistics: Mapping[str, Statistics]
    origins: Mapping[str, str]
    headline: str
    timeline: tuple[float, ...] = ()
    longest_idle: Interval | None = None


@dataclass(frozen=True)
class Coverage:
    """How much of the allocation was measured: share of the expected samples, and devices."""

    ratio: float
    devices_allocated: int
    devices_measured: int
    gaps: tuple[tuple[Source, Interval], ...] = ()
    damaged: tuple[tuple[Source, Interval], ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """Everything a report says about one job; renderers add nothing to it."""

    job: Job
    start_ms: int
    end_ms: int
    nodes: tuple[str, ...]
    coverage: Coverage
    verdict: str
    findings: tuple[Finding, ...]
    waterfall: tuple[Bucket, ...]
    total_gpu_hours: float
    phases: tuple[PhaseSpan, ...]
    devices: tuple[DeviceReport, ...]
    events: tuple[Event, ...]
    passed: tuple[str, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    notes: tuple[str, ...] = ()
    rule_versions: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)
