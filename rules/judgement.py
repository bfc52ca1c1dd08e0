"""What the rules said about a job: per rule and source when it fired, on what evidence, or why it could not tell."""

from __future__ import annotations

from dataclasses import dataclass

from gpudiag.rules.model import Advice, Confidence, Evidence, NotEvaluated, Severity
from gpudiag.storage.sample import Source


@dataclass(frozen=True)
class FiredInterval:
    """One stretch in which a rule fired, UNIX milliseconds; `open` while it still does.

    The stretch covers the trouble itself and not the time it took to notice: from the rule's `onset` before it first
    held to its `relief` before it no longer did, by default the middle of the windows. `announced_ms` is when it was first known. `lost` is the mean share of the GPU's time, None when the
    rule measures none. Evidence and advice are from the moment it was worst.
    """

    start_ms: int
    end_ms: int
    open: bool
    announced_ms: int
    severity: Severity
    confidence: Confidence
    lost: float | None
    summary: str
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class Fired:
    """A rule that fired on a source; `explained_by` names the rule that is the cause of this symptom."""

    rule: str
    source: Source
    cause: str
    intervals: tuple[FiredInterval, ...]
    explained_by: str = ""

    @property
    def seconds(self) -> float:
        """Total length of the intervals."""
        return sum(interval.end_ms - interval.start_ms for interval in self.intervals) / 1000


@dataclass(frozen=True)
class RuleOutcome:
    """What one rule said on one node: `judged` if it could tell anywhere, else why not (`gated`: it was in the rule's
    phases for long enough; `missing`: required and not measured)."""

    rule: str
    fired: tuple[Fired, ...]
    judged: bool
    gated: bool
    missing: tuple[str, ...]
    excused: tuple[tuple[Source, str], ...]


@dataclass(frozen=True)
class Judgement:
    """All rules on one job: every rule is in exactly one of fired, passed and not evaluated."""

    fired: tuple[Fired, ...]
    passed: tuple[str, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    excused: tuple[tuple[str, Source, str], ...] = ()


def explain_away(fired: list[Fired], explains: dict[str, tuple[str, ...]]) -> list[Fired]:
    """Mark symptoms: a finding of which causes on the same source cover at least 60 % (rules.md, R01)."""
    return [_explained(one, fired, explains) for one in fired]


def _explained(symptom: Fired, fired: list[Fired], explains: dict[str, tuple[str, ...]]) -> Fired:
    causes = [
        other
        for other in fired
        if symptom.rule in explains.get(other.rule, ()) and _concerns(other.source, symptom.source)
    ]
    if not causes or _covered(symptom, causes) < 0.6:
        return symptom
    best = max(causes, key=lambda cause: _covered(symptom, [cause]))
    return Fired(symptom.rule, symptom.source, symptom.cause, symptom.intervals, best.rule)


def _concerns(cause: Source, symptom: Source) -> bool:
    """What holds for a node or job concerns its GPUs; what holds for a GPU concerns that one."""
    return cause.node == symptom.node and (cause.scope != "gpu" or cause == symptom)


def _covered(symptom: Fired, causes: list[Fired]) -> float:
    stretches = sorted((i.start_ms, i.end_ms) for cause in causes for i in cause.intervals)
    covered = 0
    for interval in symptom.intervals:
        at = interval.start_ms
        for start, end in stretches:
            begin, finish = max(start, at), min(end, interval.end_ms)
            if finish > begin:
                covered += finish - begin
                at = finish
    return covered / 1000 / symptom.seconds if symptom.seconds else 0.0
