"""The rules on a few labelled jobs of the development set: what must fire, what must stay silent, live as afterwards.

`make bench-rules` measures all of them and the held-out ones; nothing held out is looked at here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from bench.rules.live import afterwards, differences
from bench.rules.outcome import Outcome, examine
from bench.rules.scores import by_rule, matches
from bench.scenarios import development
from bench.scenarios.build import build
from bench.scenarios.reader import RecordingReader
from bench.scenarios.spec import Fault, Scenario, Workload
from bench.scenarios.truth import CAUSES

from gpudiag.rules.loader import builtin
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples

MATURITIES = ("stable",)
STEADY = {
    "comm",
    "launch",
}  # a share of their jobs have steps too short to be resolved; the benchmark counts them


def rules() -> RuleSet:
    return builtin().active(MATURITIES)


def chosen() -> list[Scenario]:
    """One scenario of each family, at about twice the effect that matters."""
    found: dict[str, Scenario] = {}
    for scenario in development.scenarios():
        stable = {rule.id for rule in rules()}
        if (
            len(scenario.expected) != 1
            or scenario.family in STEADY
            or not stable & set(scenario.expected[0].rules)
        ):
            continue
        before = found.get(scenario.family)
        if before is None or abs(scenario.expected[0].margin - 2) < abs(before.expected[0].margin - 2):
            found[scenario.family] = scenario
    return [small(scenario) for scenario in found.values()]


def small(scenario: Scenario) -> Scenario:
    """The same on at most three GPUs, so that the whole test takes a minute."""
    work = replace(scenario.workload, gpus=min(3, scenario.workload.gpus))
    faults = tuple(replace(f, devices=tuple({d % work.gpus for d in f.devices})) for f in scenario.faults)
    return replace(scenario, workload=work, faults=faults)


def healthy() -> list[Scenario]:
    """Every look-alike, cut to three quarters of an hour."""
    return [
        replace(scenario, workload=replace(scenario.workload, hours=min(0.75, scenario.workload.hours), gpus=min(2, scenario.workload.gpus)))
        for scenario in development.scenarios()
        if scenario.healthy
    ]  # fmt: skip


@pytest.fixture(scope="module")
def outcomes() -> Sequence[Outcome]:
    return [examine(scenario, rules()) for scenario in chosen()]


def test_every_family_of_faults_is_found_on_the_right_device_and_in_time(outcomes: Sequence[Outcome]) -> None:
    missed = [
        outcome.scenario.name
        for outcome in outcomes
        if not any(matches(said, outcome.scenario.expected[0], outcome, 0) for said in outcome.said)
    ]
    assert missed == []


def test_nine_of_ten_first_findings_name_the_cause(outcomes: Sequence[Outcome]) -> None:
    wrong = []
    for outcome in outcomes:
        expected, first = outcome.scenario.expected[0], outcome.roots[:1]
        if not first or (first[0].rule not in expected.rules and first[0].cause != expected.cause):
            wrong.append(outcome.scenario.name)
    assert len(wrong) <= 0.1 * len(outcomes), wrong


def test_the_waterfall_is_near_the_truth(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        worst = max(
            (abs(true - got), cause)
            for true, got, cause in zip(outcome.truth, outcome.waterfall, CAUSES, strict=True)
        )
        assert worst[0] < 0.12, (outcome.scenario.name, worst)


def test_look_alikes_raise_no_warning() -> None:
    silent = [examine(scenario, rules()) for scenario in healthy()]
    warned = [
        (outcome.scenario.name, said.rule)
        for outcome in silent
        for said in outcome.roots
        if said.severity != "info" and said.rule not in outcome.scenario.allowed
    ]
    assert warned == []


def test_only_a_few_findings_have_no_such_fault(outcomes: Sequence[Outcome]) -> None:
    false = [(rule, name) for rule, score in by_rule(outcomes).items() for name in score.false]
    assert len(false) <= 0.05 * len(outcomes), false


def test_the_live_engine_says_the_same_of_every_family(outcomes: Sequence[Outcome]) -> None:
    assert [line for outcome in outcomes for line in outcome.live] == []


@pytest.mark.parametrize(
    ("faults", "nodes"),
    [
        ((Fault("cpu_gappy", 0.25), Fault("thermal", 0.3, 0.5, devices=(1,))), 1),
        ((Fault("leak", 25), Fault("xid", 94, devices=(0,))), 1),
        ((Fault("disk_gappy", 0.25),), 2),
    ],
)
def test_the_live_engines_say_the_same_every_ten_seconds(faults: tuple[Fault, ...], nodes: int) -> None:
    work = Workload(hours=0.8, gpus=2, nodes=nodes, checkpoint_every=500, checkpoint_length=30, memory=0.5)
    recording = build(Scenario("live", "live", 3, work, faults))
    samples = JobSamples.read(RecordingReader(recording), recording.job, 0)
    assert len(afterwards(samples, rules())) >= 2
    assert differences(recording, samples, rules()) == []
