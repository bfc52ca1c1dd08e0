"""`gpudiag import`: read a log that somebody else recorded as one job, so that `gpudiag report` can judge it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.language import speaks
from gpudiag.errors import InputError
from gpudiag.message import Message

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words
    from gpudiag.storage.job import Allocation, Device, Event, Job
    from gpudiag.storage.nvidia_smi_csv import Log
    from gpudiag.storage.sample import Block, Frame
    from gpudiag.storage.store import Store


@dataclass(frozen=True)
class Recording:
    """Everything a file says about one job; `batches` come in time order."""

    job: Job
    blocks: tuple[Block, ...]
    devices: tuple[Device, ...]
    allocations: tuple[Allocation, ...]
    batches: Iterable[list[Frame]]
    samples: int
    notes: tuple[Message, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def gpus(self) -> int:
        """Devices among the sources; the host and the job's share of it are none."""
        return sum(block.source.scope == "gpu" for block in self.blocks)


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--job", "job_id", default="", metavar="ID", help="Id to store it under, such as 42 or a name.")
@click.option("--db", metavar="URL", help="Database (default: GPUDIAG_DB, then the configured one).")
@click.option("--node", metavar="NAME", help="Node the log came from, when it has no column hostname.")
@click.option("--timezone", "zone", default="", metavar="ZONE", help="Zone of times without an offset.")
@click.option("--date-format", default="", metavar="FORMAT", help="strptime format of unusual times.")
@click.option(
    "--columns", default="", metavar="LIST", help="What --query-gpu was given, for a log without header."
)
@click.option("--name", default="", help="Name of the job.")
@click.option("--user", default="", help="Who ran the job.")
@click.option("--json", "as_json", is_flag=True, help="Print what was stored as JSON.")
@speaks
def command(
    files: tuple[Path, ...],
    job_id: str,
    db: str | None,
    node: str | None,
    zone: str,
    date_format: str,
    columns: str,
    name: str,
    user: str,
    as_json: bool,
    words: Words,
) -> None:
    """Read logs of one job and store them.

    FILES are logs of `nvidia-smi --query-gpu=... --format=csv -l 1`, or one trace (NAME.csv with columns
    time,node,device,..., .parquet, .jsonl). All columns nvidia-smi knows are understood; a mistake anywhere
    stores nothing. Times without an offset are read in this machine's zone unless --timezone says otherwise.
    """
    recording = _recording(files, job_id, node, zone, date_format, _split(columns), name, user, words)
    added = _store(recording, db, words)
    click.echo(json.dumps(_document(recording, added)) if as_json else _text(recording, added, db, words))


def _split(columns: str) -> tuple[str, ...]:
    return tuple(column.strip() for column in columns.split(",") if column.strip())


def _recording(
    files: Sequence[Path],
    job_id: str,
    node: str | None,
    zone: str,
    date_format: str,
    columns: tuple[str, ...],
    name: str,
    user: str,
    words: Words,
) -> Recording:
    if is_trace(files[0]):
        return _from_trace(files, job_id, name, user, words)
    if not job_id or job_id != job_id.strip() or not job_id.isprintable() or "/" in job_id:
        raise InputError(f"--job {job_id!r}: expected the id to store this log under, such as --job 42")
    from gpudiag.storage.log_time import zone as parse_zone
    from gpudiag.storage.nvidia_smi_csv import Options, read

    options = Options(node or f"log-{job_id}", parse_zone(zone), date_format, columns)
    log = read(files, options, lambda path: _watched(path, words))
    return _from_log(log, _job(log, files, job_id, name, user))


def _watched(path: Path, words: Words) -> Iterator[str]:
    """The lines of a file, with a bar on a terminal when there are many."""
    from gpudiag.cli.progress import progress
    from gpudiag.storage.log_text import read_lines

    return progress(read_lines(path), _about_lines(path), words("reading {file}", file=path.name))


def _about_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
        return path.stat().st_size * head.count(b"\n") // max(len(head), 1)
    except OSError:
        return 0


def is_trace(path: Path) -> bool:
    """By its suffix, or by a header with the columns `time`, `node` and `device`."""
    if path.suffix in (".parquet", ".jsonl"):
        return True
    from gpudiag.storage.log_text import cells, read_lines

    header = cells(next(read_lines(path), ""), ",")
    return {"time", "node", "device"} <= set(header)


def _from_trace(files: Sequence[Path], job_id: str, name: str, user: str, words: Words) -> Recording:
    from gpudiag.cli.progress import busy
    from gpudiag.storage.trace import read_trace

    if len(files) > 1:
        raise InputError("expected one trace at a time; logs of nvidia-smi can be given together")
    with busy(words("reading {file}", file=files[0].name)):
        trace = read_trace(files[0], job_id, name=name, user=user)
    job = trace.job
    if not trace.exported:  # an exported job comes back exactly as it was
        job = replace(job, meta={**job.meta, "imported_from": [files[0].name], "digest": _digest(files)})
    return Recording(
        job,
        trace.blocks,
        trace.devices,
        trace.allocations,
        trace.batches(),
        sum(_measured(block) for block in trace.blocks),
        trace.notes,
        trace.events,
    )


def _measured(block: Block) -> int:
    """Instants at which anything was."""
    import numpy as np

    return int(np.count_nonzero(~np.isnan(list(block.columns.values())).all(axis=0)))


def _job(log: Log, files: Sequence[Path], job_id: str, name: str, user: str) -> Job:
    from gpudiag.storage.job import Job
    from gpudiag.storage.trace_job import refuse_endless

    refuse_endless(log.start_ms, log.end_ms, str(files[0]))
    return Job(
        key=f"import/{job_id}/{log.start_ms // 1000}",
        id=job_id,
        start_ms=log.start_ms,
        end_ms=log.end_ms,
        cluster="import",
        raw_id=job_id,
        name=name or files[0].stem,
        user=user,
        meta={"imported_from": [path.name for path in files], "digest": _digest(files)},
    )


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _from_log(log: Log, job: Job) -> Recording:
    from gpudiag.storage.job import Allocation

    notes = list(log.notes)
    if log.ignored_columns:
        told = "columns that gpudiag has no use for: {columns}"
        notes.append(Message(told, columns=", ".join(log.ignored_columns)))
    return Recording(
        job,
        log.blocks,
        log.devices,
        tuple(Allocation(job.key, block.source, job.start_ms, job.end_ms, "import") for block in log.blocks),
        log.batches(),
        sum(len(block) for block in log.blocks),
        tuple(notes),
    )


def _store(recording: Recording, db: str | None, words: Words) -> int | None:
    """Store what is not there yet and give the number of new samples, None when the job is there; the job comes last, when all of it is there."""
    from gpudiag.cli.database import database_url
    from gpudiag.storage.open import open_store

    job = recording.job
    store = open_store(database_url(db, os.environ), node=recording.blocks[0].source.node)
    try:
        if _stored_already(store, job):
            return None
        _refuse_other_values(store, recording)
        added = _append(store, recording, words)
        store.put_devices(recording.devices)
        store.put_events(recording.events)
        store.put_allocations(recording.allocations)
        store.put_job(job)
        return added
    finally:
        store.close()


def _stored_already(store: Store, job: Job) -> bool:
    """The same files again; other files for the same run are an error, because a run is never overwritten."""
    from gpudiag.storage.store import JobFilter

    for known in store.jobs(JobFilter(id=job.id)):
        if known.key != job.key:
            continue
        if known == job or known == _as_recorded(job) or _same_files(known, job):
            return True
        raise InputError(
            f"job {job.id} already has a run with this start from other files "
            f"({', '.join(known.meta.get('imported_from', ())) or known.key}); nothing was changed. "
            "Use another --job"
        )
    return False


def _same_files(known: Job, job: Job) -> bool:
    return "digest" in job.meta and known.meta.get("digest") == job.meta["digest"]


def _as_recorded(job: Job) -> Job:
    """Without what the import noted about itself: an exported job that comes back where it is from is equal."""
    meta = {name: value for name, value in job.meta.items() if name not in ("digest", "imported_from")}
    return replace(job, meta=meta)


def _append(store: Store, recording: Recording, words: Words) -> int:
    from gpudiag.cli.progress import progress

    added = 0
    job = recording.job
    quarters = ((job.end_ms or job.start_ms) - job.start_ms) // 900_000 + 1
    label = words("importing job {id}", id=job.id)
    for frames in progress(_fresh(store, recording), quarters, label):
        store.append(frames)
        added += len(frames)
    return added


def _fresh(store: Store, recording: Recording) -> Iterator[list[Frame]]:
    """Leave out samples that an interrupted import, or another job over the same log, stored before."""
    stored = {
        block.source: set(
            store.read(block.source, int(block.times_ms[0]), int(block.times_ms[-1]) + 1).times_ms.tolist()
        )
        for block in recording.blocks
    }
    for frames in recording.batches:
        fresh = [frame for frame in frames if frame.time_ms not in stored.get(frame.source, ())]
        if fresh:
            yield fresh


def _refuse_other_values(store: Store, recording: Recording) -> None:
    """Two recordings of one device that disagree cannot both be true: nothing is stored, rather than mixed."""
    import numpy as np

    for block in recording.blocks:
        stored = store.read(block.source, int(block.times_ms[0]), int(block.times_ms[-1]) + 1)
        _, here, there = np.intersect1d(block.times_ms, stored.times_ms, return_indices=True)
        for name in block.columns.keys() & stored.columns.keys():
            ours, theirs = block.columns[name][here], stored.columns[name][there]
            both = ~(np.isnan(ours) | np.isnan(theirs))
            if not np.allclose(ours[both], theirs[both], rtol=1e-5):
                raise InputError(
                    f"{block.source.device} of node {block.source.node} already has samples of the same time "
                    f"with another {name}; nothing was changed. Import into another database (--db)"
                )


def _document(recording: Recording, added: int | None) -> dict[str, object]:
    from gpudiag.cli.render.units import instant

    job = recording.job
    return {
        "schema_version": 1,
        "job": {
            "id": job.id,
            "key": job.key,
            "start": instant(job.start_ms),
            "end": instant(job.end_ms or 0),
        },
        "devices": recording.gpus,
        "samples": recording.samples,
        "samples_added": added or 0,
        "notes": list(recording.notes),
    }


def _text(recording: Recording, added: int | None, db: str | None, words: Words) -> str:
    from gpudiag.cli.render.style import local_zone
    from gpudiag.cli.render.units import harmless, instant
    from gpudiag.storage.engine import hide_password

    job = recording.job
    report = f"gpudiag report --job {shlex.quote(job.id)}"
    report += f" --db {shlex.quote(hide_password(db))}" if db else ""
    if added is None:
        stored = "job {id} is already stored, nothing to add. Next: {command}"
        return words(stored, id=job.id, command=report)
    first = words(
        "job {id}: {samples} samples of {gpus}, {begin} to {end}",
        id=job.id,
        samples=str(recording.samples),
        gpus=words("1 GPU") if recording.gpus == 1 else words("{count} GPUs", count=str(recording.gpus)),
        begin=instant(job.start_ms, local_zone()),
        end=instant(job.end_ms or job.start_ms, local_zone()),
    )
    notes = [words(note) for note in recording.notes]
    if known := recording.samples - added:
        stored = "{count} of them were stored before and are kept as they were"
        notes.insert(0, words(stored, count=str(known)))
    lines = [first, *(words("note: {note}", note=harmless(note)) for note in notes)]
    return "\n".join([*lines, words("next: {command}", command=report)])
