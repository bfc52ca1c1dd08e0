"""What a stored job used, as measured: GPU-hours, energy, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gpudiag.cli.messages import Words
from gpudiag.cli.progress import watched
from gpudiag.errors import NotFoundError
from gpudiag.message import Message
from gpudiag.storage.sample import Block
from gpudiag.storage.store import Reader

_WANTED = ("energy_joules_total", "power_watts")


@dataclass(frozen=True)
class Used:
    """GPU-hours, energy of the GPUs alone in kWh, and where that is known from."""

    gpu_hours: float
    gpu_kwh: float
    source: Message


def measured(job_id: str, db: str | None, environ: Mapping[str, str], words: Words) -> Used:
    """What the latest run of a job used; raises `NotFoundError` when nothing was measured."""
    from gpudiag.cli.database import database_url
    from gpudiag.cli.selection import select_job
    from gpudiag.storage.open import open_reader

    reader = open_reader(database_url(db, environ))
    try:
        job = select_job(reader, job_id)
        with watched(reader, len(reader.allocations(job.key)), words("reading")) as read:
            return _used(read, job.key, job_id, job.end_ms)
    finally:
        reader.close()


@dataclass(frozen=True)
class Peak:
    """Highest memory in use on one device of a job, and the device's memory, in bytes."""

    device: str
    used_bytes: float
    capacity_bytes: float


def memory_peaks(job_id: str, db: str | None, environ: Mapping[str, str], words: Words) -> list[Peak]:
    """Per GPU of the latest run of a job; raises `NotFoundError` when memory was not measured."""
    from gpudiag.cli.database import database_url
    from gpudiag.cli.selection import select_job
    from gpudiag.storage.open import open_reader

    reader = open_reader(database_url(db, environ))
    try:
        job = select_job(reader, job_id)
        with watched(reader, len(reader.allocations(job.key)), words("reading")) as read:
            found = list(_peaks(read, job.key, job.end_ms))
    finally:
        reader.close()
    if not found:
        raise NotFoundError(f"job {job_id} has no measurements of GPU memory")
    return found


def _peaks(reader: Reader, key: str, end_ms: int | None) -> Iterator[Peak]:
    allocations = [one for one in reader.allocations(key) if one.source.scope == "gpu"]
    devices = reader.devices([one.source for one in allocations])
    for one in allocations:
        until = one.end_ms or end_ms or 2**62
        block = reader.read(one.source, one.start_ms, until, ("memory_used_bytes", "memory_total_bytes"))
        used = block.columns.get("memory_used_bytes")
        device = devices.get(one.source)
        capacity = device.memory_total_bytes if device else None
        if capacity is None and "memory_total_bytes" in block.columns:
            capacity = float(np.nanmax(block.columns["memory_total_bytes"]))
        if used is not None and capacity and not np.isnan(used).all():
            index = device.index if device else None
            name = one.source.device if index is None else f"{one.source.node} GPU {index}"
            yield Peak(name, float(np.nanmax(used)), capacity)


def _used(reader: Reader, key: str, job_id: str, end_ms: int | None) -> Used:
    hours = joules = covered = 0.0
    for allocation in reader.allocations(key):
        if allocation.source.scope != "gpu":
            continue
        until = allocation.end_ms or end_ms or 2**62
        block = reader.read(allocation.source, allocation.start_ms, until, _WANTED)
        if not len(block):
            continue
        seconds = (min(until, int(block.times_ms[-1])) - allocation.start_ms) / 1000
        watts = mean_watts(block)
        hours += seconds / 3600
        if watts is not None:
            joules += watts * seconds
            covered += seconds / 3600
    if not covered:
        raise NotFoundError(f"job {job_id} has neither power nor energy measurements")
    source = Message("measured, job {id}", id=job_id)
    if covered != hours:
        told = "{source}; power known for {share} of it"
        source = Message(told, source=source, share=f"{covered / hours:.0%}")
    return Used(hours, joules / 3.6e6 * hours / covered, source)


def mean_watts(block: Block) -> float | None:
    """From the energy counter where there is one (a reset of the counter is left out), else mean power."""
    energy = block.columns.get("energy_joules_total")
    if energy is not None:
        known = ~np.isnan(energy)
        steps, seconds = np.diff(energy[known]), np.diff(block.times_ms[known]) / 1000
        forward = steps >= 0
        if forward.any():
            return float(steps[forward].sum() / seconds[forward].sum())
    power = block.columns.get("power_watts")
    if power is None or np.isnan(power).all():
        return None
    return float(np.nanmean(power))
