"""One rule on one node's part of a job: steps through stretches of samples, live one evaluation at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpudiag.message import Message
from gpudiag.rules.episode import Episode, Watch
from gpudiag.rules.judgement import FiredInterval
from gpudiag.rules.kernels import FALSE, TRUE, UNKNOWN, Ints, Trits
from gpudiag.rules.model import CONFIDENCES, Advice, Confidence, Evidence
from gpudiag.rules.node import Node
from gpudiag.rules.ruleset import Hint, Rule
from gpudiag.rules.stretch import Stretch
from gpudiag.rules.units import format_quantity
from gpudiag.rules.view import Bools, Leaves, Settings, Values, View
from gpudiag.storage.sample import Source


@dataclass(frozen=True)
class Moment:
    """What was found at the moment `at` (UNIX seconds) when a rule held worst."""

    at: int
    confidence: Confidence
    summary: str
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, ...]


class Views:
    """The views of one stretch, shared by the rules that agree on their settings."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch
        self._leaves: Leaves = {}
        self._views: dict[tuple[Settings, int, int], View] = {}

    def get(self, rule: Rule, ends: Ints) -> View:
        """The view of `rule` at the evaluations `ends` (indices in the stretch, the lag already taken off)."""
        settings = Settings(rule.scope, rule.phases, rule.step, rule.lag, rule.coverage)
        key = (settings, int(ends[0]), len(ends))
        if key not in self._views:
            self._views[key] = View(self.stretch, settings, ends, self._leaves)
        return self._views[key]


class RuleRun:
    """Follows one rule through time on the sources of one node."""

    def __init__(self, rule: Rule, sources: tuple[Source, ...]) -> None:
        self.rule = rule
        self.sources = sources
        self.watches: list[Watch[Moment]] = [
            Watch(rule.hold, rule.cooldown, patience=max(rule.window, 60)) for _ in sources
        ]
        self.judged = np.zeros(len(sources), dtype=bool)
        self.judged_s = 0  # up to when, UNIX seconds
        self.gated = False
        self.old_enough = False
        self.measured: set[tuple[str, str]] = set()
        self.excused: dict[int, str] = {}

    def with_sources(self, sources: tuple[Source, ...]) -> RuleRun:
        """The same run after sources came or went; those that stay keep their state."""
        kept = dict(zip(self.sources, self.watches, strict=True))
        changed = RuleRun(self.rule, sources)
        changed.watches = [
            kept.get(source, fresh) for source, fresh in zip(sources, changed.watches, strict=True)
        ]
        changed.measured, changed.judged_s = self.measured, self.judged_s
        return changed

    def advance(self, views: Views, times: Ints) -> None:
        """Evaluate at `times` (UNIX seconds, multiples of the rule's step, later than any before)."""
        self.judged_s = int(times[-1])
        ends = times - views.stretch.start_s - self.rule.lag
        view = views.get(self.rule, ends)
        when = self._condition(view, times)
        self.judged |= (when != UNKNOWN).any(axis=1)
        for row, watch in enumerate(self.watches):
            if watch.quiet and not (when[row] == TRUE).any():
                continue
            self._follow(view, row, watch, when[row], times)

    def _condition(self, view: View, times: Ints) -> Trits:
        """`when` with gates and excuses, [rows, evaluations]."""
        need = self._gate(view, times)
        result = np.full(need.shape, UNKNOWN)
        need &= self._required(view)
        if not need.any():
            return result
        value = view.window(self.rule.when, need)
        result = np.where(need, value, UNKNOWN)
        for excuse in self.rule.excuses:
            held = result == TRUE
            if not held.any():
                break
            excused = held & (view.window(excuse.when, held) == TRUE)
            for row in np.flatnonzero(excused.any(axis=1)):
                self.excused.setdefault(int(row), excuse.because)
            result = np.where(excused, FALSE, result)
        return result

    def _gate(self, view: View, times: Ints) -> Bools:
        """Evaluations at which the job is old enough and was in the rule's phases for enough of the window."""
        old = times - view.stretch.job_start_s >= self.rule.min_age
        self.old_enough = self.old_enough or bool(old.any())
        if self.rule.phases:
            old = old & (view.seconds_in_phases(self.rule.window) >= view.required(self.rule.window))
        self.gated = self.gated or bool(old.any())
        return np.broadcast_to(old, (len(self.sources), len(times))).copy()

    def _required(self, view: View) -> Bools:
        """Evaluations in whose window every group of required metrics has a sample."""
        known = view.everywhere()
        for group in self.rule.requires:
            here = np.zeros((1, 1), dtype=bool)
            for key in group:
                sampled = view.sampled(*key, self.rule.window)
                if sampled.any():
                    self.measured.add(key)
                here = here | sampled
            known &= here
        return known

    @property
    def missing(self) -> list[str]:
        """What the rule requires and nothing has measured; alternatives joined by `or`."""
        return [
            " or ".join(name for _, name in group)
            for group in self.rule.requires
            if not self.measured & set(group)
        ]

    def _follow(self, view: View, row: int, watch: Watch[Moment], when: Trits, times: Ints) -> None:
        held = np.zeros((len(self.sources), len(times)), dtype=bool)
        held[row] = when == TRUE
        lost = self._numbers(view, self.rule.lost, row, held)
        critical = self._truths(view, self.rule.critical, row, held)
        others = np.zeros_like(held)
        others[row] = when != TRUE
        clear = self._truths(view, self.rule.clear, row, others)
        for k, now in enumerate(times.tolist()):
            watch.step(
                now,
                int(when[k]),
                None if clear is None else int(clear[k]),
                None if lost is None else float(lost[k]),
                critical is not None and critical[k] == TRUE,
            )
        self._look_closer(view, row, watch, times)
        self._find_ends(view, row, watch, times)

    def _numbers(self, view: View, node: Node | None, row: int, need: Bools) -> Values | None:
        if node is None or not need.any():
            return None
        return _row(view.window(node, need), row, need.shape[1])

    def _truths(self, view: View, node: Node | None, row: int, need: Bools) -> Values | None:
        if node is None:
            return None
        if not need.any():
            return np.full(need.shape[1], UNKNOWN)
        return _row(view.window(node, need), row, need.shape[1])

    def _look_closer(self, view: View, row: int, watch: Watch[Moment], times: Ints) -> None:
        """Evidence at the worst moment of each episode, if that lies in this stretch."""
        candidates = [*watch.closed[-len(times) :], watch.current, watch.pending]
        for episode in candidates:
            if episode is None or episode.worst is None:
                continue
            stale = episode.content is None or episode.content.at != episode.worst
            if stale and times[0] <= episode.worst <= times[-1]:
                column = int(np.searchsorted(times, episode.worst))
                episode.content = self._moment(view, row, column, episode.worst)

    def _find_ends(self, view: View, row: int, watch: Watch[Moment], times: Ints) -> None:
        """Where the trouble of each episode begins and ends, if it was noticed, or gone, in this stretch."""
        for episode in (*watch.closed[-len(times) :], watch.current, watch.pending):
            if episode is None:
                continue
            if self.rule.onset is not None and math.isnan(episode.onset):
                episode.onset = self._at(view, row, self.rule.onset, episode.since, times)
            if self.rule.relief is not None and episode.until is not None and math.isnan(episode.relief):
                episode.relief = self._at(view, row, self.rule.relief, episode.until, times)

    def _at(self, view: View, row: int, node: Node, at: int, times: Ints) -> float:
        if not times[0] <= at <= times[-1]:
            return math.nan
        value = _Look(view, row, int(np.searchsorted(times, at))).number(node)
        return math.nan if value is None else value

    def _shift(self, measured: float) -> int:
        """Seconds from a moment of the trouble to the evaluation that showed it; half a window where nothing says."""
        return self.rule.lag + (self.rule.window // 2 if math.isnan(measured) else round(measured))

    def _moment(self, view: View, row: int, column: int, at: int) -> Moment:
        look = _Look(view, row, column)
        names = {name: look.formatted(node) for name, node in self.rule.names.items()}
        summary = Message(self.rule.summary, **names) if names else Message(self.rule.summary)
        return Moment(
            at,
            self._confidence(look),
            summary,
            tuple(Evidence(name, look.number(node), _unit_name(node)) for name, node in self.rule.evidence),
            tuple(advice for hint in self.rule.hints if (advice := look.advice(hint))),
        )

    def _confidence(self, look: _Look) -> Confidence:
        level = CONFIDENCES.index(self.rule.confidence)
        if look.holds(self.rule.likely):
            level = max(level, CONFIDENCES.index("likely"))
        if look.holds(self.rule.confirmed):
            level = CONFIDENCES.index("confirmed")
        return CONFIDENCES[level]

    def interval(self, episode: Episode[Moment], start_s: int, end_s: int) -> FiredInterval:
        """An episode as an interval within the job's `start_s` to `end_s`."""
        moment = episode.content
        assert moment is not None
        start = max(start_s, episode.since - self._shift(episode.onset))
        end = end_s if episode.until is None else min(end_s, episode.until - self._shift(episode.relief))
        return FiredInterval(
            start * 1000,
            max(end, start + self.rule.step) * 1000,
            episode.until is None,
            (episode.announced or episode.since) * 1000,
            "critical" if episode.critical else self.rule.severity,
            moment.confidence,
            episode.lost,
            moment.summary,
            moment.evidence,
            moment.advice,
        )


class _Look:
    """Reads single values at one row and evaluation."""

    def __init__(self, view: View, row: int, column: int) -> None:
        self._view = view
        self._rows, self._columns = np.array([row]), np.array([column])

    def number(self, node: Node) -> float | None:
        """The value, None when unknown."""
        value = self._view.pair_values(node, self._rows, self._columns)[0]
        if node.boolean:
            return None if value == UNKNOWN else float(value == TRUE)
        return None if np.isnan(value) else float(value)

    def formatted(self, node: Node) -> str:
        value = self.number(node)
        return "unknown" if value is None else format_quantity(value, node.unit)

    def holds(self, node: Node | None) -> bool:
        return node is not None and self.number(node) == 1.0

    def advice(self, hint: Hint) -> Advice | None:
        """The hint with its numbers, None when its condition does not hold or a number is unknown."""
        if hint.when is not None and not self.holds(hint.when):
            return None
        if any(self.number(node) is None for node in hint.names.values()):
            return None
        names = {name: self.formatted(node) for name, node in hint.names.items()}
        return Advice(hint.tier, Message(hint.text, **names) if names else Message(hint.text))


def _row(values: Values, row: int, count: int) -> Values:
    picked = values[row if values.shape[0] > 1 else 0]
    return np.broadcast_to(picked, count)


def _unit_name(node: Node) -> str:
    return "boolean" if node.boolean else str(node.unit)
