"""`gpudiag export`: a job's samples as a trace that pandas, DuckDB and `gpudiag import` read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.language import speaks

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words


@click.command("export")
@click.option("--job", "job_id", required=True, metavar="ID", help="Job to export: 42, 42_7, a name, a key.")
@click.option(
    "--run", type=int, metavar="N", help="Which run of that id, counted from 1; default the latest."
)
@click.option("--db", metavar="URL", help="Database (default: GPUDIAG_DB, then the configured one).")
@click.option(
    "--format", type=click.Choice(["csv", "jsonl", "parquet"]), help="Default: by the suffix, else csv."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File; default job-ID.FORMAT."
)
@speaks
def command(
    job_id: str, run: int | None, db: str | None, format: str | None, output: Path | None, words: Words
) -> None:
    """Write the samples of a job, and what the job was in a JSON file beside them."""
    from gpudiag.cli.database import database_url
    from gpudiag.cli.progress import watched
    from gpudiag.cli.selection import select_job
    from gpudiag.errors import NotFoundError
    from gpudiag.storage.open import open_reader
    from gpudiag.storage.trace import format_of, reads, write_trace

    reader = open_reader(database_url(db, os.environ))
    try:
        job = select_job(reader, job_id, run)
        path = output or Path(f"job-{job.id}.{format or 'csv'}")
        now_ms = int(time.time() * 1000)
        with watched(reader, reads(reader, job, now_ms), words("writing {file}", file=path.name)) as read:
            rows = write_trace(path, read, job, now_ms, format or format_of(path))
        if not rows:
            raise NotFoundError(f"job {job.id} has no samples (any more)")
    finally:
        reader.close()
    click.echo(
        words(
            "{rows} rows of job {id} in {file}, the job itself in {description}",
            rows=str(rows),
            id=job.id,
            file=str(path),
            description=str(path.with_suffix(".json")),
        )
    )
