from __future__ import annotations

from pathlib import Path

import pytest

from gpudiag.errors import InputError, LocatedError
from gpudiag.rules import document, lint, loader
from gpudiag.rules.units import BYTES, RATIO

RULE = """\
gpudiag: 1
rules:
  - id: site/low
    summary: Low.
    severity: warning
    scope: gpu
    window: 5m
    params: {low: 0.5, least: 2GiB}
    let:
      idle: share(sm_active_ratio < low)
    when: idle > 0.5 and max(memory_used_bytes) > least
    for: 1m
    lost: 1 - mean(sm_active_ratio)
    cause: idle
    evidence: [idle, sm_active_ratio]
    hints:
      - tier: quick
        when: idle > 0.9
        do: "Idle {idle} of the time, {memory_used_bytes} used, {lost} lost."
"""


def load(tmp_path: Path, text: str, name: str = "site.yaml") -> loader.RuleSet:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return loader.load([path])


def complaints(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(LocatedError) as caught:
        load(tmp_path, text)
    return [f"{p.line}:{p.column}: {p.message}" for p in caught.value.problems]


def changed(old: str, new: str) -> str:
    assert old in RULE
    return RULE.replace(old, new)


def test_a_rule_is_read_with_all_its_parts(tmp_path: Path):
    rule = load(tmp_path, RULE)["site/low"]
    assert (rule.window, rule.hold, rule.step, rule.severity) == (300, 60, 10, "warning")
    assert rule.params == {"low": (0.5, rule.params["low"][1]), "least": (2.0**31, BYTES)}
    assert rule.requires == ((("gpu", "sm_active_ratio"),), (("gpu", "memory_used_bytes"),))
    assert rule.evidence[1][1].unit == RATIO
    assert set(rule.hints[0].names) == {"idle", "memory_used_bytes", "lost"}
    assert rule.lag == 0


def test_phases_delay_the_windows_until_labels_are_settled(tmp_path: Path):
    rule = load(tmp_path, changed("    window: 5m\n", "    window: 5m\n    phases: [train]\n"))["site/low"]
    assert rule.lag == 20


def test_about_thirty_evaluations_per_window_and_never_finer_than_ten_seconds(tmp_path: Path):
    for window, step in (("1m", 10), ("5m", 10), ("10m", 20), ("1h", 120)):
        assert load(tmp_path, changed("window: 5m", f"window: {window}"))["site/low"].step == step


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("severity: warning", "severty: warning", "5:5: unknown key 'severty'; did you mean 'severity'?"),
        ("severity: warning", "severity: warnin", "5:15: 'warnin' is no severity; did you mean 'warning'?"),
        ("window: 5m", "window: five", "7:13: 'window' must be a duration such as 90s, 5m or 1h"),
        ("window: 5m", "window: 3d", "7:13: 'window' must lie between 10s and 7200s"),
        ("sm_active_ratio < low", "sm_active_rato < low", "10:19: unknown name 'sm_active_rato'"),
        ("id: site/low", "id: low", "3:9: 'low' is no rule id"),
        ("scope: gpu", "scope: gpus", "6:12: 'gpus' is no scope; did you mean 'gpu'?"),
        ("cause: idle", "cause: idling", "14:12: 'idling' is no cause"),
        ("[idle, sm_active_ratio]", "[idle, sm_active]", "15:22: unknown name 'sm_active'"),
        ("tier: quick", "tier: fast", "17:15: 'fast' is no tier"),
        ("{idle} of", "{idel} of", "19:13: unknown name 'idel'; did you mean 'idle'"),
        ("{idle} of", "{idle of", "19:13: "),
        ("least: 2GiB", "least: 2Gigs", "8:31: 'least' must be a number"),
        ("params: {low", "params: {mean", "8:14: the name 'mean' is taken already"),
        ("when: idle > 0.5 and", "when: idle and", "11:11: a condition was expected here"),
        ("lost: 1 - mean(sm_active_ratio)", "lost: mean(memory_used_bytes)", "13:11: 'lost' must be a share"),
        ("    when: idle > 0.5 and max(memory_used_bytes) > least\n", "", "3:5: 'when' is missing"),
        ("summary: Low.", "summary: ''", "4:14: 'summary' is empty"),
        ("for: 1m", "for: [1m]", "12:10: 'for' must be a duration"),
        ("summary: Low.", "summary: *low", "4:14: aliases"),
        ("summary: Low.", "summary: &low Low.", "4:14: anchors"),
        (
            "summary: Low.",
            "summary: Low.\n    summary: Lower.",
            "5:5: 'summary' is given twice; first in line 4",
        ),
        ("gpudiag: 1", "gpudiag: 2", "1:10: this program reads version 1"),
        ("rules:", "rulez:", "2:1: unknown key 'rulez'; did you mean 'rules'?"),
    ],
)
def test_mistakes_have_line_and_column(tmp_path: Path, old: str, new: str, complaint: str):
    found = complaints(tmp_path, changed(old, new))
    assert any(text.startswith(complaint) for text in found), found


def test_a_mistake_in_a_folded_expression_is_found_in_its_own_line(tmp_path: Path):
    text = changed(
        "when: idle > 0.5 and max(memory_used_bytes) > least",
        "when: >-\n      idle > 0.5\n      and max(memory_used_byte) > least",
    )
    assert complaints(tmp_path, text)[0].startswith("13:15: unknown name 'memory_used_byte'")


def test_a_mistake_in_a_quoted_expression_is_found(tmp_path: Path):
    text = changed("when: idle > 0.5 and", 'when: "idle > 0.5 and sm > 3 and').replace(
        "> least\n", '> least"\n'
    )
    assert complaints(tmp_path, text)[0].startswith("11:27: unknown name 'sm'")


def test_all_mistakes_of_all_files_come_at_once(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(
        changed("severity: warning", "severity: bad").replace("scope: gpu", "scope: bad")
    )
    (tmp_path / "b.yaml").write_text("gpudiag: 1\nrules: 3\n")
    (tmp_path / "c.yaml").write_text("- not\n- a rule file\n")
    with pytest.raises(LocatedError) as caught:
        loader.load([tmp_path])
    assert [Path(p.file).name for p in caught.value.problems] == ["a.yaml", "a.yaml", "b.yaml", "c.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "{" * 5000,
        "a: b: c",
        "\t",
        "gpudiag: 1\n---\ngpudiag: 1\n",
        "? {a: b}\n: 1\n",
        "\x00",
    ],
)
def test_broken_yaml_is_one_clear_error(tmp_path: Path, text: str):
    assert complaints(tmp_path, text)


def test_too_many_values_are_refused(tmp_path: Path):
    assert "more than" in complaints(tmp_path, "gpudiag: 1\nrules: [" + "a," * 60_000 + "]")[0]


def test_too_large_a_file_is_refused_before_it_is_parsed(tmp_path: Path):
    with pytest.raises(InputError, match="larger than"):
        load(tmp_path, "#" * (document.MAX_BYTES + 1))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    (tmp_path / "a.yaml").write_bytes(b"gpudiag: 1\nrules: \xff\xfe")
    with pytest.raises(LocatedError, match=r"a\.yaml:2:8: not UTF-8"):
        loader.load([tmp_path / "a.yaml"])


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere\.yaml: no such rule file"):
        loader.load([tmp_path / "nowhere.yaml"])


def test_yaml_words_stay_text(tmp_path: Path):
    text = changed("summary: Low.", "summary: no").replace("site/low", "on/off")
    assert load(tmp_path, text)["on/off"].summary == "no"


def test_a_later_file_replaces_a_rule_by_its_id(tmp_path: Path):
    ruleset = load(tmp_path, RULE.replace("site/low", "util/low-sm-activity"))
    assert ruleset["util/low-sm-activity"].summary == "Low."
    assert len(ruleset) == len(loader.builtin())


def test_the_same_id_twice_in_a_file_is_a_mistake(tmp_path: Path):
    assert "defined twice" in complaints(tmp_path, RULE + RULE.partition("rules:\n")[2])[0]


OVERRIDE = """\
gpudiag: 1
override:
  - id: util/low-sm-activity
    severity: info
    for: 20m
    params: {low: 40%}
  - id: energy/waste
    enabled: false
"""


def test_a_site_changes_fields_and_parameters_by_id(tmp_path: Path):
    ruleset, before = load(tmp_path, OVERRIDE), loader.builtin()
    rule = ruleset["util/low-sm-activity"]
    assert (rule.severity, rule.hold, rule.params["low"][0]) == ("info", 1200, 0.4)
    assert "0.4" in rule.when.key
    assert rule.when.key != before["util/low-sm-activity"].when.key
    assert "energy/waste" not in ruleset.active().rules
    assert "energy/waste" in before.active().rules


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "util/low-sm-activity",
            "util/low-activity",
            "3:9: no rule 'util/low-activity' to override; did you mean",
        ),
        (
            "params: {low: 40%}",
            "params: {lwo: 40%}",
            "6:19: rule 'util/low-sm-activity' has no parameter 'lwo'; did you mean 'low'",
        ),
        ("params: {low: 40%}", "params: {low: 4GiB}", "6:19: parameter 'low' is in"),
        ("severity: info", "scope: job", "4:5: unknown key 'scope'"),
        ("severity: info", "window: 3s", "4:13: 'window' must lie between"),
        ("severity: info", "phases: [training]", "4:14: "),
    ],
)
def test_mistakes_in_overrides_have_line_and_column(tmp_path: Path, old: str, new: str, complaint: str):
    assert complaints(tmp_path, OVERRIDE.replace(old, new))[0].startswith(complaint)


def test_two_overrides_of_one_rule_add_up(tmp_path: Path):
    text = OVERRIDE + "  - id: util/low-sm-activity\n    params: {very_low: 10%}\n"
    rule = load(tmp_path, text)["util/low-sm-activity"]
    assert (rule.params["low"][0], rule.params["very_low"][0], rule.severity) == (0.4, 0.1, "info")


def test_another_window_is_the_one_that_means_go_over(tmp_path: Path):
    text = OVERRIDE + "  - id: util/low-sm-activity\n    window: 90s\n    phases: [warmup, train]\n"
    rule, before = load(tmp_path, text)["util/low-sm-activity"], loader.builtin()["util/low-sm-activity"]
    assert (rule.window, rule.phases, rule.params["low"][0]) == (90, ("warmup", "train"), 0.4)
    assert "over=90.0" in repr([node.key for _, node in rule.evidence])
    assert "over=90.0" not in repr([node.key for _, node in before.evidence])


def test_built_in_rules_have_nothing_to_complain_about():
    assert lint.warnings(loader.builtin(), loader.builtin()) == []


def test_a_rule_without_evidence_or_hints_is_warned_of(tmp_path: Path):
    text = RULE.partition("    evidence:")[0] + "    maturity: stable\n"
    warnings = lint.warnings(loader.check([_written(tmp_path, text)]), loader.builtin())
    assert [line.rpartition(": ")[2][:20] for line in warnings] == [
        "a finding would not ",
        "a finding would not ",
        "say why the conditio",
    ]


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    return path


def test_a_rule_has_the_version_of_its_file_and_of_what_overrides_it(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("gpudiag: 1\noverride:\n  - {id: util/hung, severity: warning}\n")
    before, after = loader.builtin().versions(), loader.load([site]).versions()
    assert {rule for rule in before if before[rule] != after[rule]} == {"util/hung"}
    assert after["util/hung"].startswith(before["util/hung"] + "+")
    site.write_text("gpudiag: 1\noverride:\n  - {id: util/hung, severity: info}\n")
    assert loader.load([site]).versions()["util/hung"] != after["util/hung"]
