"""`gpudiag rules`: list, check, test and explain rules."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.language import speaks
from gpudiag.errors import NotFoundError

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words
    from gpudiag.rules.testing import Outcome

PATHS = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
WITH = click.option(
    "--rules",
    "extra",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A rule file or folder besides the site's; repeatable.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


@click.group("rules")
def command() -> None:
    """List, check, test and explain rules."""


@command.command("list")
@WITH
@JSON
@click.option("--all", "everything", is_flag=True, help="Also rules that are off.")
@speaks
def list_rules(extra: tuple[Path, ...], as_json: bool, everything: bool, words: Words) -> None:
    """Rules with severity, maturity and what they look for."""
    from gpudiag.cli.render.columns import aligned
    from gpudiag.cli.site import site_rules

    ruleset = site_rules(os.environ, extra)
    shown = [rule for rule in ruleset if everything or (rule.enabled and rule.maturity == "stable")]
    if as_json:
        document = {"schema_version": 1, "rules": [_as_json(rule) for rule in shown]}
        click.echo(json.dumps(document, indent=2))
        return
    rows = [
        (rule.id, words(rule.severity), words(rule.maturity if rule.enabled else "off"), words(rule.summary))
        for rule in shown
    ]
    if rows:
        click.echo("\n".join(aligned(rows)))
    hidden = len(ruleset) - len(shown)
    if hidden:
        click.echo(words("{count} more are off; --all shows them", count=str(hidden)), err=True)


def _as_json(rule: object) -> dict[str, object]:
    from gpudiag.rules.ruleset import Rule

    assert isinstance(rule, Rule)
    return {
        "id": rule.id,
        "summary": rule.summary,
        "severity": rule.severity,
        "maturity": rule.maturity,
        "enabled": rule.enabled,
        "scope": rule.scope,
        "phases": list(rule.phases),
        "window_seconds": rule.window,
        "for_seconds": rule.hold,
        "cause": rule.cause,
        "requires": [" or ".join(name for _, name in group) for group in rule.requires],
        "prefers": [name for _, name in rule.prefers],
        "params": {name: {"value": value, "unit": str(unit)} for name, (value, unit) in rule.params.items()},
        "explains": list(rule.explains),
        "file": rule.file,
        "line": rule.line,
    }


@command.command("check")
@PATHS
@speaks
def check_rules(paths: tuple[Path, ...], words: Words) -> None:
    """Check rule files: every mistake with file, line and column. Without PATHS, the built-in rules."""
    from gpudiag.rules import lint, loader

    ruleset = loader.check(paths) if paths else loader.builtin()
    warnings = lint.warnings(ruleset, loader.load(paths))
    for warning in warnings:
        click.echo(words("warning: {text}", text=words(warning)), err=True)
    click.echo(words("{count} rules ok", count=str(len(ruleset))))


@command.command("test")
@PATHS
@click.option("--rule", "only", multiple=True, help="Only the cases of this rule.")
@click.option("-v", "--verbose", is_flag=True, help="Name every case.")
@speaks
def run_tests(paths: tuple[Path, ...], only: tuple[str, ...], verbose: bool, words: Words) -> int:
    """Run the test cases of rules; fails too when a rule has no case that fires or none that stays silent.

    Without PATHS, the built-in rules and their cases.
    """
    from gpudiag.cli.progress import progress
    from gpudiag.rules import loader, testing

    whole = loader.load(paths)
    mine = loader.check(paths) if paths else whole
    cases = testing.load_cases(loader.files(paths)) if paths else list(testing.builtin_cases())
    if only:
        mine = mine.only([rule_id for rule_id in only if rule_id in mine.rules])
        cases = [case for case in cases if case.rule in only]
    outcomes = [testing.run_case(case, whole) for case in progress(cases, len(cases), words("judging"))]
    missing = testing.missing_cases(mine, cases)
    for line in (
        *_told(outcomes, verbose, words),
        *(words("FAIL {text}", text=words(one)) for one in missing),
    ):
        click.echo(line)
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    summary = words(
        "{passed} of {all} cases pass, {rules} rules, {missing} cases missing",
        passed=str(len(cases) - failed),
        all=str(len(cases)),
        rules=str(len(mine)),
        missing=str(len(missing)),
    )
    click.echo(summary)
    return 1 if failed or missing else 0


def _told(outcomes: Iterable[Outcome], verbose: bool, words: Words) -> Iterator[str]:
    for outcome in outcomes:
        case = outcome.case
        name = f"{case.rule}: {case.name or case.expect}"
        if outcome.failure:
            where = f"{case.place.file}:{case.place.line}"
            yield words("FAIL {text}", text=f"{name} ({where})\n     {words(outcome.failure)}")
        elif verbose:
            yield words("ok   {case}", case=name)


@command.command("explain")
@click.argument("rule_id", metavar="ID")
@click.option("--job", "job_id", help="Show the values of each sub-expression over this job.")
@click.option("--run", type=int, help="Which run, when the job ran several times.")
@click.option("--db", help="Database URL.")
@click.option("--source", help="GPU uuid, node or job source; default: where the rule fired, else the first.")
@WITH
@JSON
@speaks
def explain_rule(
    rule_id: str,
    job_id: str | None,
    run: int | None,
    db: str | None,
    source: str | None,
    extra: tuple[Path, ...],
    as_json: bool,
    words: Words,
) -> None:
    """What a rule looks for, and with --job how its parts developed over a job."""
    from gpudiag.cli.site import site_rules
    from gpudiag.rules import loader

    ruleset = site_rules(os.environ, extra)
    if rule_id not in ruleset.rules:
        raise NotFoundError(f"no rule '{rule_id}'{loader.meant(rule_id, ruleset.rules)}")
    rule = ruleset[rule_id]
    if job_id is None:
        from gpudiag.cli.explain import describe

        document = {"schema_version": 1, **_as_json(rule)}
        click.echo(json.dumps(document, indent=2) if as_json else describe(rule, words))
        return
    _explain_job(rule_id, job_id, run, db, source, ruleset, as_json, words)


def _explain_job(
    rule_id: str,
    job_id: str,
    run: int | None,
    db: str | None,
    source: str | None,
    ruleset: object,
    as_json: bool,
    words: Words,
) -> None:
    import os
    import time

    from gpudiag.cli.database import database_url
    from gpudiag.cli.explain import describe, table
    from gpudiag.cli.progress import busy
    from gpudiag.cli.selection import select_job
    from gpudiag.rules.ruleset import RuleSet
    from gpudiag.rules.samples import JobSamples
    from gpudiag.rules.trace import trace, trace_as_json
    from gpudiag.storage.open import open_reader

    assert isinstance(ruleset, RuleSet)
    reader = open_reader(database_url(db, os.environ))
    try:
        job = select_job(reader, job_id, run)
        with busy(words("judging")):
            samples = JobSamples.read(reader, job, int(time.time() * 1000))
            traced = trace(samples, ruleset, rule_id, source)
    finally:
        reader.close()
    click.echo(
        json.dumps(trace_as_json(traced), indent=2)
        if as_json
        else f"{describe(ruleset[rule_id], words)}\n\n{table(traced, words)}"
    )
