"""Turning "this series of job 42 existed at these times" into jobs, runs and allocations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.prometheus.client import Series
from gpudiag.storage.prometheus.dialect import Dialect
from gpudiag.storage.sample import Millis, Source

# Two sightings of one id further apart than this are two runs: a requeue, or an id used again.
RUN_GAP_MS = 3_600_000
STILL_RUNNING_MS = 300_000


@dataclass(frozen=True)
class Sighting:
    """Job `id` had `source` at `times_ms`; `selector` finds the device's series in this dialect."""

    id: str
    source: Source
    times_ms: Millis
    dialect: Dialect
    selector: str
    user: str = ""
    name: str = ""
    model: str = ""
    index: int | None = None


def quoted(value: str) -> str:
    """A label value as PromQL writes it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def sightings(dialect: Dialect, series: Series, by_value: bool) -> Iterable[Sighting]:
    """What one series says about jobs: its id is a label, or (`by_value`) its value."""
    labels = series.labels
    source, selector = device_of(dialect, labels)
    if by_value:
        ids = [
            (str(int(value)), series.times_ms[series.values == value])
            for value in np.unique(series.values)
            if value > 0
        ]
    else:
        ids = [(_first(labels, dialect.job), series.times_ms)]
    for job_id, times in ids:
        if job_id and len(times):
            index = labels.get(dialect.index, "")
            yield Sighting(
                id=job_id,
                source=source,
                times_ms=times,
                dialect=dialect,
                selector=selector,
                user=_first(labels, dialect.user),
                name=labels.get("job_name", ""),
                model=labels.get(dialect.model, ""),
                index=int(index) if index.isdigit() else None,
            )


def device_of(dialect: Dialect, labels: Mapping[str, str]) -> tuple[Source, str]:
    """The device a series is about, and the label matchers that select all series of it."""
    node = re.sub(r":\d+$", "", _first(labels, dialect.host))
    for label in dialect.device:
        if labels.get(label):
            return Source(node, labels[label]), f"{label}={quoted(labels[label])}"
    index = labels.get(dialect.index, "")
    selector = f"instance={quoted(labels.get('instance', ''))},{dialect.index}={quoted(index)}"
    return Source(node, f"index:{index}"), selector


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


@dataclass(frozen=True)
class Found:
    """A run of a job and everything known about its devices."""

    job: Job
    allocations: tuple[Allocation, ...]
    devices: Mapping[Source, Device]
    selectors: Mapping[Source, tuple[tuple[Dialect, str], ...]]


def runs(seen: Iterable[Sighting], cluster: str, now_ms: int, interval_ms: int) -> list[Found]:
    """Runs of every job that was seen, latest start first."""
    by_id: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in seen:
        by_id[sighting.id].append(sighting)
    found = [
        _found(job_id, group, start, end, cluster, now_ms, interval_ms)
        for job_id, group in by_id.items()
        for start, end in _spans(np.concatenate([sighting.times_ms for sighting in group]))
    ]
    return sorted(found, key=lambda run: (-run.job.start_ms, run.job.key))


def _spans(times: Millis) -> list[tuple[int, int]]:
    ordered = np.unique(times)
    cuts = np.flatnonzero(np.diff(ordered) > RUN_GAP_MS)
    starts = ordered[np.concatenate(([0], cuts + 1))]
    ends = ordered[np.concatenate((cuts, [len(ordered) - 1]))]
    return [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _found(
    job_id: str, group: list[Sighting], start: int, end: int, cluster: str, now_ms: int, interval_ms: int
) -> Found:
    key = f"{cluster}/{job_id}/{start // 1000}"
    running = now_ms - end < STILL_RUNNING_MS
    inside = [one for one in group if ((one.times_ms >= start) & (one.times_ms <= end)).any()]
    job = Job(
        key=key,
        id=job_id,
        start_ms=start,
        end_ms=None if running else end + interval_ms,
        cluster=cluster,
        raw_id=job_id,
        name=next((one.name for one in inside if one.name), ""),
        user=next((one.user for one in inside if one.user), ""),
        state="running" if running else "unknown",
    )
    selectors: dict[Source, dict[str, tuple[Dialect, str]]] = defaultdict(dict)
    times: dict[Source, list[Millis]] = defaultdict(list)
    devices: dict[Source, Device] = {}
    for one in inside:
        selectors[one.source][one.dialect.origin + one.selector] = (one.dialect, one.selector)
        times[one.source].append(one.times_ms[(one.times_ms >= start) & (one.times_ms <= end)])
        if one.source not in devices or not devices[one.source].model:
            devices[one.source] = Device(one.source, start, index=one.index, model=one.model)
    allocations = tuple(
        Allocation(
            key,
            source,
            int(min(part.min() for part in parts)),
            None if running else int(max(part.max() for part in parts)) + interval_ms,
            "prometheus",
        )
        for source, parts in sorted(times.items())
    )
    chosen = {source: tuple(ways.values()) for source, ways in selectors.items()}
    return Found(job, allocations, devices, chosen)
