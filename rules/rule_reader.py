"""Reads one rule of a file: its fields, its expressions and what they add up to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from gpudiag.rules import node as nodes
from gpudiag.rules.document import Document, Place, Scalar, Value
from gpudiag.rules.document import Mapping as Entry
from gpudiag.rules.expr import Names, parse
from gpudiag.rules.functions import FUNCTIONS
from gpudiag.rules.model import CAUSES, CONFIDENCES, PHASES, SEVERITIES, Confidence, Maturity, Severity, Tier
from gpudiag.rules.node import Node
from gpudiag.rules.override import MATURITIES, window
from gpudiag.rules.reading import Reading
from gpudiag.rules.ruleset import Excuse, Hint, Rule
from gpudiag.rules.units import NUMBER, RATIO, SECONDS, Unit
from gpudiag.storage import catalog
from gpudiag.storage.catalog import Scope

KEYS = (
    "id", "summary", "why", "severity", "maturity", "enabled", "jobless", "scope", "phases", "unless_tags", "requires", "prefers", "window",
    "params", "let", "when", "exceptions", "for", "clear", "onset", "relief", "cooldown", "min_age", "coverage", "critical", "confidence",
    "likely", "confirmed", "cause", "lost", "explains", "evidence", "hints",
)  # fmt: skip
TIERS = ("quick", "medium", "deep")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass
class RuleReader:
    """A rule as it stands in a file, to be read again when a site changes its parameters."""

    reading: Reading
    _params: dict[str, tuple[float, Unit]] = field(default_factory=dict)
    _lets: dict[str, Node] = field(default_factory=dict)
    _window: int = 0

    def rule(self) -> Rule | None:
        """The rule, None after reporting what is wrong with it."""
        reading = self.reading
        reading.only(KEYS)
        reading.need(("id", "summary", "severity", "scope", "window", "when"))
        self._read_params()
        return self._read()

    def changed(self, rule: Rule, params: Mapping[str, tuple[float, Unit]], seconds: int) -> Rule:
        """The same rule with other values of its parameters and another window."""
        self._params = dict(params)
        quiet = Document(self.reading.document.name, self.reading.document.text)
        changed = RuleReader(Reading(quiet, self.reading.entry), dict(params), _window=seconds)._read()
        return changed or rule

    def _read(self) -> Rule | None:
        reading = self.reading
        self._id(reading.text("id"))
        names = self._names()
        self._read_lets(names)
        when = self._condition("when", names)
        lost = self._number("lost", names, RATIO)
        if lost is not None:
            self._lets.setdefault("lost", lost)
        evidence = self._evidence(names)
        hints = tuple(self._hints(names))
        summary = reading.text("summary")
        fillers = self._placeholders("summary", summary, reading.value("summary"), names)
        rule = Rule(
            id=reading.text("id"),
            summary=summary,
            severity=cast(Severity, reading.choice("severity", SEVERITIES, "warning")),
            scope=cast(Scope, names.scope),
            window=names.window,
            when=when or nodes.boolean(False),
            maturity=cast(Maturity, reading.choice("maturity", MATURITIES, "sandbox")),
            enabled=reading.flag("enabled", True),
            jobless=reading.flag("jobless", False),
            why=reading.text("why"),
            phases=reading.words("phases", PHASES),
            unless_tags=reading.words("unless_tags"),
            requires=self._metrics("requires", names),
            prefers=tuple(pair for group in self._metrics("prefers", names) for pair in group),
            params=self._params,
            lets=dict(self._lets),
            hold=reading.seconds("for", 0, multiple=10),
            clear=self._condition("clear", names),
            cooldown=reading.seconds("cooldown", 0),
            onset=self._number("onset", names, SECONDS),
            relief=self._number("relief", names, SECONDS),
            min_age=reading.seconds("min_age", 0),
            coverage=reading.ratio("coverage", 0.5),
            excuses=tuple(self._excuses(names)),
            critical=self._condition("critical", names),
            confidence=cast(Confidence, reading.choice("confidence", CONFIDENCES, "possible")),
            likely=self._condition("likely", names),
            confirmed=self._condition("confirmed", names),
            cause=reading.choice("cause", CAUSES, ""),
            lost=lost,
            explains=reading.words("explains"),
            evidence=evidence,
            names=fillers,
            hints=hints,
            texts=self._texts(),
            file=reading.document.name,
            line=reading.entry.place.line + 1,
        )
        return self._with_requires(rule) if reading.ok else None

    def _texts(self) -> dict[str, str]:
        """Expressions as they stand in the file, white space folded."""
        lets = self.reading.value("let")
        given: dict[str, Value] = dict(lets.items) if isinstance(lets, Entry) else {}
        for key in ("when", "clear", "critical", "likely", "confirmed", "lost", "onset", "relief"):
            value = self.reading.value(key)
            if value is not None:
                given[key] = value
        return {
            key: " ".join(value.text.split()) for key, value in given.items() if isinstance(value, Scalar)
        }

    def _id(self, text: str) -> None:
        if text and not _ID.fullmatch(text):
            self.reading.complain(
                self.reading.entry.items["id"].place,
                f"'{text}' is no rule id: expected topic/short-name, such as input/slow-disk",
            )

    def _names(self) -> Names:
        scope = self.reading.choice("scope", ("gpu", "node", "job"), "gpu")
        return Names(scope, self._window or window(self.reading), self._lets, self._params)

    def _read_params(self) -> None:
        given = self.reading.value("params")
        for name, (value, unit, _) in self.reading.quantities("params").items():
            if isinstance(given, Entry):
                self._check_name(name, given.keys[name].place)
            self._params[name] = value, unit

    def _read_lets(self, names: Names) -> None:
        given = self.reading.value("let")
        if given is None:
            return
        if not isinstance(given, Entry):
            self.reading.complain(given.place, "'let' must be names and expressions")
            return
        for name, value in given.items.items():
            self._check_name(name, given.keys[name].place)
            node = self.reading.expression(value, name, self._parser(names))
            self._lets[name] = node or nodes.ERROR

    def _check_name(self, name: str, place: Place) -> None:
        if not _NAME.fullmatch(name):
            self.reading.complain(place, f"'{name}' is no name: expected lower case letters, digits and _")
        elif (
            name in FUNCTIONS
            or catalog.resolve("gpu", name) is not None
            or name in self._params
            or name in self._lets
        ):
            self.reading.complain(place, f"the name '{name}' is taken already")

    def _parser(self, names: Names) -> Callable[[str, Callable[[str, int], None]], Node]:
        return lambda text, complain: parse(text, names, complain)

    def _condition(self, key: str, names: Names) -> Node | None:
        return self._as_condition(self.reading, self.reading.value(key), key, names)

    def _as_condition(self, reading: Reading, value: Value | None, key: str, names: Names) -> Node | None:
        node = reading.expression(value, key, self._parser(names))
        if node is None or value is None:
            self.reading.ok &= reading.ok
            return None
        if node.boolean and node.shape in ("window", "const"):
            return node
        hint = "; put it in share(...) > ..." if node.boolean else ""
        self.reading.complain(
            value.place, f"'{key}' must be a condition per evaluation, not {node.kind}{hint}"
        )
        return None

    def _number(self, key: str, names: Names, unit: Unit) -> Node | None:
        value = self.reading.value(key)
        node = self.reading.expression(value, key, self._parser(names))
        if node is None or value is None:
            return None
        if node.boolean or node.shape not in ("window", "const") or node.unit.dimensions != unit.dimensions:
            wanted = "a number of seconds" if unit.dimensions else "a share of the GPU's time"
            self.reading.complain(
                value.place, f"'{key}' must be {wanted} per evaluation, not {node.kind} in {node.unit}"
            )
            return None
        return node

    def _metrics(self, key: str, names: Names) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Groups of metrics, alternatives joined by `or`."""
        return tuple(
            group
            for text, place in self.reading.word_places(key)
            if (group := self._group(key, text, place, names))
        )

    def _group(self, key: str, text: str, place: Place, names: Names) -> tuple[tuple[str, str], ...]:
        found = []
        for name in text.split(" or "):
            metric = catalog.resolve(names.scope, name) or catalog.resolve("gpu", name)
            if metric is None:
                self.reading.expression(Scalar(name, place, plain=True), key, self._parser(names))
            else:
                found.append((metric.scope, metric.name))
        return tuple(found)

    def _with_requires(self, rule: Rule) -> Rule:
        """Without `requires`, everything that `when` reads is needed, except what is only preferred."""
        if self.reading.value("requires") is not None:
            return rule
        optional = set(rule.prefers)
        for part in rule.when:
            if part.op == "call" and part.value in ("default", "known", "samples"):
                optional |= set(nodes.metrics(part))
        return replace(
            rule, requires=tuple((pair,) for pair in nodes.metrics(rule.when) if pair not in optional)
        )

    def _excuses(self, names: Names) -> list[Excuse]:
        found = []
        for entry in self.reading.entries("exceptions"):
            entry.only(("when", "because"))
            entry.need(("when", "because"))
            when = self._as_condition(entry, entry.value("when"), "when", names)
            if when is not None:
                found.append(Excuse(when, entry.text("because")))
            self.reading.ok &= entry.ok
        return found

    def _evidence(self, names: Names) -> tuple[tuple[str, Node], ...]:
        value = self.reading.value("evidence")
        if value is None:
            return ()
        found = []
        for text, place in self.reading.word_places("evidence"):
            node = self.reading.expression(
                Scalar(text, place, plain=_is_plain(value, place)), "evidence", self._parser(names)
            )
            if node is not None:
                found.append((text, per_evaluation(node, names.window)))
        return tuple(found)

    def _hints(self, names: Names) -> list[Hint]:
        found = []
        for entry in self.reading.entries("hints"):
            entry.only(("tier", "when", "do"))
            entry.need(("tier", "do"))
            when = self._as_condition(entry, entry.value("when"), "when", names)
            text = entry.text("do")
            fillers = self._placeholders("do", text, entry.value("do"), names)
            tier = cast(Tier, entry.choice("tier", TIERS, "quick"))
            found.append(Hint(tier, text, when, fillers))
            self.reading.ok &= entry.ok
        return found

    def _placeholders(self, key: str, text: str, value: Value | None, names: Names) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for name in _PLACEHOLDER.findall(text):
            if not _NAME.fullmatch(name):
                self.reading.complain(
                    value.place if value else self.reading.entry.place,
                    f"'{{{name}}}' must be a name of 'let', 'params' or a metric",
                )
                continue
            place = value.place if value else self.reading.entry.place
            node = self.reading.expression(Scalar(name, place, plain=True), key, self._parser(names))
            if node is not None:
                found[name] = per_evaluation(node, names.window)
        if text.count("{") != text.count("}") or "{" in _PLACEHOLDER.sub("", text):
            self.reading.complain(
                value.place if value else self.reading.entry.place, f"unpaired brace in '{key}'"
            )
        return found


def _is_plain(value: Value, place: Place) -> bool:
    items = getattr(value, "items", [])
    return all(item.plain for item in items if isinstance(item, Scalar) and item.place == place)


def per_evaluation(node: Node, window: int) -> Node:
    """A series as its mean (a condition as its share) over the rule's window; anything else as it is."""
    if node.shape != "series":
        return node
    name = "share" if node.boolean else "mean"
    unit = RATIO if node.boolean else node.unit if not node.unit.literal else NUMBER
    cost = 400 if node.windowed else 4
    return Node(
        "call",
        f"{name}({node.key}, over={float(window)!r})",
        "window",
        unit,
        False,
        (node,),
        name,
        {"over": float(window)},
        reach=node.reach + window,
        lag=node.lag,
        cost=node.cost + cost,
    )
