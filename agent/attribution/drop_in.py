"""Directories in which other tools say which job has which GPU, one file per GPU.

jobstats (`/run/gpustat`): files named by device number and by UUID, holding `JOBID UID`. dcgm-exporter
(`--hpc-job-mapping-dir`): files named by NVML index, one job id per line; a file `2.1` for a MIG instance
cannot be mapped to a UUID from here and is left to the processes on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpudiag.agent.attribution.devices import is_uuid

_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Listing:
    """A job named in such a directory: its device references, and when the first of its files was written."""

    raw_id: str
    uid: int | None
    references: tuple[str, ...]
    since_ms: int


def read_directories(folders: Iterable[Path]) -> dict[str, Listing]:
    """All jobs that the directories name, by job id. UUIDs win over numbers: they cannot be misread."""
    references: dict[str, dict[str, None]] = {}
    uids: dict[str, int | None] = {}
    since: dict[str, int] = {}
    for folder in folders:
        for name, text, written_ms in _files(folder):
            for job, uid, reference in _entries(name, text):
                references.setdefault(job, {})[reference] = None
                uids[job] = uid if uid is not None else uids.get(job)
                since[job] = min(written_ms, since.get(job, written_ms))
    return {job: Listing(job, uids[job], _exact(found), since[job]) for job, found in references.items()}


def _files(folder: Path) -> Iterable[tuple[str, str, int]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if not (name.isdigit() or is_uuid(name)):
            continue
        try:
            with open(folder / name, "rb") as stream:
                text = stream.read(_MAX_BYTES).decode("utf-8", "replace")
                yield name, text, os.fstat(stream.fileno()).st_mtime_ns // 1_000_000
        except OSError:
            continue


def _entries(name: str, text: str) -> Iterable[tuple[str, int | None, str]]:
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        uid = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
        # jobstats counts device files, dcgm-exporter counts as NVML does
        number = f"minor:{name}" if len(words) > 1 else f"index:{name}"
        yield words[0], uid, name if is_uuid(name) else number


def _exact(references: Iterable[str]) -> tuple[str, ...]:
    found = tuple(references)
    return tuple(one for one in found if is_uuid(one)) or found
