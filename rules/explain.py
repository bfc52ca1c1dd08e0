"""Findings of a job: what each cost, which are only symptoms of others, and in which order to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpudiag.rules.judgement import Fired
from gpudiag.rules.model import (
    CONFIDENCES,
    SEVERITIES,
    Advice,
    Confidence,
    Evidence,
    Finding,
    Interval,
    Severity,
)
from gpudiag.storage.sample import Source

_SAME_TIME = 0.5
RECOVERABLE: Mapping[str, float] = {
    "before_start": 0.5, "startup": 0.5, "warmup": 0.5, "input_cpu": 0.9, "input_disk": 0.9, "input_other": 0.8,
    "transfer": 0.7, "checkpoint": 0.8, "eval": 0.5, "communication": 0.5, "straggler": 0.9, "throttle": 1.0,
    "allocator": 0.9, "host": 0.7, "hung": 1.0, "idle": 1.0, "tail": 1.0, "unattributed": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A rule that fired on one source, the GPUs (`devices`) that this is about, and what it explains."""

    rule: str
    summary: str
    severity: Severity
    confidence: Confidence
    cause: str
    explains: tuple[str, ...]
    source: Source
    devices: tuple[Source, ...]
    intervals: tuple[Interval, ...]
    lost_ratio: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    explained_by: str = ""
    announced_ms: int = 0

    @property
    def claimed_seconds(self) -> float:
        """How much the rule itself reckons was lost per device: the order in which claims are heard."""
        return self.lost_ratio * sum(interval.seconds for interval in self.intervals)


def case_of(fired: Fired, explains: tuple[str, ...], gpus: Sequence[Source]) -> Case:
    """A fired rule as a case; what fired on a node or on the job's share of it is about all the job's GPUs there."""
    here = tuple(gpu for gpu in gpus if gpu.node == fired.source.node)
    worst = max(fired.intervals, key=lambda i: (SEVERITIES.index(i.severity), i.lost or 0.0))
    seconds = sum(i.end_ms - i.start_ms for i in fired.intervals) / 1000
    lost = sum((i.lost or 0.0) * (i.end_ms - i.start_ms) / 1000 for i in fired.intervals)
    return Case(
        rule=fired.rule,
        summary=worst.summary,
        severity=worst.severity,
        confidence=max((i.confidence for i in fired.intervals), key=CONFIDENCES.index),
        cause=fired.cause,
        explains=explains,
        source=fired.source,
        devices=(fired.source,) if fired.source.scope == "gpu" else here,
        intervals=tuple(Interval(i.start_ms, i.end_ms) for i in fired.intervals),
        lost_ratio=lost / seconds if seconds else 0.0,
        evidence=worst.evidence,
        advice=worst.advice,
        explained_by=fired.explained_by,
        announced_ms=min(i.announced_ms for i in fired.intervals),
    )


def merge(fired: Sequence[Case], lost_hours: Mapping[tuple[str, Source], float]) -> tuple[Finding, ...]:
    """One finding per rule, symptoms marked with what explains them, costliest roots first.

    `lost_hours` is per rule and source of firing. Evidence and advice are those of the source that lost most.
    """
    by_rule: dict[str, list[Case]] = {}
    for one in fired:
        by_rule.setdefault(one.rule, []).append(one)
    findings = [_together(group, lost_hours) for group in by_rule.values()]
    explained = {f.rule: _explainer(f, findings, by_rule) for f in findings}
    marked = [replace(f, explained_by=explained[f.rule]) for f in findings]
    return tuple(sorted(marked, key=_order))


def _order(finding: Finding) -> tuple[bool, float, int, str]:
    severity = SEVERITIES.index(finding.severity)
    return bool(finding.explained_by), -round(finding.lost_gpu_hours, 6), -severity, finding.rule


def _together(group: Sequence[Case], lost_hours: Mapping[tuple[str, Source], float]) -> Finding:
    worst = max(group, key=lambda one: (lost_hours.get((one.rule, one.source), 0.0), one.claimed_seconds))
    lost = sum(lost_hours.get((one.rule, one.source), 0.0) for one in group)
    return Finding(
        rule=worst.rule,
        summary=worst.summary,
        severity=max((one.severity for one in group), key=SEVERITIES.index),
        confidence=max((one.confidence for one in group), key=CONFIDENCES.index),
        cause=worst.cause,
        sources=tuple(sorted({device for one in group for device in one.devices})),
        intervals=union([interval for one in group for interval in one.intervals]),
        lost_gpu_hours=lost,
        recoverable_gpu_hours=lost * RECOVERABLE.get(worst.cause, 0.0),
        evidence=worst.evidence,
        advice=worst.advice,
        announced_ms=min(one.announced_ms for one in group),
    )


def _explainer(symptom: Finding, findings: Sequence[Finding], by_rule: Mapping[str, Sequence[Case]]) -> str:
    """The costliest finding that says it explains this one and was there for at least half of its time.

    Else what explains it on each of its own sources.
    """
    candidates = [
        other
        for other in findings
        if other.rule != symptom.rule
        and symptom.rule in by_rule[other.rule][0].explains
        and _share_covered(symptom.intervals, other.intervals) >= _SAME_TIME
        and _reaches(other, symptom)
        and _accounts_for(other, symptom)
    ]
    if candidates:
        return max(candidates, key=lambda other: other.lost_gpu_hours).rule
    own = [case.explained_by for case in by_rule[symptom.rule]]
    named = next((finding for finding in findings if all(own) and finding.rule == own[0]), None)
    return named.rule if named and _accounts_for(named, symptom) else ""


def _reaches(cause: Finding, symptom: Finding) -> bool:
    """A cause shows on its own devices; a slow device also on those that wait for it."""
    together = not symptom.sources or bool(set(symptom.sources) & set(cause.sources))
    return together or cause.cause in ("straggler", "throttle")


def _accounts_for(cause: Finding, symptom: Finding) -> bool:
    """What cost much more in a bucket of its own is no symptom of what cost next to nothing."""
    own_bucket = symptom.cause not in ("", "unattributed")
    return not own_bucket or cause.lost_gpu_hours >= 0.3 * symptom.lost_gpu_hours


def _share_covered(intervals: Sequence[Interval], by: Sequence[Interval]) -> float:
    total = sum(interval.seconds for interval in intervals)
    shared = sum(
        max(0, min(a.end_ms, b.end_ms) - max(a.start_ms, b.start_ms)) / 1000 for a in intervals for b in by
    )
    return shared / total if total else 1.0


def union(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """The intervals in order, overlapping and touching ones as one."""
    merged: list[Interval] = []
    for interval in sorted(intervals, key=lambda i: (i.start_ms, i.end_ms)):
        if merged and interval.start_ms <= merged[-1].end_ms:
            merged[-1] = Interval(merged[-1].start_ms, max(merged[-1].end_ms, interval.end_ms))
        else:
            merged.append(interval)
    return tuple(merged)
