"""Rules ready to run: their checked expressions and how they are judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpudiag.rules import node as nodes
from gpudiag.rules.model import Confidence, Maturity, Severity, Tier
from gpudiag.rules.node import Node
from gpudiag.rules.units import Unit
from gpudiag.storage.catalog import Scope

PHASE_LAG_S = 20
HORIZON_MARGIN_S = 150
SHORTEST_HORIZON_S = 600


@dataclass(frozen=True)
class Hint:
    """One rung of a ladder: given when `when` holds; `{name}` in the text is filled in with a measured value."""

    tier: Tier
    text: str
    when: Node | None
    names: Mapping[str, Node]


@dataclass(frozen=True)
class Excuse:
    """A look-alike: when it holds, the rule does not fire, because of `because`."""

    when: Node
    because: str


@dataclass(frozen=True)
class Rule:
    """One rule; durations in seconds. `docs/rule-language.md` explains every field.

    `requires` holds groups of (scope, metric), of each of which at least one must have been measured.
    `texts` are the expressions as they were written, by field or name of `let`. `version` tells it from the rule
    of that id in another file, or under another override.
    """

    id: str
    summary: str
    severity: Severity
    scope: Scope
    window: int
    when: Node
    maturity: Maturity = "sandbox"
    enabled: bool = True
    jobless: bool = False
    why: str = ""
    phases: tuple[str, ...] = ()
    unless_tags: tuple[str, ...] = ()
    requires: tuple[tuple[tuple[str, str], ...], ...] = ()
    prefers: tuple[tuple[str, str], ...] = ()
    params: Mapping[str, tuple[float, Unit]] = field(default_factory=dict)
    lets: Mapping[str, Node] = field(default_factory=dict)
    hold: int = 0
    clear: Node | None = None
    cooldown: int = 0
    onset: Node | None = None
    relief: Node | None = None
    min_age: int = 0
    coverage: float = 0.5
    excuses: tuple[Excuse, ...] = ()
    critical: Node | None = None
    confidence: Confidence = "possible"
    likely: Node | None = None
    confirmed: Node | None = None
    cause: str = ""
    lost: Node | None = None
    explains: tuple[str, ...] = ()
    evidence: tuple[tuple[str, Node], ...] = ()
    names: Mapping[str, Node] = field(default_factory=dict)
    hints: tuple[Hint, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    line: int = 0
    version: str = ""

    @property
    def step(self) -> int:
        """Seconds between evaluations: about thirty per window, a multiple of 10."""
        return max(10, self.window // 300 * 10)

    @cached_property  # asked for at every evaluation
    def lag(self) -> int:
        """Seconds by which windows end before the evaluation, so that phases and segments are settled."""
        lag = max((part.lag for node in self.expressions() for part in node), default=0)
        if self.phases:
            lag = max(lag, PHASE_LAG_S)
        return -(-lag // 10) * 10

    @cached_property
    def horizon(self) -> int:
        """Seconds of samples before an evaluation that the rule may look at."""
        reach = max((part.reach for node in self.expressions() for part in node), default=0)
        return max(SHORTEST_HORIZON_S, max(reach, self.window) + self.lag + HORIZON_MARGIN_S)

    def expressions(self) -> Iterator[Node]:
        """Every expression of the rule."""
        yield self.when
        yield from (
            node
            for node in (
                self.clear, self.critical, self.likely, self.confirmed, self.lost, self.onset, self.relief,
            )
            if node
        )  # fmt: skip
        yield from (excuse.when for excuse in self.excuses)
        yield from (node for _, node in self.evidence)
        yield from self.names.values()
        for hint in self.hints:
            if hint.when:
                yield hint.when
            yield from hint.names.values()

    def metrics(self) -> dict[tuple[str, str], None]:
        """(scope, name) of every metric it reads."""
        found: dict[tuple[str, str], None] = {}
        for node in self.expressions():
            found.update(nodes.metrics(node))
        return found


@dataclass(frozen=True)
class RuleSet:
    """Rules by id, in the order of their files."""

    rules: Mapping[str, Rule]

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules.values())

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, rule_id: str) -> Rule:
        return self.rules[rule_id]

    def active(self, maturities: Iterable[Maturity] = ("stable",)) -> RuleSet:
        """The rules that run: enabled and, by default, stable."""
        wanted = set(maturities)
        return RuleSet({rule.id: rule for rule in self if rule.enabled and rule.maturity in wanted})

    def only(self, ids: Iterable[str]) -> RuleSet:
        """The named rules, whatever their maturity, switched on."""
        return RuleSet({rule_id: replace(self[rule_id], enabled=True) for rule_id in ids})

    @cached_property
    def horizon(self) -> int:
        """Longest look back of any rule, in seconds."""
        return max((rule.horizon for rule in self), default=SHORTEST_HORIZON_S)

    def versions(self) -> dict[str, str]:
        """Version of each rule, by id."""
        return {rule.id: rule.version for rule in self}

    def reach(self) -> dict[tuple[str, str], int]:
        """By (scope, metric), how many seconds before an evaluation some rule looks at it."""
        found: dict[tuple[str, str], int] = {}
        for rule in self:
            for node in rule.expressions():
                _note_reach(node, max(rule.window, node.reach), rule.lag, found)
        return found

    def metrics(self) -> dict[str, list[str]]:
        """Names by scope of every metric that some rule reads."""
        found: dict[str, list[str]] = {"gpu": [], "node": [], "job": []}
        for scope, name in dict.fromkeys(pair for rule in self for pair in rule.metrics()):
            found[scope].append(name)
        return found


def _note_reach(node: Node, reach: int, lag: int, found: dict[tuple[str, str], int]) -> None:
    """Hand down how far the nearest function above looks back."""
    if node.op == "metric":
        key = str(node.options["scope"]), str(node.value)
        found[key] = max(found.get(key, 0), reach + lag + HORIZON_MARGIN_S)
    for child in node.children:
        _note_reach(child, max(reach, node.reach), lag, found)
