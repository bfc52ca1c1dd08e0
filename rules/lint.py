"""Advice about rules that are right in form: what a reader or an operator would miss."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudiag.message import Message
from gpudiag.rules.ruleset import Rule, RuleSet

_NUMBER = re.compile(r"\d")


def warnings(ruleset: RuleSet, whole: RuleSet) -> list[Message]:
    """One line each; `whole` holds every rule that may be referred to."""
    return [
        Message("{place}: {rule}: {text}", place=f"{rule.file}:{rule.line}", rule=rule.id, text=text)
        for rule in ruleset
        for text in _of(rule, whole)
    ]


def _of(rule: Rule, whole: RuleSet) -> Iterator[Message]:
    for explained in rule.explains:
        if explained not in whole.rules:
            yield Message("explains '{rule}', which is no rule", rule=explained)
    if rule.maturity != "stable":
        return
    if not rule.evidence:
        yield Message("has no evidence: a finding would not say what was measured")
    if not rule.hints:
        yield Message("has no hints: a finding would not say what to do")
    if not rule.why:
        yield Message("has no 'why': say why the condition means what the summary claims")
    if rule.lost is not None and not rule.cause:
        yield Message("measures a loss but names no cause for it")
    used = {part.value for node in rule.expressions() for part in node}
    for name, (value, _) in rule.params.items():
        if value not in used:
            yield Message("parameter '{name}' is not used", name=name)
