"""`gpudiag doctor`: what can be measured here, what cannot, and why; and why a job has no data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.language import speaks

if TYPE_CHECKING:
    from gpudiag.cli.doctor_item import Item
    from gpudiag.cli.messages import Words


@click.command("doctor")
@click.option("--job", "job_id", metavar="ID", help="Why has this job no data, or only a part?")
@click.option(
    "--run", type=int, metavar="N", help="Which run of that id, counted from 1; default the latest."
)
@click.option("--db", metavar="URL", help="Database of --job (default: GPUDIAG_DB, then the configured one).")
@click.option("--config", "path", type=click.Path(path_type=Path), help="Configuration of the agent.")
@click.option("--verbose", is_flag=True, help="Also what works, in detail.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@speaks
def command(
    job_id: str | None,
    run: int | None,
    db: str | None,
    path: Path | None,
    verbose: bool,
    as_json: bool,
    words: Words,
) -> int:
    """What can be measured on this node, what cannot, and why.

    Looks at the driver (through the agent where one runs), permissions, GPU generation, DCGM, control groups, the database,
    clocks, and which rules can be judged with that. With --job: why a job has no data. Exit code 4 when nothing was measured
    for the job, 0 otherwise.
    """
    now_ms = time.time_ns() // 1_000_000
    items, code = _job(job_id, run, db, now_ms) if job_id is not None else (_node(path, now_ms), 0)
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "items": [asdict(item) for item in items]}))
    else:
        click.echo(_text(items, verbose or job_id is not None, words))
    return code


_SHORT = 90


def _node(path: Path | None, now_ms: int) -> list[Item]:
    from gpudiag.agent import configfile
    from gpudiag.cli.doctor_node import Doctor

    return list(Doctor(configfile.load(path, os.environ), os.environ, now_ms).items())


def _job(job_id: str, run: int | None, db: str | None, now_ms: int) -> tuple[list[Item], int]:
    from gpudiag.cli.database import database_url
    from gpudiag.cli.doctor_job import examine
    from gpudiag.cli.selection import select_job
    from gpudiag.storage.open import open_sql_reader

    reader = open_sql_reader(database_url(db, os.environ))
    try:
        job = select_job(reader, job_id, run)
        frozen = reader.report(job.key)
        items = list(examine(reader, job, now_ms, frozen.frozen_ms if frozen else None))
    finally:
        reader.close()
    devices = [item for item in items if item.area == "job" and " " in item.name]
    nothing = not devices or all(item.text.msgid.startswith("no sample") for item in devices)
    return items, 4 if nothing else 0


def _text(items: Iterable[Item], verbose: bool, words: Words) -> str:
    from rich.cells import cell_len

    from gpudiag.cli.render.columns import padded
    from gpudiag.cli.render.labels import HOST_SOURCES, STATES_OF_ITEMS

    signs = {state: words(sign) for state, sign in STATES_OF_ITEMS.items()}
    width = max(map(cell_len, signs.values()))
    lines: list[str] = []
    area = ""
    for item in items:
        if item.area != area:
            area = item.area
            lines += ["", words(area)] if lines else [words(area)]
        text = words(item.text)
        if not verbose and item.state == "ok" and len(text) >= _SHORT:
            text = f"{text[: _SHORT - 3]}..."
        name = HOST_SOURCES.get(item.name, item.name) if item.area == "host" else item.name
        told = words("{name}: {text}", name=words(name), text=text)
        lines.append(f"  {padded(signs[item.state], width)}  {told}")
        if item.remedy:
            lines.append(f"  {' ' * width}  -> {words(item.remedy)}")
    return "\n".join(lines)
