"""Documentation says what the program does: each command, key, metric, collector and rule, and the demo's own words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from programs import require

from gpudiag.agent.config import keys
from gpudiag.cli import reference
from gpudiag.cli.main import COMMANDS
from gpudiag.rules.loader import builtin
from gpudiag.storage.catalog import METRICS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
DEMO_REPORT = ROOT / "tests" / "golden" / "demo_report.txt"
Golden = Callable[[str, str], None]


def _region(page: str, name: str, text: str) -> str:
    """The page with what stands between the marks of `name` replaced."""
    pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    assert pattern.search(page), f"the marks of {name} are gone"
    return pattern.sub(lambda marks: marks[1] + text + marks[2], page)


def test_golden_command_line_page(golden: Golden) -> None:
    golden("docs/cli.md", reference.markdown())


def test_golden_manual_page(golden: Golden) -> None:
    golden("docs/gpudiag.1", reference.manual())


def test_the_manual_page_is_good_roff() -> None:
    ran = subprocess.run(
        [require("groff"), "-man", "-Tutf8", "-ww", "-z", str(ROOT / "docs" / "gpudiag.1")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")


def test_golden_readme(golden: Golden) -> None:
    page = README.read_text(encoding="utf-8")
    page = _region(page, "collectors", reference.collectors_table())
    page = _region(page, "rules", reference.rules_table())
    if DEMO_REPORT.exists():
        report = DEMO_REPORT.read_text(encoding="utf-8").strip("\n")
        page = _region(page, "demo", f"```text\n{report}\n```\n")
    golden("README.md", page)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_and_option_is_documented(name: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert f"## gpudiag {name}\n" in page
    for entry in reference.entries():
        if entry.path.split()[0] == name:
            assert entry.paragraphs, f"gpudiag {entry.path} has no help text"
            for names, help in entry.options:
                assert help or "|" in names, f"gpudiag {entry.path} {names} has no help text"


def test_each_configuration_key_is_documented() -> None:
    page = (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")
    assert not [key.path for key in keys() if f"| `{key.name}` |" not in page]


def test_each_metric_is_documented() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert not [name for name, metric in METRICS.items() if f"`{metric.exposition_name}`" not in page]


def test_each_rule_is_documented() -> None:
    page = README.read_text(encoding="utf-8")
    assert not [rule.id for rule in builtin() if f"`{rule.id}`" not in page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


def test_golden_index(golden: Golden) -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    golden("docs/index.md", _region(page, "pages", reference.pages_table(ROOT / "docs")))


def _commands_in(text: str) -> list[list[str]]:
    """The gpudiag commands of indented or fenced code and of `inline code`, without what follows a comment."""
    found = []
    for code in re.findall(r"^(?:    )\$? ?(.*gpudiag .*)$|`(gpudiag [^`]+)`", text, re.MULTILINE):
        line = (code[0] or code[1]).partition(" #")[0]
        found += [part.split() for part in re.findall(r"gpudiag [a-z][^&|;>()]*", line)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_shown_exist_and_take_these_options(page: Path) -> None:
    known = {entry.path: entry for entry in reference.entries()}
    for words in _commands_in(page.read_text(encoding="utf-8")):
        path = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
        name = next((" ".join(path[:n]) for n in (2, 1) if " ".join(path[:n]) in known), "")
        if not name and words[1].isupper():
            continue
        assert name, f"{page.name} shows {' '.join(words)}"
        options = {
            option for names, _ in known[name].options for option in re.findall(r"--?[a-z][a-z-]*", names)
        }
        options |= {"--help", "-h"}
        own = words[: words.index("--")] if "--" in words else words
        shown = {word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)}
        assert shown <= options, f"{page.name}: gpudiag {name} has no {shown - options}"


def test_the_readme_says_what_a_newcomer_needs() -> None:
    page = README.read_text(encoding="utf-8")
    for text in (
        "make demo",
        "make test",
        "gpudiag report --job 42",
        "gpudiag run --job 42 --",
        "Apache-2.0",
    ):
        assert text in page


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert len(text.splitlines()) > 200


def test_every_command_of_the_list_can_be_loaded() -> None:
    from gpudiag.cli.main import cli

    context = click.Context(cli)
    assert all(isinstance(cli.get_command(context, name), click.Command) for name in COMMANDS)
