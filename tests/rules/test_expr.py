from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.rules.expr import MAX_LENGTH, Names, parse
from gpudiag.rules.node import ERROR, Node, metrics
from gpudiag.rules.units import (
    BYTES,
    NAMED,
    PLAIN,
    RATIO,
    SECONDS,
    duration,
    format_quantity,
    mismatch,
    quantity,
)


def read(text: str, scope: str = "gpu", **names: object) -> tuple[Node, list[tuple[str, int]]]:
    problems: list[tuple[str, int]] = []
    node = parse(text, Names(scope, 300, **names), lambda message, offset: problems.append((message, offset)))  # type: ignore[arg-type]
    return node, problems


def right(text: str, scope: str = "gpu", **names: object) -> Node:
    node, problems = read(text, scope, **names)
    assert problems == []
    return node


def wrong(text: str, scope: str = "gpu") -> str:
    node, problems = read(text, scope)
    assert problems, f"{text} was accepted as {node.key}"
    return problems[0][0]


@pytest.mark.parametrize(
    ("text", "shape", "boolean", "unit"),
    [
        ("sm_active_ratio", "series", False, RATIO),
        ("mean(sm_active_ratio)", "window", False, RATIO),
        ("sm_active_ratio < 0.3", "series", True, None),
        ("mean(memory_used_bytes) / memory_total", "window", False, None),
        ("slope(memory_used_bytes)", "window", False, NAMED["bytes_per_second"]),
        ("time_to(memory_used_bytes, memory_total)", "window", False, SECONDS),
        ("memory_total - max(memory_used_bytes)", "window", False, BYTES),
        ("2 * GiB", "const", False, BYTES),
        ("0.1 < mean(sm_active_ratio) < 0.3", "window", True, None),
        ("not share(sm_active_ratio < 0.05) > 0.15", "window", True, None),
        ("rate(energy_joules_total)", "window", False, None),
        ("gpus() >= 2 and job_age() > 15 * minute", "window", True, None),
        ('events("xid", 79, 48)', "window", False, NAMED["count"]),
    ],
)
def test_shapes_and_units_are_inferred(text: str, shape: str, boolean: bool, unit: object):
    node = right(text)
    assert (node.shape, node.boolean) == (shape, boolean)
    assert unit in (None, node.unit)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mean(sm_activ_ratio) < 0.5", "did you mean 'sm_active_ratio'"),
        ("men(sm_active_ratio) < 0.5", "did you mean 'mean'"),
        ("mean(memory_used_bytes) > mean(sm_active_ratio)", "bytes and ratio"),
        ("mean(memory_used_bytes) > 100", "write 100 * GiB"),
        ("mean(sm_active_ratio) < 30", "meant 0.3"),
        ("mean(sm_active_ratio) + mean(power_watts) > 3", "watts"),
        ("mean(sm_active_ratio < 0.3) > 1", "needs a value per second"),
        ("share(sm_active_ratio)", "condition per second"),
        ("rate(sm_active_ratio)", "counter"),
        ("bits(sm_active_ratio, 4)", "state"),
        ("mean(sm_active_ratio) and 3", "condition was expected"),
        ("not mean(sm_active_ratio)", "needs a condition"),
        ("mean(sm_active_ratio, ovr=60)", "did you mean 'over'"),
        ("mean(sm_active_ratio, over=7)", "multiple of 10 s"),
        ("mean()", "needs 'x'"),
        ("mean(sm_active_ratio, 3, 4, 5)", "at most"),
        ("quantile(sm_active_ratio, sm_active_ratio)", "plain number"),
        ("phase('trian')", "did you mean 'train'"),
        ("events(79)", "text"),
        ("1 / 0 > 1", "division by zero"),
        ("mean(sm_active_ratio) <", "missing at the end"),
        ("", "empty"),
        ("mean", "is a function"),
        ("default(mean(sm_active_ratio), mean(power_watts))", "ratio and watts"),
        ("default(mean(sm_active_ratio), true)", "same kind"),
        ("gpus_count(mean(sm_active_ratio))", "condition per evaluation"),
    ],
)
def test_mistakes_are_named(text: str, complaint: str):
    assert complaint in wrong(text)


def test_the_place_of_a_mistake_is_told():
    _, problems = read("mean(sm_active_ratio) < 0.5 and mean(gpu_utl_ratio) < 3")
    assert [offset for _, offset in problems] == [
        "mean(sm_active_ratio)<0.5andmean(gpu_utl_ratio)".index("gpu_utl")
    ]


def test_all_mistakes_of_an_expression_are_told_at_once():
    _, problems = read("mean(sm_activ) < 0.5 and mean(memory_used_bytes) > 7 and share(gpu_util_ratio) > 1")
    assert len(problems) == 3


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "sm_active_ratio.__class__",
        "sm_active_ratio[0]",
        "'a' * 99999999",
        "f'{sm_active_ratio}'",
        "2 ** 99999",
        "1 if true else 2",
        "mean(*sm_active_ratio)",
        "mean(**sm_active_ratio)",
        "x := 3",
        "await x",
        "{1: 2}",
        "b'x'",
        "3j",
        "...",
        "None",
        "(" * 300 + "1" + ")" * 300,
        "-" * 900 + "1",
        "1" + "+1" * 450,
        "1e999 > 2",
        "a" * (MAX_LENGTH + 1),
        "mean(sm_active_ratio) < 0.5)(",
        "\0",
        "mean(sm_active_ratio) in 3",
    ],
)
def test_everything_outside_the_language_is_refused(text: str):
    wrong(text)


def test_a_gpu_metric_in_a_rule_of_the_job_needs_an_aggregate():
    assert "gpus_mean" in wrong("mean(sm_active_ratio) < 0.1", scope="job")
    assert right("gpus_max(mean(sm_active_ratio)) < 0.1", scope="job").boolean
    assert "scope is job" in wrong("peers_median(mean(cpu_busy_ratio)) > 0.1", scope="job")
    assert "belongs to a GPU" in wrong("memory_total > 3 * GiB", scope="node")


def test_names_of_the_rule_are_filled_in():
    let = right("share(sm_active_ratio < 0.3)")
    assert (
        right("lost > low", lets={"lost": let}, params={"low": (0.1, RATIO)}).key
        == f"({let.key} > 0.1[ratio])"
    )


def test_equal_expressions_have_equal_keys_whatever_the_spelling():
    assert right("mean( sm_active_ratio )<.5").key == right("mean(sm_active_ratio, over=5*minute) < 0.50").key


def test_reach_and_lag_add_up():
    node = right("share(segments(sm_active_ratio < 0.1, min=2, max=30), over=10*minute)")
    assert (node.reach, node.lag) == (600 + 31, 31)


def test_a_series_compared_with_a_quantile_depends_on_its_window():
    assert right("sm_active_ratio < 0.3 * quantile(sm_active_ratio, 0.9)").windowed
    assert not right("sm_active_ratio < 0.3").windowed


def test_the_metrics_of_an_expression_are_known():
    assert list(metrics(right("mean(loader_cpu_ratio) > mean(sm_active_ratio)"))) == [
        ("job", "loader_cpu_ratio"),
        ("gpu", "sm_active_ratio"),
    ]


terms = st.sampled_from(
    [
        "mean(sm_active_ratio)",
        "max(gpu_util_ratio)",
        "share(sm_active_ratio < 0.5)",
        "0.25",
        "quantile(sm_active_ratio, 0.9)",
    ]
)
conditions = st.builds(
    lambda a, sign, b: f"{a} {sign} {b}", terms, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), terms
)
expressions = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.builds(lambda a, b: f"({a} and {b})", inner, inner),
        st.builds(lambda a, b: f"({a} or {b})", inner, inner),
        st.builds(lambda a: f"not ({a})", inner),
    ),
    max_leaves=8,
)


@given(text=expressions)
def test_every_expression_of_the_grammar_is_accepted(text: str):
    if len(text) <= MAX_LENGTH:
        node, problems = read(text)
        assert problems == []
        assert node.boolean


@given(text=st.text(alphabet="smactive_ratio<>()+-*/ 0.19andort\"'[]{}:;,=\n\t\\é", max_size=60))
def test_no_text_makes_the_reader_fall_over(text: str):
    node, problems = read(text)
    assert problems or node is not ERROR
    for _, offset in problems:
        assert 0 <= offset <= len(text)


@given(text=expressions)
def test_it_reads_only_what_python_would_parse(text: str):
    ast.parse(text, mode="eval")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", (300.0, SECONDS)),
        ("1.5h", (5400.0, SECONDS)),
        ("2GiB", (2.0**31, BYTES)),
        ("50MB/s", (5e7, NAMED["bytes_per_second"])),
        ("30%", (0.3, RATIO)),
        ("85C", (85.0, NAMED["celsius"])),
        ("0.4", (0.4, PLAIN)),
        ("no", None),
        ("5 apples", None),
        ("12:30", None),
    ],
)
def test_quantities_are_read(text: str, expected: object):
    parsed = quantity(text)
    if expected is None:
        assert parsed is None
    else:
        assert parsed is not None
        assert parsed[0] == pytest.approx(expected[0])  # type: ignore[index]
        assert parsed[1] == expected[1]  # type: ignore[index]


def test_power_times_time_is_energy():
    assert NAMED["watts"].times(SECONDS) == NAMED["joules"]
    assert NAMED["joules"].times(SECONDS, -1) == NAMED["watts"]


def test_a_quotient_of_like_quantities_reads_as_a_ratio_but_may_exceed_one():
    quotient = BYTES.times(BYTES, -1)
    assert (str(quotient), format_quantity(0.999, quotient)) == ("ratio", "100 %")
    assert not mismatch(quotient, PLAIN, 3.0)
    assert not mismatch(quotient, RATIO, None)
    assert RATIO.times(RATIO, -1) == quotient
    assert RATIO.times(PLAIN, -1) == RATIO


def test_durations_are_whole_seconds():
    assert duration("2m") == 120
    assert duration("0.5s") is None
    assert duration("3GiB") is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.341, RATIO, "34 %"),
        (0.052, RATIO, "5.2 %"),
        (71.2 * 2**30, BYTES, "71.2 GiB"),
        (750.0, SECONDS, "12 min"),
        (float("inf"), SECONDS, "never"),
        (1.41e9, NAMED["hertz"], "1410 MHz"),
        (float("nan"), RATIO, "unknown"),
        (1000 * 2**20, BYTES, "1000 MiB"),
        (12_365_130.0, NAMED["bytes_per_second"], "12.4 MB/s"),
        (999.9e6, NAMED["bytes_per_second"], "1 GB/s"),
        (16.013, NAMED["celsius"], "16 °C"),
        (146_000.0, NAMED["joules"], "146 kJ"),
        (375.2, NAMED["watts"], "375 W"),
        (0.0359, SECONDS, "35.9 ms"),
        (7.1213, NAMED["count"], "7.12"),
    ],
)
def test_numbers_are_written_for_people(value: float, unit: object, text: str):
    assert format_quantity(value, unit) == text  # type: ignore[arg-type]
