"""Test cases of rules: series in promtool's notation, and whether the rule must fire or stay silent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from gpudiag.errors import LocatedError, Problem
from gpudiag.message import NOTHING, Message
from gpudiag.rules import document, notation
from gpudiag.rules.document import Document, Scalar
from gpudiag.rules.document import Mapping as Entry
from gpudiag.rules.engine import judge
from gpudiag.rules.judgement import Fired, Judgement
from gpudiag.rules.memory import MemoryReader
from gpudiag.rules.model import PHASES
from gpudiag.rules.reading import Reading
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples
from gpudiag.rules.stretch import Codes
from gpudiag.rules.units import duration
from gpudiag.storage import catalog
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import JOB_PREFIX, NODE, Block, Floats, Source

START_MS = 1_700_000_000_000
Expected = Literal["fires", "silent", "not_evaluated"]
_KEYS = (
    "rule", "name", "expect", "severity", "confidence", "between", "advice", "gpus", "models", "tags", "device", "series",
    "phases", "events", "interval",
)  # fmt: skip
_DEVICE = {
    "memory_total": "memory_total_bytes", "power_limit": "power_limit_watts", "max_clock": "max_sm_clock_hertz",
    "max_link_generation": "max_pcie_link_generation", "max_link_width": "max_pcie_link_width", "nvlink_count": "nvlink_count",
}  # fmt: skip
_DEFAULT_DEVICE = {
    "memory_total": 80 * 2.0**30, "power_limit": 400.0, "max_clock": 1.98e9, "max_link_generation": 4.0, "max_link_width": 16.0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One test case of one rule; `series` by (GPU number or -1 for node and job, metric)."""

    rule: str
    name: str
    expect: Expected
    place: Problem
    gpus: int = 1
    models: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    device: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[tuple[int, str, str], Floats] = field(default_factory=dict)
    phases: tuple[tuple[str, int], ...] = ()
    events: tuple[Event, ...] = ()
    interval: int = 1
    severity: str = ""
    confidence: str = ""
    between: tuple[int, int] | None = None
    advice: str = ""

    @property
    def seconds(self) -> int:
        """Length of the longest series."""
        return max((len(values) for values in self.series.values()), default=0) * self.interval


@dataclass(frozen=True)
class Outcome:
    """What a case did; `failure` is empty when it did as expected."""

    case: Case
    failure: Message = NOTHING


def run_case(case: Case, ruleset: RuleSet) -> Outcome:
    """Judge the case by its rule."""
    if case.rule not in ruleset.rules:
        return Outcome(case, Message("there is no rule '{rule}'", rule=case.rule))
    samples = samples_of(case)
    judgement = judge(samples, ruleset.only([case.rule]), phases=_codes(case, samples.seconds))
    return Outcome(case, _failure(case, judgement))


def samples_of(case: Case) -> JobSamples:
    """The case's series as the samples of a job."""
    job = Job("test/case/0", "case", START_MS, START_MS + 1000 * case.seconds, tags=case.tags)
    gpus = [_gpu(k) for k in range(case.gpus)]
    columns: dict[Source, dict[str, Floats]] = {gpu: {} for gpu in gpus}
    for (number, scope, metric), values in case.series.items():
        source = (
            _gpu(number)
            if scope == "gpu"
            else Source("node", NODE if scope == "node" else f"{JOB_PREFIX}{job.key}")
        )
        columns.setdefault(source, {})[metric] = values
    known = {**_DEFAULT_DEVICE, **case.device}
    attributes = {_DEVICE[name]: value for name, value in known.items()}
    models = case.models or ("Test GPU",) * case.gpus
    devices = [Device(gpu, 0, model=model, **attributes) for gpu, model in zip(gpus, models, strict=False)]  # type: ignore[arg-type]
    reader = MemoryReader(
        {source: _block(source, values, case.interval) for source, values in columns.items()},
        jobs=[job],
        allocations=[Allocation(job.key, gpu, START_MS, None, "test") for gpu in gpus]
        or [Allocation(job.key, Source("node", NODE), START_MS, None, "test")],
        devices=devices,
        events=case.events,
    )
    return JobSamples.read(reader, job, job.end_ms or 0)


def _gpu(number: int) -> Source:
    return Source("node", f"GPU-{number}")


def _block(source: Source, columns: Mapping[str, Floats], interval: int) -> Block:
    length = max((len(values) for values in columns.values()), default=0)
    padded = {
        name: np.concatenate((values, np.full(length - len(values), np.nan)))
        for name, values in columns.items()
    }
    times = START_MS + 500 + 1000 * interval * np.arange(length, dtype=np.int64)
    return Block(source, times, padded)


def _codes(case: Case, seconds: int) -> Codes:
    codes = np.full(seconds, PHASES.index("train"), dtype=np.int8)
    at = 0
    for phase, length in case.phases:
        codes[at : at + length if length else None] = PHASES.index(phase)
        at += length
    return codes


def _failure(case: Case, judgement: Judgement) -> Message:
    fired = [one for one in judgement.fired if one.rule == case.rule]
    reasons = [one.reason for one in judgement.not_evaluated]
    if case.expect == "fires":
        return _wrong_finding(case, fired) if fired else _silent(reasons)
    if fired:
        interval = fired[0].intervals[0]
        begin, end = ((ms - START_MS) // 1000 for ms in (interval.start_ms, interval.end_ms))
        return Message(
            "fired on {device} from {begin} s to {end} s: {summary}",
            device=fired[0].source.device,
            begin=str(begin),
            end=str(end),
            summary=interval.summary,
        )
    if case.expect == "not_evaluated":
        return NOTHING if reasons else Message("was evaluated")
    if not reasons or judgement.excused:
        return NOTHING
    return Message(
        "was not evaluated ({reason}); a silent case needs samples that the rule can judge", reason=reasons[0]
    )


def _silent(reasons: Sequence[str]) -> Message:
    return Message("did not fire: {reason}", reason=reasons[0]) if reasons else Message("did not fire")


def _wrong_finding(case: Case, fired: Sequence[Fired]) -> Message:
    intervals = [interval for one in fired for interval in one.intervals]
    worst = max(intervals, key=lambda interval: interval.severity == "critical")
    if case.severity and all(interval.severity != case.severity for interval in intervals):
        return Message("severity is {found}, expected {wanted}", found=worst.severity, wanted=case.severity)
    if case.confidence and all(interval.confidence != case.confidence for interval in intervals):
        return Message(
            "confidence is {found}, expected {wanted}", found=worst.confidence, wanted=case.confidence
        )
    if case.advice and not any(case.advice in advice.text for i in intervals for advice in i.advice):
        given = "; ".join(advice.text for i in intervals for advice in i.advice)
        return Message("no advice says '{wanted}': {given}", wanted=case.advice, given=given)
    if case.between:
        begin, end = ((ms - START_MS) // 1000 for ms in (intervals[0].start_ms, intervals[-1].end_ms))
        if begin < case.between[0] or end > case.between[1]:
            return Message(
                "fired from {begin} s to {end} s, expected within {earliest} s to {latest} s",
                begin=str(begin),
                end=str(end),
                earliest=str(case.between[0]),
                latest=str(case.between[1]),
            )
    return NOTHING


def missing_cases(ruleset: RuleSet, cases: Iterable[Case]) -> list[Message]:
    """Rules without a case that must fire or without one that must stay silent."""
    have = {(case.rule, case.expect) for case in cases}
    messages = []
    for rule in ruleset:
        for expect in ("fires", "silent"):
            if (rule.id, expect) not in have:
                messages.append(
                    Message(
                        "{place}: rule '{rule}' has no case with 'expect: {expect}'",
                        place=f"{rule.file}:{rule.line}",
                        rule=rule.id,
                        expect=expect,
                    )
                )
    return messages


@cache
def builtin_cases() -> tuple[Case, ...]:
    """The cases that come with the built-in rules."""
    folder = resources.files("gpudiag.rules") / "builtin" / "tests"
    found: list[Case] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            found += read_cases(
                document.parse(f"builtin/tests/{entry.name}", entry.read_text(encoding="utf-8"))
            )
    return tuple(found)


def load_cases(paths: Iterable[Path]) -> list[Case]:
    """The cases under `tests:` of rule files; raises `LocatedError` with every mistake."""
    found: list[Case] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found += read_cases(document.read(path))
        except LocatedError as error:
            problems += error.problems
    if problems:
        raise LocatedError(problems)
    return found


def read_cases(read: Document) -> list[Case]:
    """The cases of one file."""
    if not isinstance(read.root, Entry):
        return []
    top = Reading(read, read.root)
    cases = [case for entry in top.entries("tests") if (case := _CaseReader(entry).case()) is not None]
    read.raise_problems()
    return cases


class _CaseReader:
    """Reads one case."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def case(self) -> Case | None:
        reading = self.reading
        reading.only(_KEYS)
        reading.need(("rule", "expect", "series"))
        place = reading.entry.place
        case = Case(
            rule=reading.text("rule"),
            name=reading.text("name"),
            expect=reading.choice("expect", ("fires", "silent", "not_evaluated"), "fires"),  # type: ignore[arg-type]
            place=Problem(reading.document.name, place.line + 1, place.column + 1, ""),
            gpus=self._count("gpus"),
            models=reading.words("models"),
            tags=reading.words("tags"),
            device={
                name: value for name, (value, _, _) in reading.quantities("device").items() if name in _DEVICE
            },
            series=self._series(),
            phases=self._phases(),
            events=self._events(),
            interval=reading.seconds("interval", 1, least=1, most=120),
            severity=reading.choice("severity", ("info", "warning", "critical", ""), ""),
            confidence=reading.choice("confidence", ("possible", "likely", "confirmed", ""), ""),
            between=self._between(),
            advice=reading.text("advice"),
        )
        return case if reading.ok else None

    def _count(self, key: str) -> int:
        value = self.reading.value(key)
        if value is None:
            return 1
        if not isinstance(value, Scalar) or not value.text.isdigit() or int(value.text) > 64:
            self.reading.complain(value.place, f"'{key}' must be a whole number up to 64")
            return 1
        return int(value.text)

    def _series(self) -> dict[tuple[int, str, str], Floats]:
        value = self.reading.value("series")
        if value is None:
            return {}
        if not isinstance(value, Entry):
            self.reading.complain(value.place, "'series' must be metrics and their samples")
            return {}
        found: dict[tuple[int, str, str], Floats] = {}
        for key, item in value.items.items():
            self._one_series(found, key, value.keys[key], item)
        return found

    def _one_series(
        self, found: dict[tuple[int, str, str], Floats], key: str, place: Scalar, item: document.Value
    ) -> None:
        number, _, name = key.rpartition("/")
        metric = catalog.resolve("gpu", name)
        if metric is None or (number and not number.removeprefix("gpu").isdigit()):
            self.reading.complain(
                place.place, f"'{key}' is no metric; expected a name of the catalog, or gpu0/name for one GPU"
            )
            return
        if not isinstance(item, Scalar):
            self.reading.complain(item.place, "samples such as 0.9x600 were expected")
            return
        try:
            values = notation.series(item.text)
        except notation.NotationError as error:
            self.reading.complain(
                item.place, str(error), sum(1 for c in item.text[: error.offset] if not c.isspace())
            )
            return
        rows = (
            [int(number.removeprefix("gpu"))]
            if number
            else range(self._count("gpus") if metric.scope == "gpu" else 1)
        )
        for row in rows:
            if number or (row, metric.scope, metric.name) not in found:
                found[(row, metric.scope, metric.name)] = values

    def _phases(self) -> tuple[tuple[str, int], ...]:
        value = self.reading.value("phases")
        if value is None:
            return ()
        found = []
        for text, place in self.reading.word_places("phases"):
            phase, _, length = text.partition(" ")
            seconds = duration(length) if length else 0
            if phase not in PHASES or seconds is None:
                self.reading.complain(
                    place, f"'{text}' is no phase and length: expected 'startup 5m' or 'train'"
                )
            else:
                found.append((phase, seconds))
        return tuple(found)

    def _events(self) -> tuple[Event, ...]:
        found: list[Event] = []
        for entry in self.reading.entries("events"):
            entry.only(("kind", "code", "at", "gpu"))
            entry.need(("kind", "at"))
            at = entry.seconds("at", 0)
            gpu, code = entry.text("gpu"), entry.text("code")
            source = _gpu(int(gpu)) if gpu.isdigit() else Source("node", NODE)
            found.append(
                Event(
                    source,
                    START_MS + 1000 * at,
                    entry.text("kind"),
                    int(code) if code.isdigit() else 0,
                    len(found),
                )
            )
            self.reading.ok &= entry.ok
        return tuple(found)

    def _between(self) -> tuple[int, int] | None:
        value = self.reading.value("between")
        if value is None:
            return None
        limits = [duration(text) for text in self.reading.words("between")]
        if len(limits) != 2 or None in limits:
            self.reading.complain(
                value.place, "'between' must be two durations from the start, such as [10m, 30m]"
            )
            return None
        return limits[0] or 0, limits[1] or 0
