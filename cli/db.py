"""`gpudiag db`: status, upgrade, prune and vacuum of a database, on either engine."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.language import speaks

if TYPE_CHECKING:
    from gpudiag.agent.config import Config
    from gpudiag.cli.messages import Words
    from gpudiag.storage.job import Job
    from gpudiag.storage.retention import Policy
    from gpudiag.storage.sqlstore import SqlStore
    from gpudiag.storage.status import Status

_DB = click.option("--db", metavar="URL", help="Database (default: GPUDIAG_DB, then the configured one).")
_CONFIG = click.option("--config", "path", type=click.Path(path_type=Path), help="Configuration file.")
_DAYS = click.FloatRange(min=0)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("db")
def command() -> None:
    """Look after the database: what is in it, its schema, its age and its size."""


@command.command()
@_DB
@_CONFIG
@_JSON
@speaks
def status(db: str | None, path: Path | None, as_json: bool, words: Words) -> None:
    """What is stored, from when to when, how big, and which schema."""
    from gpudiag.cli.progress import busy
    from gpudiag.storage.open import open_sql_reader
    from gpudiag.storage.status import status as read

    reader = open_sql_reader(_url(db, path))
    try:
        with busy(words("counting")):
            found = read(reader)
    finally:
        reader.close()
    click.echo(json.dumps(found.document(), indent=2) if as_json else _status_text(found, words))


@command.command()
@_DB
@_CONFIG
@speaks
def upgrade(db: str | None, path: Path | None, words: Words) -> None:
    """Create or upgrade the schema; on Postgres also add the partitions of the coming week."""
    from gpudiag.cli.progress import busy
    from gpudiag.storage.upgrade import upgrade as run

    url = _url(db, path)
    with busy(words("upgrading")):
        before, after = run(url, _now_ms())
    if before == after:
        change = words("schema {version}, as before", version=str(after))
    else:
        old = str(before) if before else words("none")
        change = words("schema {old} -> {version}", old=old, version=str(after))
    click.echo(words("{place}: {change}", place=_place(url), change=change))


@command.command()
@_DB
@_JSON
@click.option("--raw-days", type=_DAYS, help="Keep samples so long (else storage.keep_samples, 14 days).")
@click.option("--minute-days", type=_DAYS, help="Keep per-minute means so long (else storage.keep_minutes).")
@click.option("--event-days", type=_DAYS, help="Keep events and findings so long (else storage.keep_events).")
@click.option("--job-days", type=_DAYS, help="Keep jobs and reports so long (else storage.keep_jobs).")
@click.option(
    "--max-size", metavar="SIZE", help="Limit such as 20GiB; old samples go first (else storage.max_size)."
)
@click.option(
    "--freeze-hours", type=_DAYS, default=24.0, show_default=True,
    help="Freeze the report of jobs that ended longer ago.",
)  # fmt: skip
@_CONFIG
@speaks
def prune(
    db: str | None,
    as_json: bool,
    raw_days: float | None,
    minute_days: float | None,
    event_days: float | None,
    job_days: float | None,
    max_size: str | None,
    freeze_hours: float,
    path: Path | None,
    words: Words,
) -> None:
    """Freeze the reports of finished jobs, then remove what is older than it should be.

    Meant to run once a day (gpudiag-prune.timer). What is not given comes from the agent's configuration.
    """
    from gpudiag.agent import configfile
    from gpudiag.agent.forwarding import sink_url
    from gpudiag.agent.housekeeping import policy as policy_of
    from gpudiag.cli.progress import busy
    from gpudiag.storage.forward import sink_name
    from gpudiag.storage.open import open_store
    from gpudiag.storage.retention import prune as run

    config = configfile.load(path, os.environ)
    given = {"raw_days": raw_days, "minute_days": minute_days, "event_days": event_days, "job_days": job_days}
    changes: dict[str, Any] = {name: days for name, days in given.items() if days is not None}
    if max_size is not None:
        changes["max_bytes"] = parse_size(max_size)
    policy = replace(policy_of(config.storage), **changes)
    sink = sink_url(config.forward, os.environ)
    store = open_store(_url(db, path), node=os.uname().nodename)
    try:
        frozen = _freeze(store, config, policy, freeze_hours, words)
        with busy(words("removing what is old")):
            pruned = run(store, policy, _now_ms(), sink_name(sink) if sink and store.database.sqlite else "")
            freed = _vacuum_if_shrunk(store)
    finally:
        store.close()
    document = {"schema_version": 1, "frozen_reports": frozen, **vars(pruned), "freed_bytes": freed}
    click.echo(json.dumps(document) if as_json else _pruned_text(document, words))


@command.command()
@_DB
@_CONFIG
@click.option("--full", is_flag=True, help="Rewrite the whole file (needs as much free space again).")
@speaks
def vacuum(db: str | None, path: Path | None, full: bool, words: Words) -> None:
    """Give free space back to the file system."""
    from gpudiag.cli.progress import busy
    from gpudiag.cli.render.units import quantity
    from gpudiag.storage.open import open_store
    from gpudiag.storage.retention import vacuum as run

    store = open_store(_url(db, path), node=os.uname().nodename)
    try:
        with busy(words("giving space back")):
            freed = run(store, full)
    finally:
        store.close()
    click.echo(words("{size} given back", size=quantity(freed, "bytes")))


def _freeze(store: SqlStore, config: Config, policy: Policy, hours: float, words: Words) -> int:
    """Reports of jobs that are over; those whose samples are about to go must not wait."""
    from gpudiag.cli.freeze import freeze
    from gpudiag.cli.progress import progress
    from gpudiag.cli.site import cost_of
    from gpudiag.rules.loader import load

    rules, cost = load(config.rules.paths), cost_of(config.cost)

    wait_ms = int(min(hours * 3_600_000, policy.raw_days * 86_400_000 / 2))
    frozen = 0
    before_ms = _now_ms() - wait_ms
    jobs = [job for job in store.jobs_to_freeze(before_ms) if _is_over(store, job, before_ms)]
    for job in progress(jobs, len(jobs), words("freezing reports")):
        report = freeze(store, job, rules, _now_ms(), cost)
        if report is not None:
            store.put_report(report)
            frozen += 1
    return frozen


def _is_over(store: SqlStore, job: Job, before_ms: int) -> bool:
    """Said to be, or silent for long: then its samples go like those of others."""
    from gpudiag.rules.silence import told_until

    return told_until(store, job, store.allocations(job.key), _now_ms()) < before_ms


def _vacuum_if_shrunk(store: SqlStore) -> int:
    from gpudiag.storage import retention

    return retention.vacuum(store) if retention.worth_vacuuming(store) else 0


def _pruned_text(document: dict[str, Any], words: Words) -> str:
    from gpudiag.cli.render.labels import PRUNED

    done = [words(text, count=str(document[name])) for name, text in PRUNED.items() if document[name]]
    return words("done: {what}", what=words(", ").join(done)) if done else words("nothing to do")


def _status_text(found: Status, words: Words) -> str:
    from gpudiag.cli.render.labels import TABLES
    from gpudiag.cli.render.units import quantity
    from gpudiag.storage.status import iso

    counts = [words(TABLES[name], count=str(count)) for name, count in found.rows.items() if count]
    size = quantity(found.bytes, "bytes")
    lines = [
        words("{place}: schema {schema}, {size}", place=found.place, schema=str(found.schema), size=size),
        words(
            "samples from {begin} to {end}", begin=iso(found.first_ms) or "-", end=iso(found.last_ms) or "-"
        ),
        words("rows: {counts}", counts=words(", ").join(counts) or words("none")),
    ]
    lines += [
        words("not yet forwarded to {sink}: {count} chunks", sink=sink, count=str(count))
        for sink, count in found.sinks.items()
    ]
    return "\n".join(lines)


def parse_size(text: str) -> int:
    """Bytes of `500`, `512MiB`, `20GiB`; raises a usage error."""
    from gpudiag.agent.values import size

    try:
        return int(text) if text.isdigit() else size(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def _url(db: str | None, path: Path | None) -> str:
    from gpudiag.cli.database import database_url

    return database_url(db, os.environ, path)


def _place(url: str) -> str:
    from gpudiag.storage.engine import parse_url, place

    return place(parse_url(url))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
