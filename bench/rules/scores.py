"""Scores over outcomes: per rule, per group, false alarms, causes, waterfall; with bootstrap intervals over jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from bench.rules.outcome import Outcome, Said, seconds_of
from bench.scenarios.spec import Expectation

LEAST_MARGIN = 1.5
LATE_S = 300.0
GROUPS = {
    "low utilisation": ("util/",),
    "memory fragmentation": ("memory/fragmentation", "memory/allocator-thrash"),
    "data-loader stalls": ("input/data-loader-stall", "input/cpu-bound-loader", "input/disk-bound-loader"),
    "imminent OOM": ("memory/gpu-oom-imminent", "memory/host-oom-imminent"),
}


@dataclass
class RuleScore:
    """Counts of one rule: faults found, faults missed, and findings where there was no such fault."""

    hits: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)

    @property
    def recall(self) -> float:
        total = len(self.hits) + len(self.misses)
        return len(self.hits) / total if total else float("nan")

    @property
    def precision(self) -> float:
        total = len(self.hits) + len(self.false)
        return len(self.hits) / total if total else float("nan")


def matches(said: Said, expected: Expectation, outcome: Outcome, number: int) -> bool:
    """Fired on a faulty device, mostly while the fault lasted, and before it was over."""
    if said.rule not in expected.rules:
        return False
    if number >= len(outcome.onsets):
        return True
    first, last = outcome.onsets[number]
    devices = outcome.scenario.faults[number].devices
    if devices and said.devices and not set(devices) & set(said.devices):
        return False
    inside = tuple((max(a, first - 60), min(b, last + LATE_S)) for a, b in said.intervals)
    shared = sum(max(0.0, b - a) for a, b in inside)
    return shared >= 0.5 * seconds_of(said.intervals) and said.announced <= last + LATE_S


def by_rule(outcomes: Sequence[Outcome]) -> dict[str, RuleScore]:
    """Per rule, over faults of at least 1.5 times the base effect and all healthy jobs."""
    scores: dict[str, RuleScore] = {}
    for outcome in outcomes:
        _count(outcome, scores)
    return dict(sorted(scores.items()))


def _count(outcome: Outcome, scores: dict[str, RuleScore]) -> None:
    wanted = {rule for expected in outcome.scenario.expected for rule in expected.rules}
    for number, expected in enumerate(outcome.scenario.expected):
        if expected.margin >= LEAST_MARGIN and not set(expected.rules) <= outcome.not_evaluated:
            _count_expected(outcome, number, expected, scores)
    for said in outcome.roots:
        if said.rule not in wanted and said.rule not in outcome.scenario.allowed:
            scores.setdefault(said.rule, RuleScore()).false.append(outcome.scenario.name)


def _count_expected(
    outcome: Outcome, number: int, expected: Expectation, scores: dict[str, RuleScore]
) -> None:
    found = [said for said in outcome.said if matches(said, expected, outcome, number)]
    if not found:
        scores.setdefault(expected.rules[0], RuleScore()).misses.append(outcome.scenario.name)
        return
    score = scores.setdefault(found[0].rule, RuleScore())
    score.hits.append(outcome.scenario.name)
    if number < len(outcome.onsets):
        score.delays.append(found[0].announced - outcome.onsets[number][0])
        lasted = outcome.onsets[number][1] - outcome.onsets[number][0]
        if outcome.oom_s is not None and "oom" in found[0].rule and lasted > 1800:
            score.leads.append(outcome.oom_s - found[0].announced)


def together(scores: dict[str, RuleScore], prefixes: Sequence[str]) -> RuleScore:
    """The rules whose ids begin with any of the prefixes, as one."""
    total = RuleScore()
    for rule, score in scores.items():
        if rule.startswith(tuple(prefixes)):
            total.hits += score.hits
            total.misses += score.misses
            total.false += score.false
            total.delays += score.delays
            total.leads += score.leads
    return total


def alarm_rate(
    outcomes: Sequence[Outcome], severities: Sequence[str], stable: set[str]
) -> tuple[float, int, float]:
    """False alarms per 1,000 healthy GPU-hours of the rules in `stable`, their number, and the hours."""
    healthy = [outcome for outcome in outcomes if outcome.scenario.healthy]
    hours = sum(outcome.gpu_hours for outcome in healthy)
    count = sum(
        len(said.intervals)
        for outcome in healthy
        for said in outcome.roots
        if said.severity in severities and said.rule in stable and said.rule not in outcome.scenario.allowed
    )
    return 1000 * count / hours if hours else float("nan"), count, hours


def top_cause(outcomes: Sequence[Outcome]) -> list[bool]:
    """For each single fault of weight, whether the first finding names it."""
    rows = []
    for outcome in outcomes:
        expected = outcome.scenario.expected
        if len(expected) == 1 and expected[0].margin >= LEAST_MARGIN:
            first = outcome.roots[0] if outcome.roots else None
            rows.append(bool(first) and (first.rule in expected[0].rules or first.cause == expected[0].cause))
    return rows


def waterfall_errors(outcomes: Sequence[Outcome], faults: int) -> tuple[list[float], list[float]]:
    """Points of error of jobs with so many expected faults: mean over the buckets in use, and the worst bucket."""
    means, worst = [], []
    for outcome in outcomes:
        if len(outcome.scenario.expected) != faults:
            continue
        truth, got = 100 * np.array(outcome.truth), 100 * np.array(outcome.waterfall)
        used = (truth > 0.5) | (got > 0.5)
        errors = np.abs(truth - got)[used]
        means.append(float(errors.mean()))
        worst.append(float(errors.max()))
    return means, worst


def interval(
    values: Sequence[float], of: Callable[[np.ndarray[tuple[int], np.dtype[np.float64]]], float]
) -> tuple[float, float]:
    """95 % bootstrap interval of a statistic over jobs; fixed seed."""
    if not len(values):
        return float("nan"), float("nan")
    rng = np.random.default_rng(20_26)
    data = np.asarray(values, float)
    draws = [of(data[rng.integers(0, len(data), len(data))]) for _ in range(500)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def baseline_scores(
    outcomes: Sequence[Outcome], name: str, prefixes: Sequence[str]
) -> tuple[float, float, float]:
    """Recall on the group's faults, precision over jobs, alarms per 1,000 healthy GPU-hours."""
    hit = missed = false = alarms = 0
    hours = 0.0
    for outcome in outcomes:
        times = outcome.alarms[name]
        if outcome.scenario.healthy:
            hours += outcome.gpu_hours
            alarms += len(times)
            false += bool(times)
            continue
        for number, expected in enumerate(outcome.scenario.expected):
            if expected.margin < LEAST_MARGIN or not expected.rules[0].startswith(tuple(prefixes)):
                continue
            first, last = outcome.onsets[number] if number < len(outcome.onsets) else (0.0, 1e9)
            found = any(first <= time <= last + LATE_S for time in times)
            hit, missed = hit + found, missed + (not found)
    recall = hit / (hit + missed) if hit + missed else float("nan")
    precision = hit / (hit + false) if hit + false else float("nan")
    return recall, precision, 1000 * alarms / hours if hours else float("nan")
