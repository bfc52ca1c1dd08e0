"""How each part of a rule developed over a job, for `gpudiag rules explain`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from gpudiag.errors import NotFoundError
from gpudiag.message import Message, joined
from gpudiag.rules import phases as phase_labels
from gpudiag.rules.engine import conclude, outcome, stretch_of, times_of
from gpudiag.rules.kernels import TRUE, UNKNOWN, Ints
from gpudiag.rules.model import NotEvaluated
from gpudiag.rules.node import Node
from gpudiag.rules.rule_reader import per_evaluation
from gpudiag.rules.ruleset import Rule, RuleSet
from gpudiag.rules.run import RuleRun, Views
from gpudiag.rules.samples import JobSamples
from gpudiag.rules.view import Values
from gpudiag.storage.job import Json
from gpudiag.storage.sample import Floats, Source

COLUMNS = 12


@dataclass(frozen=True)
class Part:
    """One sub-expression over time: numbers, or 0 and 1 for a condition; NaN where unknown."""

    name: str
    node: Node
    values: Floats


@dataclass(frozen=True)
class Trace:
    """A rule's parts on one source, at every evaluation (UNIX seconds); `outcome` says what came of it."""

    rule: str
    source: Source
    times: Ints
    parts: tuple[Part, ...]
    outcome: Message

    def picked(self) -> Ints:
        """At most twelve evaluations to show, those included at which a condition changes."""
        count = len(self.times)
        if count <= COLUMNS:
            return np.arange(count)
        when = np.nan_to_num(self.parts[0].values, nan=-1.0)
        changes = np.flatnonzero(np.diff(when)) + 1
        chosen = set(changes[: COLUMNS // 2].tolist()) | {0, count - 1}
        for k in np.linspace(0, count - 1, COLUMNS).astype(np.int64).tolist():
            if len(chosen) < COLUMNS:
                chosen.add(k)
        return np.array(sorted(chosen), dtype=np.int64)


def terms(rule: Rule) -> list[tuple[str, Node]]:
    """The terms that `and` joins in `when`, or the whole: as written, and checked."""
    written = ast.parse(rule.texts["when"], mode="eval").body
    if rule.when.op != "and" or not isinstance(written, ast.BoolOp):
        return [(rule.texts["when"], rule.when)]
    return [(ast.unparse(part), node) for part, node in zip(written.values, rule.when.children, strict=True)]


def trace(samples: JobSamples, ruleset: RuleSet, rule_id: str, device: str | None = None) -> Trace:
    """Every part of the rule over the job, on `device` or where it fired, else on its first source."""
    rule = ruleset[rule_id]
    runs = []
    for node in samples.nodes:
        labels = phase_labels.label(samples, node)
        stretch = stretch_of(samples, node, -rule.horizon, samples.seconds, labels)
        run = RuleRun(rule, stretch.rows(rule.scope))
        if run.sources:
            runs.append((run, Views(stretch)))
    first_s = samples.start_ms // 1000
    times = times_of(rule, first_s, first_s + samples.seconds)
    if not runs or not len(times):
        raise NotFoundError(f"the job has no {rule.scope} that was measured long enough for {rule_id}")
    for run, views in runs:
        run.advance(views, times)
    run, views, row = _choose(runs, device)
    judged = conclude(samples, RuleSet({rule.id: rule}), [outcome(run, samples)])
    return Trace(
        rule_id,
        run.sources[row],
        times,
        tuple(_parts(run, views, row, times)),
        _outcome(run, row, judged.not_evaluated),
    )


def _choose(runs: list[tuple[RuleRun, Views]], device: str | None) -> tuple[RuleRun, Views, int]:
    places = [(run, views, row) for run, views in runs for row in range(len(run.sources))]
    if device is not None:
        for run, views, row in places:
            if run.sources[row].device == device:
                return run, views, row
        raise NotFoundError(
            f"the rule looks at no source '{device}'; it looks at {', '.join(r.sources[k].device for r, _, k in places)}"
        )
    return next(((run, views, row) for run, views, row in places if run.watches[row].episodes), places[0])


def _parts(run: RuleRun, views: Views, row: int, times: Ints) -> Iterator[Part]:
    view = views.get(run.rule, times - views.stretch.start_s - run.rule.lag)
    need = view.everywhere()
    named = [("when", run.rule.when), *terms(run.rule)]
    named += [(name, node) for name, node in run.rule.lets.items() if node.shape != "const"]
    for name, node in named:
        shown = per_evaluation(node, run.rule.window)
        values = _plain(view.window(shown, need), row, len(times))
        yield Part(name if len(name) <= 60 else f"{name[:57]}...", shown, values)


def _plain(values: Values, row: int, count: int) -> Floats:
    picked = np.broadcast_to(values[row if values.shape[0] > 1 else 0], count)
    if picked.dtype == np.int8:
        return np.where(picked == UNKNOWN, np.nan, (picked == TRUE).astype(np.float64))
    return np.asarray(picked, dtype=np.float64)


def _outcome(run: RuleRun, row: int, not_evaluated: tuple[NotEvaluated, ...]) -> Message:
    episodes = run.watches[row].episodes
    if episodes:
        spans = [
            Message(
                "{begin} to {end}",
                begin=clock(one.since),
                end=clock(one.until) if one.until else Message("the end"),
            )
            for one in episodes[:5]
        ]
        return Message("fired, windows ending {spans}", spans=joined(spans, "{one}, {other}"))
    if run.excused.get(row):
        return Message("passed, because {reason}", reason=run.excused[row])
    if not run.judged[row]:
        reason = not_evaluated[0].reason if not_evaluated else Message("too little measured")
        return Message("not evaluated: {reason}", reason=reason)
    return Message("passed")


def clock(seconds: int) -> str:
    """UNIX seconds as the local time of day."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().strftime("%H:%M:%S")


def trace_as_json(traced: Trace) -> Json:
    """The whole trace, every evaluation."""
    return {
        "schema_version": 1,
        "rule": traced.rule,
        "node": traced.source.node,
        "device": traced.source.device,
        "outcome": traced.outcome,
        "times": [datetime.fromtimestamp(t, timezone.utc).isoformat() for t in traced.times.tolist()],
        "parts": [
            {
                "expression": part.name,
                "unit": "boolean" if part.node.boolean else str(part.node.unit),
                "values": [None if not np.isfinite(value) else value for value in part.values.tolist()],
            }
            for part in traced.parts
        ],
    }
