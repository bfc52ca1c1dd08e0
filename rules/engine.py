"""Judges a stored job: every rule over all its samples, a few hours and one node at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpudiag.message import Message
from gpudiag.rules import phases as phase_labels
from gpudiag.rules.judgement import Fired, Judgement, RuleOutcome, explain_away
from gpudiag.rules.kernels import Ints
from gpudiag.rules.model import NotEvaluated
from gpudiag.rules.ruleset import Rule, RuleSet
from gpudiag.rules.run import RuleRun, Views
from gpudiag.rules.samples import JobSamples
from gpudiag.rules.stretch import Codes, Stretch
from gpudiag.rules.units import format_duration

CHUNK_S = 4 * 3600


def judge(samples: JobSamples, ruleset: RuleSet, *, phases: Codes | None = None) -> Judgement:
    """What each rule of `ruleset` says about the job; `phases` are labels of its seconds, found here if not given.

    On several nodes each is judged by its own phases, for that is what its agent sees.
    """
    for scope, names in ruleset.metrics().items():
        samples.want(scope, names)
    outcomes: list[RuleOutcome] = []
    for node in samples.nodes:
        labels = phases
        if len(ruleset) and (phases is None or len(samples.nodes) > 1):
            labels = phase_labels.label(samples, node)
        outcomes += judge_node(samples, ruleset, node, labels)
    return conclude(samples, ruleset, outcomes)


def judge_node(samples: JobSamples, ruleset: RuleSet, node: str, labels: Codes | None) -> list[RuleOutcome]:
    """What each rule says about the job's part on one node, whose seconds have these labels."""
    applicable = [rule for rule in ruleset if not set(rule.unless_tags) & set(samples.job.tags)]
    whole = stretch_of(samples, node, 0, samples.seconds, labels)
    runs = [RuleRun(rule, whole.rows(rule.scope)) for rule in applicable]
    runs = [run for run in runs if run.sources]
    first_s = samples.start_ms // 1000
    horizon = max((rule.horizon for rule in applicable), default=0)
    for begin in range(0, samples.seconds, CHUNK_S):
        end = min(samples.seconds, begin + CHUNK_S)
        views = Views(stretch_of(samples, node, begin - horizon, end, labels))
        for run in runs:
            times = times_of(run.rule, first_s + begin, first_s + end)
            if len(times):
                run.advance(views, times)
    return [outcome(run, samples) for run in runs]


def outcome(run: RuleRun, samples: JobSamples) -> RuleOutcome:
    """What is left of a run once all samples have gone through it."""
    return RuleOutcome(
        run.rule.id,
        tuple(_fired(run, samples.start_ms // 1000, samples.end_ms // 1000)),
        bool(run.judged.any()),
        run.gated,
        tuple(run.missing),
        tuple((run.sources[row], why) for row, why in sorted(run.excused.items())),
    )


def times_of(rule: Rule, after_s: int, until_s: int) -> Ints:
    """Multiples of the rule's step later than `after_s`, up to `until_s`."""
    step = rule.step
    return np.arange((after_s // step + 1) * step, until_s + 1, step, dtype=np.int64)


def stretch_of(samples: JobSamples, node: str, first: int, last: int, labels: Codes | None) -> Stretch:
    """Seconds `first` (may be negative) to `last` of a job on one node."""
    codes = np.full(last - first, -1, dtype=np.int8)
    if labels is not None:
        inside = labels[max(0, first) : last]
        codes[max(0, -first) : max(0, -first) + len(inside)] = inside
    return Stretch(
        node,
        samples.job,
        samples.start_ms // 1000 + first,
        last - first,
        tuple(gpu for gpu in samples.sources("gpu") if gpu.node == node),
        lambda source, metric, at: samples.window(source, metric, first + at, last),
        codes,
        samples.devices,
        tuple(event for event in samples.events if event.source.node == node),
        len(samples.nodes),
    )


def conclude(samples: JobSamples, ruleset: RuleSet, outcomes: Sequence[RuleOutcome]) -> Judgement:
    """Put the outcomes of all nodes together."""
    fired = explain_away(
        [one for said in outcomes for one in said.fired], {rule.id: rule.explains for rule in ruleset}
    )
    names = {one.rule for one in fired}
    judged = {said.rule for said in outcomes if said.judged}
    passed = [rule.id for rule in ruleset if rule.id not in names and rule.id in judged]
    silent = [rule for rule in ruleset if rule.id not in names and rule.id not in judged]
    return Judgement(
        tuple(fired),
        tuple(passed),
        tuple(NotEvaluated(rule.id, reason(rule, samples, outcomes)) for rule in silent),
        tuple((said.rule, *excuse) for said in outcomes for excuse in said.excused),
    )


def _fired(run: RuleRun, start_s: int, end_s: int) -> Iterator[Fired]:
    for source, watch in zip(run.sources, run.watches, strict=True):
        if watch.episodes:
            intervals = tuple(run.interval(episode, start_s, end_s) for episode in watch.episodes)
            yield Fired(run.rule.id, source, run.rule.cause, intervals)


def reason(rule: Rule, samples: JobSamples, outcomes: Sequence[RuleOutcome]) -> str:
    """Why a rule could not be judged."""
    mine = [said for said in outcomes if said.rule == rule.id]
    tags = sorted(set(rule.unless_tags) & set(samples.job.tags))
    if tags:
        return Message("the job is tagged {tags}", tags=", ".join(tags))
    if not mine:
        return Message("the job has no {scope} that was measured", scope=rule.scope)
    if samples.seconds < rule.min_age:
        return Message(
            "the job ran {length}, the rule needs {least}",
            length=format_duration(samples.seconds),
            least=format_duration(rule.min_age),
        )
    missing = [name for name in mine[0].missing if all(name in said.missing for said in mine)]
    if missing:
        return Message("not measured: {metrics}", metrics=", ".join(missing))
    if not any(said.gated for said in mine):
        if not rule.phases:
            return Message("the job was too short")
        return Message("too little time in phase {phases}", phases=" or ".join(rule.phases))
    if samples.seconds < rule.coverage * rule.window:
        return Message(
            "the job ran {length}, a window is {window}",
            length=format_duration(samples.seconds),
            window=format_duration(rule.window),
        )
    return _unknown(rule)


def _unknown(rule: Rule) -> str:
    compares = any(
        part.op == "call" and str(part.value).startswith(("peers_", "share_")) for part in rule.when
    )
    if compares:
        return Message("no other GPU of the job on its node to compare with, or too little measured")
    return Message(
        "less than {share} of every window of {window} was measured",
        share=f"{rule.coverage * 100:.0f} %",
        window=format_duration(rule.window),
    )
