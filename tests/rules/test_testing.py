from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Gpudiag
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.cli.main import main
from gpudiag.errors import LocatedError
from gpudiag.rules import document, loader, notation, testing
from gpudiag.rules.notation import NotationError

BUILTIN = loader.builtin()


@pytest.mark.parametrize("rule_id", BUILTIN.rules)
def test_built_in_rules_do_what_their_cases_say(rule_id: str):
    cases = [case for case in testing.builtin_cases() if case.rule == rule_id]
    outcomes = [testing.run_case(case, BUILTIN) for case in cases]
    assert [(one.case.name, one.failure) for one in outcomes if one.failure] == []


def test_every_built_in_rule_has_a_case_that_fires_and_one_that_stays_silent():
    assert testing.missing_cases(BUILTIN, testing.builtin_cases()) == []


def test_a_rule_without_cases_is_reported():
    assert testing.missing_cases(BUILTIN.only(["energy/waste"]), []) == [
        f"builtin/energy.yaml:{BUILTIN['energy/waste'].line}: rule 'energy/waste' has no case with 'expect: fires'",
        f"builtin/energy.yaml:{BUILTIN['energy/waste'].line}: rule 'energy/waste' has no case with 'expect: silent'",
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.9", [0.9]),
        ("0.9x2", [0.9, 0.9, 0.9]),
        ("1+0.5x3", [1, 1.5, 2, 2.5]),
        ("1-0.5x2", [1, 0.5, 0]),
        ("_", [np.nan]),
        ("_x3 1", [np.nan, np.nan, np.nan, 1]),
        ("(1 2x1)*2", [1, 2, 2, 1, 2, 2]),
        ("((1)*2 3)*2", [1, 1, 3, 1, 1, 3]),
        ("2KiB+1KiBx1 1MB/s", [2048, 3072, 1e6]),
        ("50%x1", [0.5, 0.5]),
        ("", []),
    ],
)
def test_series_are_written_as_promtool_does(text: str, values: list[float]):
    np.testing.assert_allclose(notation.series(text), values)


def test_noise_is_bounded_and_always_the_same():
    values = notation.series("0.9~0.05x500")
    assert np.abs(values - 0.9).max() <= 0.05
    assert values.std() > 0.01
    np.testing.assert_array_equal(values, notation.series("0.9~0.05x500"))


@pytest.mark.parametrize(
    "text", ["0.9y3", "x3", "1+x3", "(1", "1)", "(1)", "5apples", "1x999999999", "(1x9999)*9999", "1~2~3"]
)
def test_what_is_no_series_is_refused(text: str):
    with pytest.raises(NotationError):
        notation.series(text)


@given(st.text(alphabet="0123456789.x+-~_ ()*%GiB/s", max_size=40))
def test_no_text_makes_the_notation_fall_over(text: str):
    offset = 0
    try:
        notation.series(text)
    except NotationError as error:
        offset = error.offset
    assert 0 <= offset <= len(text)


CASE = """\
gpudiag: 1
tests:
  - rule: util/low-sm-activity
    name: Idle
    expect: fires
    series:
      sm_active_ratio: 0.2x2400
"""


def cases(text: str) -> list[testing.Case]:
    return testing.read_cases(document.parse("cases.yaml", text))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("expect: fires", "expect: fire", "5:13: 'fire' is no expect; did you mean 'fires'?"),
        ("expect: fires", "expekt: fires", "5:5: unknown key 'expekt'; did you mean 'expect'?"),
        ("sm_active_ratio:", "sm_active:", "7:7: 'sm_active' is no metric"),
        ("0.2x2400", "0.2xx2400", "7:24: '0.2xx2400' is no sample"),
        ("0.2x2400", "0.3x4 0.2y4", "7:30: '0.2y4' is no sample"),
        ("    series:", "    gpus: many\n    series:", "6:11: 'gpus' must be a whole number"),
        ("    series:", "    phases: [training]\n    series:", "6:14: 'training' is no phase and length"),
        ("    series:", "    between: [1m]\n    series:", "6:14: 'between' must be two durations"),
    ],
)
def test_mistakes_in_cases_have_line_and_column(old: str, new: str, complaint: str):
    with pytest.raises(LocatedError) as caught:
        cases(CASE.replace(old, new))
    told = [f"{problem.line}:{problem.column}: {problem.message}" for problem in caught.value.problems]
    assert any(one.startswith(complaint) for one in told), told


@pytest.mark.parametrize(
    ("old", "new", "failure"),
    [
        ("0.2x2400", "0.9x2400", "did not fire"),
        ("fires\n", "silent\n", "fired on GPU-0"),
        ("fires\n", "not_evaluated\n", "fired on GPU-0"),
        ("fires\n", "fires\n    severity: info\n", "severity is critical, expected info"),
        ("fires\n", "fires\n    confidence: confirmed\n", "expected confirmed"),
        ("fires\n", "fires\n    advice: buy more GPUs\n", "no advice says"),
        ("fires\n", "fires\n    between: [30m, 40m]\n", "expected within"),
        ("util/low-sm-activity", "util/none", "there is no rule"),
        (
            "fires\n    series:\n      sm_active_ratio",
            "silent\n    series:\n      power_watts",
            "was not evaluated",
        ),
    ],
)
def test_a_case_that_does_not_hold_says_how(old: str, new: str, failure: str):
    [case] = cases(CASE.replace(old, new))
    assert failure in testing.run_case(case, BUILTIN).failure


def test_a_single_gpu_of_a_case_can_differ():
    text = CASE.replace("    series:", "    gpus: 3\n    series:").replace(
        "0.2x2400", "0.9x2400\n      gpu1/sm_active_ratio: 0.1x2400"
    )
    [case] = cases(text)
    samples = testing.samples_of(case)
    means = [np.nanmean(samples.series(gpu, "sm_active_ratio")) for gpu in samples.sources("gpu")]
    np.testing.assert_allclose(means, [0.9, 0.1, 0.9])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["rules", *arguments])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_the_list_shows_stable_rules_and_all_on_request(capsys: pytest.CaptureFixture[str]):
    status, short, _ = run(capsys, "list")
    _, long, _ = run(capsys, "list", "--all")
    assert status == 0
    assert "util/low-sm-activity" in short
    assert len(long.splitlines()) == len(BUILTIN)
    assert len(short.splitlines()) == len(BUILTIN.active())


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]):
    listed = json.loads(run(capsys, "list", "--all", "--json")[1])
    assert listed["schema_version"] == 1
    assert {rule["id"] for rule in listed["rules"]} == set(BUILTIN.rules)


def test_check_names_every_mistake_and_exits_with_two(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "a.yaml").write_text("gpudiag: 1\nrules:\n  - id: a/b\n    severty: high\n")
    status, _, told = run(capsys, "check", str(tmp_path))
    assert status == 2
    assert f"{tmp_path}/a.yaml:4:5: unknown key 'severty'; did you mean 'severity'?" in told
    assert "^" in told


def test_check_of_the_built_in_rules(capsys: pytest.CaptureFixture[str]):
    status, told, warnings = run(capsys, "check")
    assert (status, warnings) == (0, "")
    assert f"{len(BUILTIN)} rules ok" in told


SITE = """\
gpudiag: 1
rules:
  - {id: site/hot, summary: Hot., severity: warning, scope: gpu, window: 1m, when: mean(temperature_celsius) > 90}
tests:
  - {rule: site/hot, expect: fires, series: {temperature_celsius: 95x300}}
"""


def test_own_rules_are_tested_with_their_own_cases(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    status, told, _ = run(capsys, "test", str(path))
    assert status == 1
    assert "rule 'site/hot' has no case with 'expect: silent'" in told
    path.write_text(SITE + "  - {rule: site/hot, expect: silent, series: {temperature_celsius: 60x300}}\n")
    status, told, _ = run(capsys, "test", str(path))
    assert (status, told) == (0, "2 of 2 cases pass, 1 rules, 0 cases missing\n")


def test_a_failing_case_is_shown_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "site.yaml"
    path.write_text(SITE.replace("95x300", "85x300"))
    status, told, _ = run(capsys, "test", str(path))
    assert status == 1
    assert f"({path}:5)" in told
    assert "did not fire" in told


def test_explain_says_what_a_rule_looks_at(capsys: pytest.CaptureFixture[str]):
    status, told, _ = run(capsys, "explain", "memory/gpu-oom-imminent")
    assert status == 0
    assert "windows of 10 min every 20 s" in told
    assert "concordance(memory_used_bytes) >= agreeing" in told


def test_explain_of_an_unknown_rule_suggests_one(capsys: pytest.CaptureFixture[str]):
    status, _, told = run(capsys, "explain", "util/low-activity")
    assert status == 4
    assert "did you mean 'util/low-sm-activity'?" in told


def test_explain_shows_each_part_over_a_job(gpudiag: Gpudiag, demo_database: str):
    told = gpudiag(
        "rules", "explain", "memory/gpu-oom-imminent", "--job", "42", "--db", demo_database, "--json"
    )
    assert told.code == 0
    traced = json.loads(told.out)
    parts = {part["expression"]: part["values"] for part in traced["parts"]}
    assert traced["outcome"].startswith("fired")
    assert {0.0, 1.0} <= set(parts["when"])
    assert len(parts["eta < horizon"]) == len(traced["times"])
    text = gpudiag("rules", "explain", "memory/gpu-oom-imminent", "--job", "42", "--db", demo_database)
    assert "risen_share >= least_rise" in text.out
    assert len(text.out.splitlines()[-1].split("  ")) > 10


def test_explain_of_a_source_that_is_not_there(gpudiag: Gpudiag, demo_database: str):
    told = gpudiag(
        "rules",
        "explain",
        "memory/gpu-oom-imminent",
        "--job",
        "42",
        "--db",
        demo_database,
        "--source",
        "GPU-x",
    )
    assert told.code == 4
    assert "the rule looks at no source 'GPU-x'" in told.err
