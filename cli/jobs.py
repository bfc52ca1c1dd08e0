"""`gpudiag jobs`: which jobs there are, and which of them wasted most."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.language import speaks
from gpudiag.errors import InputError

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words
    from gpudiag.rules.model import Diagnosis
    from gpudiag.storage.frozen import FrozenReport
    from gpudiag.storage.job import Job
    from gpudiag.storage.store import Reader

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_WORST = 20


@dataclass(frozen=True)
class Row:
    """A job of the list. What only a diagnosis knows is None when none was made.

    `diagnosed`: "now", or "when frozen" for what its kept report says; None without either.
    """

    job: Job
    nodes: tuple[str, ...]
    gpus: int
    gpu_hours: float
    lost_gpu_hours: float | None = None
    cause: str | None = None
    severity: str | None = None
    verdict: str | None = None
    diagnosed: str | None = None


@click.command()
@click.option("--db", metavar="URL", help="Database (default: GPUDIAG_DB, then the configured one).")
@click.option("--user", default="", help="Only this user's.")
@click.option("--state", default="", help="running, completed, failed, cancelled, timeout, oom or unknown.")
@click.option("--node", default="", help="Only jobs with a device on this node.")
@click.option("--since", metavar="TIME", help="Still running then or later: 24h, 7d, 2026-03-01 or ISO 8601.")
@click.option("--until", metavar="TIME", help="Started before: 24h ago, or a date.")
@click.option("--cause", default="", help="Only those whose largest loss has this cause (diagnoses each).")
@click.option(
    "--lost", type=float, metavar="HOURS", help="Only those that lost as many GPU-hours (diagnoses each)."
)
@click.option(
    "--severity", type=click.Choice(["info", "warning", "critical"]), help="With such a finding or above."
)
@click.option("--worst", is_flag=True, help="Those that lost most first (diagnoses each).")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Jobs looked at, latest first."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@speaks
def command(
    db: str | None,
    user: str,
    state: str,
    node: str,
    since: str | None,
    until: str | None,
    cause: str,
    lost: float | None,
    severity: str | None,
    worst: bool,
    limit: int,
    as_json: bool,
    words: Words,
) -> None:
    """List jobs by user, time, state, verdict or lost GPU-hours.

    What was lost is known of jobs whose report was frozen; --worst, --cause, --lost and --severity diagnose the others,
    which takes a second or two for each. In JSON it is null where neither was done, and `diagnosed` says which.
    """
    from gpudiag.cli.database import database_url
    from gpudiag.storage.open import open_reader
    from gpudiag.storage.store import JobFilter

    now_ms = time.time_ns() // 1_000_000
    wanted = JobFilter(
        user=user,
        state=state,
        node=node,
        start_ms=moment(since, now_ms),
        end_ms=moment(until, now_ms),
        limit=limit,
    )
    url = database_url(db, os.environ)
    reader = open_reader(url)
    try:
        jobs = reader.jobs(wanted)
        judged = bool(worst or cause or severity or lost is not None)
        rows = (
            _diagnosed(reader, url, jobs, now_ms, words)
            if judged
            else [known_row(reader, job, now_ms) for job in jobs]
        )
    finally:
        reader.close()
    rows = chosen(rows, cause, lost, severity)
    if worst:
        rows = sorted(rows, key=lambda row: -(row.lost_gpu_hours or 0.0))[:_WORST]
    click.echo(as_document(rows, words) if as_json else as_text(rows, words, os.environ), nl=as_json)


def moment(text: str | None, now_ms: int) -> int | None:
    """UNIX milliseconds of `24h` (ago), a date or an ISO 8601 time (local when without offset). Raises InputError."""
    if not text:
        return None
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])(?:\s+ago)?", text.strip())
    if ago:
        return now_ms - int(float(ago[1]) * _UNITS[ago[2]] * 1000)
    try:
        return int(datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        raise InputError(
            f"{text!r} is no time: expected 24h, 7d, 2026-03-01 or 2026-03-01T12:00:00+01:00"
        ) from None


def chosen(rows: Iterable[Row], cause: str, lost: float | None, severity: str | None) -> list[Row]:
    """Rows that pass the filters which need a diagnosis."""
    from gpudiag.rules.model import SEVERITIES

    order: list[str] = list(SEVERITIES)
    return [
        row
        for row in rows
        if (not cause or row.cause == cause)
        and (lost is None or (row.lost_gpu_hours or 0.0) >= lost)
        and (
            severity is None
            or (row.severity is not None and order.index(row.severity) >= order.index(severity))
        )
    ]


def plain_row(reader: Reader, job: Job, now_ms: int) -> Row:
    """A row from the job's own records, without a diagnosis."""
    allocations = [one for one in reader.allocations(job.key) if one.source.scope == "gpu"]
    end_ms = now_ms if job.end_ms is None else job.end_ms
    spans = [max((end_ms if one.end_ms is None else one.end_ms) - one.start_ms, 0) for one in allocations]
    return Row(
        job,
        tuple(sorted({one.source.node for one in allocations})),
        len({one.source for one in allocations}),
        sum(spans) / 3.6e6,
    )


def known_row(reader: Reader, job: Job, now_ms: int) -> Row:
    """A row without a diagnosis; of what one would say, what the job's frozen report has."""
    from gpudiag.cli.freeze import frozen_report

    row, report = plain_row(reader, job, now_ms), frozen_report(reader, job)
    return row if report is None else _frozen_row(row, report)


def _diagnosed(reader: Reader, url: str, jobs: Sequence[Job], now_ms: int, words: Words) -> list[Row]:
    """Rows of a diagnosis made now, or of the frozen report where that knew more."""
    from gpudiag.cli.freeze import kept_report
    from gpudiag.cli.processes import diagnosing
    from gpudiag.cli.site import site_rules
    from gpudiag.rules.diagnosis import diagnose

    rules, rows = site_rules(os.environ), []
    with diagnosing(reader, url, jobs, words) as (read, crew):
        for job in jobs:
            row = plain_row(reader, job, now_ms)
            diagnosis = diagnose(read, job, rules, now_ms=now_ms, crew=crew)
            kept = kept_report(reader, job, diagnosis.coverage.ratio)
            rows.append(_judged_row(row, diagnosis) if kept is None else _frozen_row(row, kept))
    return rows


def _judged_row(row: Row, diagnosis: Diagnosis) -> Row:
    from gpudiag.cli.render.summary import lost_buckets

    losses = lost_buckets(diagnosis.waterfall)
    return replace(
        row,
        lost_gpu_hours=sum(bucket.gpu_hours for bucket in losses),
        cause=losses[0].cause if losses else None,
        severity=_worst_severity(finding.severity for finding in diagnosis.findings),
        verdict=diagnosis.verdict,
        diagnosed="now",
    )


def _frozen_row(row: Row, report: FrozenReport) -> Row:
    from gpudiag.cli.render.summary import lost_buckets
    from gpudiag.rules.model import Bucket

    document = report.document
    losses = lost_buckets([Bucket(**bucket) for bucket in document["waterfall"]["buckets"]])
    return replace(
        row,
        lost_gpu_hours=report.lost_gpu_hours,
        cause=losses[0].cause if losses else None,
        severity=_worst_severity(finding["severity"] for finding in document["findings"]),
        verdict=report.verdict,
        diagnosed="when frozen",
    )


def _worst_severity(severities: Iterable[str]) -> str | None:
    from gpudiag.rules.model import SEVERITIES

    order: list[str] = list(SEVERITIES)
    return max(severities, key=order.index, default=None)


def as_document(rows: Sequence[Row], words: Words) -> str:
    """The list as JSON; null where no diagnosis was made."""
    from gpudiag.cli.render.json import SCHEMA_VERSION, job_fields

    jobs = [
        {
            **job_fields(row.job),
            "nodes": list(row.nodes),
            "devices": row.gpus,
            "gpu_hours": round(row.gpu_hours, 6),
            "lost_gpu_hours": None if row.lost_gpu_hours is None else round(row.lost_gpu_hours, 6),
            "cause": row.cause,
            "severity": row.severity,
            "verdict": None if row.verdict is None else words(row.verdict),
            "diagnosed": row.diagnosed,
        }
        for row in rows
    ]
    return json.dumps({"schema_version": SCHEMA_VERSION, "jobs": jobs}, ensure_ascii=False, indent=2)


def as_text(rows: Sequence[Row], words: Words, environ: Mapping[str, str]) -> str:
    """A table on a terminal, tab-separated lines in a pipe."""
    from rich.table import Table

    from gpudiag.cli.render.style import terminal_style

    style = terminal_style(environ)
    head, lines = _cells(rows, words, style.zone)
    if not sys.stdout.isatty():
        return "\n".join("\t".join(line) for line in [head, *lines]) + "\n"
    if not rows:
        return words("no jobs") + "\n"
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in head:
        table.add_column(name, no_wrap=name == head[0])
    for line in lines:
        table.add_row(*line)
    return style.print([table]) + "\n"


def _cells(rows: Sequence[Row], words: Words, zone: Any) -> tuple[list[str], list[list[str]]]:
    from gpudiag.cli.render import labels
    from gpudiag.cli.render.units import duration, harmless, instant, percent

    judged = any(row.lost_gpu_hours is not None for row in rows)
    head = [
        words(name) for name in ("job", "name", "user", "state", "start", "length", "nodes", "GPUs", "GPU-h")
    ]
    head += [words(name) for name in labels.LOSS_COLUMNS] if judged else []
    lines = []
    for row in rows:
        job = row.job
        length = "-" if job.end_ms is None else duration((job.end_ms - job.start_ms) / 1000)
        nodes = ",".join(row.nodes) if len(row.nodes) <= 2 else str(len(row.nodes))
        line = [
            job.id,
            job.name,
            job.user,
            words(labels.STATES.get(job.state, job.state)),
            instant(job.start_ms, zone),
        ]
        line += [length, nodes, str(row.gpus), f"{row.gpu_hours:.1f}"]
        if judged:
            lost = row.lost_gpu_hours
            share = "-" if lost is None or not row.gpu_hours else percent(lost / row.gpu_hours)
            cause = words(labels.CAUSES.get(row.cause, row.cause)) if row.cause else "-"
            line += [
                "-" if lost is None else f"{lost:.2f}",
                share,
                cause,
                words(labels.SEVERITIES[row.severity]) if row.severity else "-",
            ]
        lines.append([harmless(cell) or "-" for cell in line])
    return head, lines
