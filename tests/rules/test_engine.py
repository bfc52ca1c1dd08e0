from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.rules import engine, loader
from gpudiag.rules.engine import judge
from gpudiag.rules.episode import Watch
from gpudiag.rules.judgement import Fired, FiredInterval, Judgement, explain_away
from gpudiag.rules.kernels import FALSE, TRUE, UNKNOWN
from gpudiag.rules.memory import MemoryReader
from gpudiag.rules.model import PHASES
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.run import Views
from gpudiag.rules.samples import JobSamples
from gpudiag.rules.stretch import Stretch
from gpudiag.rules.view import View
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.sample import Block, Source

START = 1_700_000_000_000
GPUS = tuple(Source("n1", f"GPU-{k}") for k in range(8))
NAN = float("nan")

HEAD = """\
gpudiag: 1
rules:
  - id: site/test
    summary: "Only {activity} active."
    severity: warning
    maturity: stable
    scope: gpu
    window: 1m
    let: {activity: mean(sm_active_ratio)}
    when: activity < 0.5
    lost: 1 - activity
    evidence: [activity, power_watts]
    hints:
      - {tier: quick, do: "Raise {activity}."}
      - {tier: medium, do: "Look at {power_watts}."}
      - {tier: deep, when: activity < 0.1, do: "Nothing works."}
"""


def rules(tmp_path: Path, extra: str = "", text: str = HEAD) -> RuleSet:
    path = tmp_path / "rules.yaml"
    path.write_text(text + extra)
    return loader.check([path])


def samples(
    *levels: np.ndarray, tags: tuple[str, ...] = (), power: float | None = None, nodes: int = 1
) -> JobSamples:
    length = len(levels[0])
    job = Job("local/42/1", "42", START, START + 1000 * length, tags=tags)
    times = START + 1000 * np.arange(length, dtype=np.int64) + 100
    gpus = [Source(f"n{k % nodes + 1}", f"GPU-{k}") for k in range(len(levels))]
    extra = {} if power is None else {"power_watts": np.full(length, power)}
    blocks = {
        gpu: Block(gpu, times, {"sm_active_ratio": level, **extra})
        for gpu, level in zip(gpus, levels, strict=True)
    }
    reader = MemoryReader(
        blocks,
        jobs=[job],
        allocations=[Allocation(job.key, gpu, START, None, "hook") for gpu in gpus],
        devices=[Device(gpu, 0, model="A100") for gpu in gpus],
    )
    return JobSamples.read(reader, job, 0)


def pieces(*parts: tuple[float, int]) -> np.ndarray:
    return np.concatenate([np.full(length, level) for level, length in parts])


def look(data: JobSamples, ruleset: RuleSet, phase: str = "train") -> Judgement:
    return judge(data, ruleset, phases=np.full(data.seconds, PHASES.index(phase), dtype=np.int8))


def intervals(judgement: Judgement) -> list[tuple[float, float]]:
    return [
        ((i.start_ms - START) / 1000, (i.end_ms - START) / 1000)
        for one in judgement.fired
        for i in one.intervals
    ]


def test_an_interval_covers_the_trouble_itself(tmp_path: Path):
    found = look(samples(pieces((0.9, 600), (0.1, 600), (0.9, 600))), rules(tmp_path))
    [(begin, end)] = intervals(found)
    assert begin == pytest.approx(600, abs=10)
    assert end == pytest.approx(1200, abs=10)


def builtin(rule: str, level: np.ndarray) -> list[tuple[int, int]]:
    """Seconds from the job's start at which a built-in rule's intervals begin and end."""
    found = judge(samples(level), loader.builtin().only([rule]))
    return [
        ((i.start_ms - START) // 1000, (i.end_ms - START) // 1000)
        for one in found.fired
        for i in one.intervals
    ]


@pytest.mark.parametrize(
    ("before", "missing", "after"), [(3600, 300, 3600), (3600, 1800, 1800), (0, 1200, 3600)]
)
def test_the_interval_of_missing_data_is_where_they_are_missing(before: int, missing: int, after: int):
    [(begin, end)] = builtin("data/quality", pieces((0.6, before), (NAN, missing), (0.6, after)))
    assert abs(begin - before) <= 20  # the step of the rule
    assert abs(end - before - missing) <= 20


def test_an_idle_gpu_is_idle_from_its_first_idle_second():
    [(begin, end)] = builtin("util/allocated-idle", pieces((0.6, 3600), (0.0, 2400), (0.6, 1800)))
    assert 0 <= begin - 3600 <= 30
    assert 0 <= end - 6000 <= 60


def test_errors_are_told_from_the_first_to_the_last(tmp_path: Path):
    text = """
    cooldown: 10m
    onset: 10 * second
    relief: 1 * minute
"""
    counted = HEAD.replace("when: activity < 0.5", "when: seconds(sm_active_ratio < 0.1) > 0")
    found = judge(
        samples(pieces((0.6, 900), (0.0, 1), (0.6, 200), (0.0, 1), (0.6, 900))),
        rules(tmp_path, text, counted),
    )
    [interval] = found.fired[0].intervals
    assert (interval.start_ms - START) // 10_000 == 90
    assert (interval.end_ms - START) // 10_000 in (110, 111)


def test_a_finding_has_evidence_confidence_and_only_advice_it_can_fill_in(tmp_path: Path):
    [one] = look(samples(pieces((0.9, 300), (0.2, 600))), rules(tmp_path)).fired
    [interval] = one.intervals
    assert interval.summary == "Only 20 % active."
    assert interval.confidence == "possible"
    assert [(e.name, e.value) for e in interval.evidence] == [
        ("activity", pytest.approx(0.2)),
        ("power_watts", None),
    ]
    assert [advice.text for advice in interval.advice] == ["Raise 20 %."]
    assert interval.lost == pytest.approx(0.78, abs=0.03)


def test_it_must_hold_before_it_fires(tmp_path: Path):
    ruleset = rules(tmp_path, "    for: 3m\n")
    assert look(samples(pieces((0.9, 300), (0.1, 150), (0.9, 600))), ruleset).passed == ("site/test",)
    assert look(samples(pieces((0.9, 300), (0.1, 400), (0.9, 600))), ruleset).fired


def test_it_stops_only_when_clear_holds(tmp_path: Path):
    level = pieces((0.9, 300), (0.3, 300), (0.55, 300), (0.9, 300))
    [(_, without)] = intervals(look(samples(level), rules(tmp_path)))
    [(_, with_clear)] = intervals(look(samples(level), rules(tmp_path, "    clear: activity > 0.7\n")))
    assert without == pytest.approx(600, abs=20)
    assert with_clear == pytest.approx(900, abs=30)


def test_a_cooldown_joins_what_comes_back(tmp_path: Path):
    level = pieces((0.9, 300), (0.1, 300), (0.9, 200), (0.1, 300), (0.9, 300))
    assert len(intervals(look(samples(level), rules(tmp_path)))) == 2
    assert len(intervals(look(samples(level), rules(tmp_path, "    cooldown: 10m\n")))) == 1


def test_an_unfinished_finding_is_open_and_ends_with_the_job(tmp_path: Path):
    [one] = look(samples(pieces((0.9, 300), (0.1, 300))), rules(tmp_path)).fired
    assert one.intervals[0].open
    assert intervals(look(samples(pieces((0.9, 300), (0.1, 300))), rules(tmp_path)))[0][1] == 600


def test_a_gap_closes_a_finding_where_it_was_last_seen(tmp_path: Path):
    level = pieces((0.9, 300), (0.1, 300), (NAN, 900), (0.9, 300))
    [(_, end)] = intervals(look(samples(level), rules(tmp_path)))
    assert end < 900


def test_one_missing_sample_changes_nothing(tmp_path: Path):
    level = pieces((0.9, 900))
    level[::7] = NAN
    assert look(samples(level), rules(tmp_path)).passed == ("site/test",)


@pytest.mark.parametrize(
    ("level", "extra", "tags", "reason"),
    [
        (pieces((NAN, 900)), "", (), "not measured: sm_active_ratio"),
        (pieces((0.1, 900)), "    phases: [eval]\n", (), "too little time in phase eval"),
        (pieces((0.1, 300)), "    min_age: 10m\n", (), "the job ran 5 min, the rule needs 10 min"),
        (pieces((0.1, 900)), "    unless_tags: [debug]\n", ("debug",), "the job is tagged debug"),
        (
            np.where(np.arange(900) % 80 < 40, 0.1, NAN),
            "    coverage: 0.9\n",
            (),
            "less than 90 % of every window",
        ),
        (pieces((0.1, 20)), "", (), "a window is 60 s"),
    ],
)
def test_why_a_rule_could_not_be_judged(
    tmp_path: Path, level: np.ndarray, extra: str, tags: tuple[str, ...], reason: str
):
    [told] = look(samples(level, tags=tags), rules(tmp_path, extra)).not_evaluated
    assert reason in told.reason


def test_a_comparison_needs_somebody_to_compare_with(tmp_path: Path):
    text = HEAD.replace("activity < 0.5", "activity < 0.8 * peers_median(activity)")
    [told] = look(samples(pieces((0.1, 900))), rules(tmp_path, text=text)).not_evaluated
    assert "no other GPU" in told.reason


def test_gpus_of_other_nodes_are_no_peers(tmp_path: Path):
    text = HEAD.replace("activity < 0.5", "activity < 0.8 * peers_median(activity)")
    data = samples(pieces((0.4, 900)), pieces((0.9, 900)), pieces((0.4, 900)), pieces((0.9, 900)), nodes=2)
    assert not look(data, rules(tmp_path, text=text)).fired
    assert [
        one.source
        for one in look(samples(pieces((0.4, 900)), pieces((0.9, 900))), rules(tmp_path, text=text)).fired
    ] == [GPUS[0]]


def test_a_look_alike_is_excused_with_its_reason(tmp_path: Path):
    extra = "    exceptions:\n      - {when: mean(power_watts) > 200, because: it works hard anyway}\n"
    found = look(samples(pieces((0.1, 900)), power=300.0), rules(tmp_path, extra))
    assert found.passed == ("site/test",)
    assert found.excused == (("site/test", GPUS[0], "it works hard anyway"),)


def test_severity_and_confidence_rise_with_the_evidence(tmp_path: Path):
    extra = (
        "    critical: activity < 0.2\n    likely: activity < 0.45\n    confirmed: mean(power_watts) > 100\n"
    )
    ruleset = rules(tmp_path, extra)
    for level, power, severity, confidence in [
        (0.48, None, "warning", "possible"),
        (0.4, None, "warning", "likely"),
        (0.1, 300.0, "critical", "confirmed"),
    ]:
        [one] = look(samples(pieces((level, 900)), power=power), ruleset).fired
        assert (one.intervals[0].severity, one.intervals[0].confidence) == (severity, confidence)


def test_every_rule_is_in_exactly_one_list():
    found = look(samples(pieces((0.9, 4000)), pieces((0.2, 4000))), loader.builtin())
    named = [*{one.rule for one in found.fired}, *found.passed, *(one.rule for one in found.not_evaluated)]
    assert sorted(named) == sorted(loader.builtin().rules)


def test_the_result_does_not_depend_on_how_time_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    level = 0.6 + 0.3 * np.sin(np.arange(5000) / 200)
    ruleset = RuleSet({**rules(tmp_path, "    for: 1m\n").rules, **loader.builtin().rules})
    whole = look(samples(level, level[::-1].copy()), ruleset)
    for seconds in (130, 700, 3600):
        monkeypatch.setattr(engine, "CHUNK_S", seconds)
        assert look(samples(level, level[::-1].copy()), ruleset) == whole
    assert whole.fired


def test_nothing_is_said_about_a_job_without_devices():
    job = Job("local/1/1", "1", START, START + 900_000)
    found = judge(
        JobSamples.read(MemoryReader(jobs=[job]), job, 0),
        loader.builtin(),
        phases=np.zeros(900, dtype=np.int8),
    )
    assert (found.fired, found.passed) == ((), ())
    assert len(found.not_evaluated) == len(loader.builtin())


def fired(rule: str, source: Source, *spans: tuple[int, int]) -> Fired:
    whole = tuple(
        FiredInterval(a * 1000, b * 1000, False, b * 1000, "warning", "likely", 0.1, "", (), ())
        for a, b in spans
    )
    return Fired(rule, source, "idle", whole)


def test_a_symptom_yields_to_the_cause_that_covers_it():
    symptom, cause = fired("util/low", GPUS[0], (0, 1000)), fired("input/cpu", GPUS[0], (100, 900))
    found = explain_away([symptom, cause], {"input/cpu": ("util/low",)})
    assert [one.explained_by for one in found] == ["input/cpu", ""]


@pytest.mark.parametrize(
    "cause",
    [
        fired("input/cpu", GPUS[1], (0, 1000)),
        fired("input/cpu", GPUS[0], (0, 300)),
        fired("other", GPUS[0], (0, 1000)),
    ],
    ids=["another GPU", "only a third of the time", "a rule that does not explain it"],
)
def test_a_symptom_stands_when_nothing_explains_it(cause: Fired):
    found = explain_away([fired("util/low", GPUS[0], (0, 1000)), cause], {"input/cpu": ("util/low",)})
    assert found[0].explained_by == ""


def test_a_cause_on_the_node_explains_symptoms_of_its_gpus():
    cause = fired("memory/host-swap", Source("n1", "node"), (0, 1000))
    found = explain_away([fired("util/low", GPUS[0], (0, 1000)), cause], {"memory/host-swap": ("util/low",)})
    assert found[0].explained_by == "memory/host-swap"


trits = st.lists(st.sampled_from([int(FALSE), int(UNKNOWN), int(TRUE)]), min_size=1, max_size=60)


@given(trits, st.integers(0, 40), st.integers(0, 60))
def test_episodes_never_overlap_and_last_as_long_as_asked(values: list[int], hold: int, cooldown: int):
    watch: Watch[None] = Watch(hold=hold, cooldown=cooldown, patience=30)
    for k, value in enumerate(values):
        watch.step(10 * k, value, None, 0.5 if value == TRUE else None, False)
    ends = 0
    for episode in watch.episodes:
        assert episode.since >= ends
        assert episode.announced is not None
        assert episode.announced - episode.since >= hold
        assert episode.lost == 0.5
        ends = episode.until if episode.until is not None else episode.last_true
        assert ends >= episode.since
    if TRUE not in values:
        assert not watch.episodes


@given(trits)
def test_a_rule_without_hold_fires_at_the_first_true(values: list[int]):
    watch: Watch[None] = Watch(hold=0, cooldown=0, patience=30)
    for k, value in enumerate(values):
        watch.step(10 * k, value, None, None, False)
    if TRUE in values:
        assert watch.episodes[0].since == 10 * values.index(TRUE)


def test_the_worst_moment_is_the_one_with_the_highest_loss():
    watch: Watch[None] = Watch(hold=0, cooldown=0, patience=30)
    for now, lost in ((10, 0.2), (20, 0.7), (30, 0.7), (40, 0.1)):
        watch.step(now, int(TRUE), None, lost, now == 20)
    assert watch.current is not None
    assert (watch.current.worst, watch.current.lost, watch.current.critical) == (
        20,
        pytest.approx(0.425),
        True,
    )


def test_without_a_loss_a_finding_keeps_what_it_said_when_it_came_or_became_critical():
    watch: Watch[None] = Watch(hold=0, cooldown=0, patience=30)
    for now, critical, kept in ((10, False, 10), (20, False, 10), (30, True, 30), (40, True, 30)):
        watch.step(now, int(TRUE), None, None, critical)
        assert watch.current is not None
        assert watch.current.worst == kept


class Endless(MemoryReader):
    """Any number of GPUs, made up when they are read."""

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: object = None) -> Block:
        times = np.arange(max(start_ms, START), end_ms, 1000, dtype=np.int64)
        names = [str(name) for name in metrics] if isinstance(metrics, list | tuple) else []
        return Block(source, times, {name: np.full(len(times), 0.9) for name in names})


def peak_memory(nodes: int) -> int:
    job = Job("local/42/1", "42", START, START + 900_000)
    gpus = [Source(f"n{k // 8}", f"GPU-{k}") for k in range(8 * nodes)]
    reader = Endless(jobs=[job], allocations=[Allocation(job.key, gpu, START, None, "hook") for gpu in gpus])
    data = JobSamples.read(reader, job, 0, cache_bytes=2**21)
    labels = np.full(data.seconds, PHASES.index("train"), dtype=np.int8)
    tracemalloc.start()
    judge(data, loader.builtin(), phases=labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_what_a_node_took_is_free_without_the_collector(tmp_path: Path):
    """Arrays in reference cycles would wait for it, one node's on top of another's."""
    data = samples(pieces((0.9, 900), (0.1, 900)))
    gc.collect()
    gc.disable()
    try:
        assert look(data, rules(tmp_path)).fired
        left = [one for one in gc.get_objects() if isinstance(one, View | Views | Stretch)]
    finally:
        gc.enable()
    assert left == []


def test_memory_does_not_grow_with_the_number_of_gpus():
    peak_memory(1)
    assert peak_memory(6) < 1.3 * peak_memory(1)
