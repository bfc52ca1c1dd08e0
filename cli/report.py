"""`gpudiag report --job 42`: where did the GPU time of a job go, and what to change first?"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.errors import GpudiagError, NotFoundError

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words
    from gpudiag.rules.model import Diagnosis
    from gpudiag.storage.store import Reader

FINDINGS_EXIT = 3


@dataclass(frozen=True)
class Output:
    """How the report is wanted."""

    form: str = "text"
    html: Path | None = None
    verbose: bool = False
    language: str = ""
    ascii_only: bool = False
    colour: str = "auto"


@click.command()
@click.option(
    "--job", "job_id", required=True, metavar="ID", help="42, 42_7, 42+1, 42.0, a SLUID, a key or a name."
)
@click.option(
    "--run", type=int, metavar="N", help="Which run of that name, 1 is the oldest (default: the latest)."
)
@click.option("--db", metavar="URL", help="Database (default: GPUDIAG_DB, then the configured one).")
@click.option("--json", "form", flag_value="json", help="One JSON document.")
@click.option("--markdown", "form", flag_value="markdown", help="Markdown, for a ticket.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="One HTML file."
)
@click.option("--verbose", "-v", is_flag=True, help="All findings, devices, events and rules.")
@click.option(
    "--fail-on", type=click.Choice(["info", "warning", "critical"]), help="Exit 3 at this severity or above."
)
@click.option("--lang", "language", default="", metavar="en|zh", help="Language (default: the locale's).")
@click.option("--ascii", "ascii_only", is_flag=True, help="Plain ASCII only.")
@click.option(
    "--color",
    "colour",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour; auto means on a terminal, unless NO_COLOR is set.",
)
@click.option(
    "--rules",
    "rule_paths",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A rule file or folder besides the site's; repeatable.",
)
def command(
    job_id: str,
    run: int | None,
    db: str | None,
    form: str | None,
    html: Path | None,
    verbose: bool,
    fail_on: str | None,
    language: str,
    ascii_only: bool,
    colour: str,
    rule_paths: tuple[Path, ...],
) -> int:
    """Where did the GPU time of a job go, and what to change first?

    Exit codes: 0 ok, 3 findings at or above --fail-on, 4 no such job or nothing measured, 5 no store.
    """
    output = Output(form or "text", html, verbose, language, ascii_only, colour)
    return report(job_id, run, db, output, fail_on, rule_paths, os.environ)


def report(
    job_id: str,
    run: int | None,
    db: str | None,
    output: Output,
    fail_on: str | None,
    rule_paths: tuple[Path, ...],
    environ: Mapping[str, str],
) -> int:
    """Diagnose a stored job and print it; the exit code. Raises GpudiagError of every kind."""
    from gpudiag.cli.database import database_url
    from gpudiag.cli.freeze import kept_alarms, kept_report, kept_text
    from gpudiag.cli.messages import language_of, load, spoken_on
    from gpudiag.cli.processes import diagnosing
    from gpudiag.cli.selection import listing, select
    from gpudiag.cli.site import prices, site_rules
    from gpudiag.rules.diagnosis import diagnose
    from gpudiag.storage.open import open_reader

    words = load(language_of(output.language, environ))
    rules = site_rules(environ, rule_paths)
    url = database_url(db, environ)
    reader = open_reader(url)
    try:
        selection = select(reader, job_id, run)
        if run is None and len(selection.runs) > 1:
            click.echo(
                words(
                    "{count} runs answer to {id!r}; this is run {run}, the latest:",
                    count=str(len(selection.runs)),
                    id=job_id,
                    run=str(selection.run),
                )
                + "\n"
                + listing(selection.runs, words),
                err=True,
            )
        with diagnosing(reader, url, [selection.job], words) as (read, crew):
            now_ms, cost = time.time_ns() // 1_000_000, prices(environ)
            diagnosis = diagnose(read, selection.job, rules, now_ms=now_ms, cost=cost, crew=crew)
        kept = kept_report(reader, selection.job, diagnosis.coverage.ratio)
        if kept is not None:
            click.echo(kept_text(kept, "html" if output.html else output.form, spoken_on(sys.stdout, words)))
            return FINDINGS_EXIT if kept_alarms(kept, fail_on) else 0
        if not diagnosis.coverage.devices_measured:
            raise NotFoundError(_nothing_measured(job_id, diagnosis.coverage.devices_allocated))
        _write(diagnosis, reader, output, words, environ)
    finally:
        reader.close()
    return exit_code(diagnosis, fail_on)


def exit_code(diagnosis: Diagnosis, fail_on: str | None) -> int:
    """3 when a finding is at or above `fail_on`, else 0."""
    from gpudiag.rules.model import SEVERITIES

    if fail_on is None:
        return 0
    alarming = SEVERITIES[list[str](SEVERITIES).index(fail_on) :]
    return FINDINGS_EXIT if any(finding.severity in alarming for finding in diagnosis.findings) else 0


def _nothing_measured(job_id: str, allocated: int) -> str:
    return (
        f"job {job_id} is known, with {allocated} GPUs, but no sample of them is stored;"
        f" `gpudiag doctor --job {job_id}` says why"
    )


def _write(
    diagnosis: Diagnosis, reader: Reader, output: Output, words: Words, environ: Mapping[str, str]
) -> None:
    if output.html is not None:
        _write_html(diagnosis, reader, output.html, words)
    elif output.form == "json":
        from gpudiag.cli.render import json

        click.echo(json.render(diagnosis, words))
    elif output.form == "markdown":
        from gpudiag.cli.render import markdown
        from gpudiag.cli.render.style import local_zone

        click.echo(markdown.render(diagnosis, words, local_zone()), nl=False)
    else:
        click.echo(render_text(diagnosis, output, words, environ), nl=False)


def render_text(diagnosis: Diagnosis, output: Output, words: Words, environ: Mapping[str, str]) -> str:
    """The terminal report in the style of standard output; English where it cannot show the language."""
    from gpudiag.cli.messages import ENGLISH, spoken_on
    from gpudiag.cli.render import text
    from gpudiag.cli.render.style import terminal_style

    style = terminal_style(environ, sys.stdout, output.colour, output.ascii_only)
    shown = spoken_on(sys.stdout, words) if style.unicode else ENGLISH
    return text.render(diagnosis, shown, style, verbose=output.verbose) + "\n"


def _write_html(diagnosis: Diagnosis, reader: Reader, path: Path, words: Words) -> None:
    from gpudiag.cli.progress import busy
    from gpudiag.cli.render import html
    from gpudiag.cli.render.series import read_charts
    from gpudiag.cli.render.style import local_zone

    charts = read_charts(reader, diagnosis, words("reading"))
    with busy(words("drawing")):
        page = html.render(diagnosis, charts, words, local_zone())
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise GpudiagError(f"cannot write {path}: {error.strerror}") from error
    size = f"{len(page.encode()) / 1e6:.1f} MB"
    click.echo(words("wrote {file} ({size})", file=str(path), size=size), err=True)
