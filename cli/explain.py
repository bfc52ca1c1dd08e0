"""What `gpudiag rules explain` prints: what a rule asks for, and how each of its parts developed over a job."""

from __future__ import annotations

import numpy as np

from gpudiag.cli.messages import ENGLISH, Speaker
from gpudiag.cli.render import labels
from gpudiag.cli.render.columns import aligned
from gpudiag.message import Message, joined
from gpudiag.rules.ruleset import Rule
from gpudiag.rules.trace import Part, Trace, clock, terms
from gpudiag.rules.units import format_duration, format_quantity


def describe(rule: Rule, words: Speaker = ENGLISH) -> str:
    """The rule in words and expressions."""
    states = [rule.severity, rule.maturity, *([] if rule.enabled else ["off"])]
    lines = [f"{rule.id} ({words(', ').join(words(state) for state in states)})", words(rule.summary)]
    if rule.why:
        lines += ["", words(rule.why)]
    lines += ["", words("Looks at {what}", what=_looks_at(rule, words))]
    if rule.requires:
        groups = [joined([Message(name) for _, name in group], "{one} or {other}") for group in rule.requires]
        lines.append(words("Needs {metrics}", metrics=words(joined(groups, "{one}, {other}"))))
    lines += [f"  {name} = {format_quantity(value, unit)}" for name, (value, unit) in rule.params.items()]
    lines += [f"  {name} = {rule.texts[name]}" for name in rule.lets if name in rule.texts]
    lines += [words("Fires when"), *(f"  {text}" for text, _ in terms(rule))]
    lines += [words("unless {excuse}", excuse=words(excuse.because)) for excuse in rule.excuses]
    if rule.clear:
        lines += [words("Stops when"), f"  {rule.texts['clear']}"]
    return "\n".join([*lines, words("Defined in {place}", place=f"{rule.file}:{rule.line}")])


def _looks_at(rule: Rule, words: Speaker) -> str:
    parts = [
        words(
            "{scope}, windows of {length} every {step} s",
            scope=words(labels.SCOPES[rule.scope]),
            length=format_duration(rule.window),
            step=str(rule.step),
        )
    ]
    if rule.phases:
        named = words(", ").join(words(labels.PHASES.get(phase, phase)) for phase in rule.phases)
        parts.append(words("in {phases}", phases=named))
    if rule.hold:
        parts.append(words("holding for {length}", length=format_duration(rule.hold)))
    if rule.min_age:
        parts.append(words("in jobs older than {length}", length=format_duration(rule.min_age)))
    return words("; ").join(parts)


def table(traced: Trace, words: Speaker = ENGLISH) -> str:
    """At most twelve evaluations, those included at which a condition changes."""
    picked = traced.picked().tolist()
    rows = [["", *(clock(int(traced.times[at])) for at in picked)]]
    rows += [[part.name, *(_shown(part, at, words) for at in picked)] for part in traced.parts]
    head = words(
        "{device} on {node}: {outcome}",
        device=traced.source.device,
        node=traced.source.node,
        outcome=words(traced.outcome),
    )
    return "\n".join([head, *aligned(rows, right=range(1, len(picked) + 1))])


def _shown(part: Part, at: int, words: Speaker) -> str:
    value = float(part.values[at])
    if np.isnan(value):
        return "-"
    if part.node.boolean:
        return words("yes") if value else words("no")
    return format_quantity(value, part.node.unit)
