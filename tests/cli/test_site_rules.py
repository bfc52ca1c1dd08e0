"""Rule files that the site has configured count wherever stored jobs are judged, as they do live."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Gpudiag

RULE = "input/cpu-bound-loader"
QUIET = "gpudiag: 1\noverride:\n  - {id: input/cpu-bound-loader, enabled: false}\n"


@pytest.fixture
def demo(gpudiag: Gpudiag, demo_database: str, monkeypatch: pytest.MonkeyPatch) -> Gpudiag:
    """The command line on the demo's database."""
    monkeypatch.setenv("GPUDIAG_DB", demo_database)
    return gpudiag


@pytest.fixture
def site(demo: Gpudiag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpudiag:
    """The same where the site has switched the rule off."""
    path = tmp_path / "site.yaml"
    path.write_text(QUIET)
    monkeypatch.setenv("GPUDIAG_RULES__PATHS", str(path))
    return demo


COMMANDS = {
    "report": ("report", "--job", "42", "--json"),
    "compare": ("compare", "42", "42", "--json"),
    "jobs": ("jobs", "--worst", "--json"),
}


def findings(gpudiag: Gpudiag) -> set[str]:
    document = json.loads(gpudiag("report", "--job", "42", "--json").out)
    return {finding["rule"] for finding in document["findings"]}


def test_a_report_goes_by_the_rules_of_the_site(site: Gpudiag) -> None:
    assert RULE not in findings(site)
    assert "clocks/thermal-throttle" in findings(site)


def test_without_configured_rules_the_built_in_ones_judge(demo: Gpudiag) -> None:
    assert RULE in findings(demo)


def test_a_list_of_rules_and_the_alerts_are_those_of_the_site(site: Gpudiag) -> None:
    assert RULE not in site("rules", "list").out
    assert RULE not in site("alerts").out
    assert "clocks/thermal-throttle" in site("alerts").out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_rule_file_that_is_not_there_is_one_clear_error(
    demo: Gpudiag, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("GPUDIAG_RULES__PATHS", "/nowhere/site.yaml")
    done = demo(*COMMANDS[command])
    assert (done.code, done.err) == (2, "gpudiag: /nowhere/site.yaml: no such rule file or folder\n")
