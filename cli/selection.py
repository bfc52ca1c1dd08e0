"""Which stored job a person means by `42`, `42_7`, `42+1`, `42.0`, a SLUID, a key or a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.cli.messages import ENGLISH, Speaker
from gpudiag.cli.render.labels import STATES
from gpudiag.cli.render.units import instant
from gpudiag.errors import NotFoundError
from gpudiag.storage.job import Job
from gpudiag.storage.store import JobFilter, Reader


@dataclass(frozen=True)
class Selection:
    """The job picked, and every run that answers to the same name, oldest first (run 1 is the oldest)."""

    job: Job
    runs: tuple[Job, ...]

    @property
    def run(self) -> int:
        """Number of the picked run, from 1."""
        return self.runs.index(self.job) + 1


def select_job(reader: Reader, wanted: str, run: int | None = None) -> Job:
    """The run meant, the latest unless `run` says otherwise. Raises NotFoundError."""
    return select(reader, wanted, run).job


def select(reader: Reader, wanted: str, run: int | None = None) -> Selection:
    """The run meant and the others of that name. Raises NotFoundError with what there is instead."""
    runs = tuple(sorted(_matching(reader, wanted.strip()), key=lambda job: (job.start_ms, job.key)))
    if not runs:
        raise NotFoundError(_nothing_called(reader, wanted))
    if run is None:
        return Selection(runs[-1], runs)
    if not 1 <= run <= len(runs):
        raise NotFoundError(f"job {wanted} has runs 1 to {len(runs)}, not {run}:\n{listing(runs)}")
    return Selection(runs[run - 1], runs)


def listing(runs: Sequence[Job], words: Speaker = ENGLISH) -> str:
    """One line per run: number, start, state, user, key."""
    return "\n".join(
        f"  --run {number}  {instant(job.start_ms)}  {words(STATES.get(job.state, job.state))}  {job.user or '-'}  {job.key}"
        for number, job in enumerate(runs, 1)
    )


def _matching(reader: Reader, wanted: str) -> list[Job]:
    """Jobs called so; a raw id, a step or the only part of an array stands for its job."""
    if not wanted:
        return []
    found = reader.jobs(JobFilter(id=wanted))
    if not found and "." in wanted:  # 42.batch, 42_7.extern: a step of a job
        found = reader.jobs(JobFilter(id=wanted.rpartition(".")[0]))
    exact = [job for job in found if wanted in (job.id, job.key, job.name)]
    if not exact:
        _refuse_array(found, wanted)
    return exact or found


def _refuse_array(jobs: Sequence[Job], wanted: str) -> None:
    parts = sorted({job.id for job in jobs if job.id.startswith((f"{wanted}_", f"{wanted}+"))}, key=_natural)
    if len(parts) > 1:
        shown = ", ".join(parts[:12]) + (f", ... ({len(parts)} in all)" if len(parts) > 12 else "")
        raise NotFoundError(f"{wanted} is an array or heterogeneous job; name one of its parts: {shown}")


def _natural(text: str) -> tuple[int, str]:
    return len(text), text


def _nothing_called(reader: Reader, wanted: str) -> str:
    latest = reader.jobs(JobFilter(limit=5))
    known = ", ".join(dict.fromkeys(job.id for job in latest)) or "none at all"
    return f"no job {wanted!r} in this database; the latest are: {known} (see gpudiag jobs, or name another with --db)"
