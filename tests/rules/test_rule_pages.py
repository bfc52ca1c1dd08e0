"""The manual of the rules says what the rules are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudiag.rules import catalogue, loader, rule_reader, testing
from gpudiag.rules.functions import FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]
LANGUAGE = ROOT / "docs" / "rule-language.md"
Golden = Callable[[str, str], None]


def region(page: str, name: str, text: str) -> str:
    return re.sub(
        rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)",
        lambda marks: marks[1] + text + marks[2],
        page,
        flags=re.DOTALL,
    )


def blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", LANGUAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_golden_page_of_all_rules(golden: Golden):
    golden("docs/rules.md", catalogue.rules_page(loader.builtin()))


def test_golden_tables_of_the_language(golden: Golden):
    page = LANGUAGE.read_text(encoding="utf-8")
    page = region(page, "functions", "\n" + catalogue.functions_tables() + "\n")
    golden("docs/rule-language.md", region(page, "names", "\n" + catalogue.names_tables() + "\n"))


def test_every_rule_has_cause_evidence_and_action_on_its_page():
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    for rule in loader.builtin():
        section = page.partition(f"### {rule.id}\n")[2].partition("\n### ")[0]
        for wanted in ("**cause**", "**evidence**", "Action:", "- *quick*"):
            assert wanted in section, f"{rule.id}: {wanted}"


def test_every_function_and_field_is_on_the_language_page():
    page = LANGUAGE.read_text(encoding="utf-8")
    assert [name for name in FUNCTIONS if f"`{name}(" not in page] == []
    assert [key for key in rule_reader.KEYS if f"| `{key}` |" not in page] == []


@pytest.mark.parametrize("number", range(3))
def test_every_example_file_of_the_page_is_right(tmp_path: Path, number: int):
    path = tmp_path / "example.yaml"
    path.write_text(blocks()[number], encoding="utf-8")
    ruleset = loader.load([path])
    outcomes = [testing.run_case(case, ruleset) for case in testing.load_cases([path])]
    assert [one.failure for one in outcomes if one.failure] == []
    assert outcomes or number == 1


def test_every_field_of_the_table_has_an_example_that_is_read(tmp_path: Path):
    page = (
        LANGUAGE.read_text(encoding="utf-8")
        .partition("## Fields of a rule")[2]
        .partition("## Expressions")[0]
    )
    examples = re.findall(r"^\| `(\w+)` \|.*\| `(.*)` \|$", page, re.MULTILINE)
    assert [key for key, _ in examples] == [key for key, example in examples if example.startswith(f"{key}:")]
    base = {
        "id": "id: a/b",
        "summary": "summary: x",
        "severity": "severity: info",
        "scope": "scope: gpu",
        "window": "window: 5m",
    }
    base["let"] = "let: {activity: mean(sm_active_ratio)}"
    base["params"] = "params: {low: 0.5, least: 2GiB}"
    base["lost"] = "lost: share(sm_active_ratio < 0.1)"
    for key, example in examples:
        lines = {"when": "when: activity < low", **base, key: example}
        path = tmp_path / "one.yaml"
        path.write_text("gpudiag: 1\nrules:\n  - " + "\n    ".join(lines.values()) + "\n", encoding="utf-8")
        assert len(loader.check([path])) == 1, example


def test_expressions_shown_on_the_page_are_right():
    from gpudiag.rules.expr import Names, parse

    page = LANGUAGE.read_text(encoding="utf-8").partition("## Expressions")[2].partition("Allowed are")[0]
    shown = [line.strip().partition("#")[0] for line in page.splitlines() if line.startswith("    ")]
    assert len(shown) == 5
    for text in shown:
        problems: list[str] = []
        parse(text, Names("gpu", 300), lambda message, _, told=problems: told.append(message))
        assert not problems, text
