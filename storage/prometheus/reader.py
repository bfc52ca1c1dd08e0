"""`Reader` over a Prometheus API: jobs from exporters' job labels, samples as they were scraped."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import parse_qsl

import numpy as np

from gpudiag.errors import InputError
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.prometheus.client import Access, Client, Series
from gpudiag.storage.prometheus.dialect import DCGM, DIALECTS, MEBIBYTE, Dialect
from gpudiag.storage.prometheus.sighting import Found, Sighting, quoted, runs, sightings
from gpudiag.storage.sample import NODE, Block, Floats, Millis, Source
from gpudiag.storage.store import JobFilter, StoredFinding

DAY_MS = 86_400_000
DEFAULT_LOOKBACK_DAYS = 30
_OPTIONS = ("lookback", "cluster", "org", "token_file", "partial")
_FREE = "DCGM_FI_DEV_FB_FREE"
_XID = "DCGM_FI_DEV_XID_ERRORS"
_ALL_JOBS = JobFilter()
# An instant vector looks back 5 minutes by default: a coarser step could miss a short job.
_COARSEST_STEP_MS = 240_000
_FINEST_STEP_MS = 15_000


class PrometheusReader:
    """Answers a report's questions from series that others scraped; what they lack is absent, never zero.

    `url`: `prometheus+http://[user:password@]host:port[/path][?lookback=30d&cluster=name&org=tenant&...]`.
    """

    def __init__(
        self,
        url: str,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        base, _, query = url.removeprefix("prometheus+").partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := set(options) - set(_OPTIONS):
            raise InputError(
                f"unknown option {min(unknown)!r} in the Prometheus URL: expected {', '.join(_OPTIONS)}"
            )
        self._client = Client(base, _access(options), sleep)
        self._now_ms = now_ms
        self._lookback_ms = _days(options.get("lookback", f"{DEFAULT_LOOKBACK_DAYS}d")) * DAY_MS
        self._cluster = options.get("cluster", "prometheus")
        self._found: dict[str, Found] = {}

    def close(self) -> None:
        """Nothing is held open."""

    def jobs(self, wanted: JobFilter = _ALL_JOBS) -> list[Job]:
        """Matching jobs, latest start first, found by the job labels of the known exporters."""
        end = min(self._now_ms(), wanted.end_ms or self._now_ms())
        start = wanted.start_ms if wanted.start_ms is not None else end - self._lookback_ms
        step = min(_COARSEST_STEP_MS, max(_FINEST_STEP_MS, (end - start) // 10_000))
        seen = [one for dialect in DIALECTS for one in self._seen(dialect, wanted.id, start, end, step)]
        found = [self._refined(run, step) for run in runs(seen, self._cluster, self._now_ms(), step)]
        kept = [run for run in found if _matches(run, wanted)]
        self._found.update({run.job.key: run for run in kept})
        jobs = [run.job for run in kept]
        return jobs[: wanted.limit] if wanted.limit else jobs

    def _seen(self, dialect: Dialect, job_id: str, start: int, end: int, step: int) -> Iterable[Sighting]:
        names = "|".join(dialect.presence)
        for label in dialect.job:
            match = f"={quoted(job_id)}" if job_id else '!=""'
            selector = f'{{__name__=~"{names}",{label}{match}}}'
            for series in self._client.sampled(selector, start, end, step):
                yield from sightings(dialect, series, by_value=False)
        if dialect.job_value and (not job_id or job_id.isdigit()):
            wanted = f"{dialect.job_value} == {job_id}" if job_id else f"{dialect.job_value} > 0"
            for series in self._client.sampled(wanted, start, end, step):
                yield from sightings(dialect, series, by_value=True)

    def _refined(self, run: Found, step: int) -> Found:
        """Edges as the samples say, not as the coarse grid and the server's look-back do."""
        job = run.job
        margin = step + 300_000
        first, last = self._edges(run, job.start_ms - margin, job.start_ms + margin)[0], None
        if job.end_ms is not None:
            last = self._edges(run, job.end_ms - 2 * margin, job.end_ms + step)[1]
        start = first if first is not None else job.start_ms
        end = job.end_ms if last is None else last
        key = f"{self._cluster}/{job.id}/{start // 1000}"
        allocations = tuple(
            replace(
                allocation,
                job_key=key,
                start_ms=start if abs(allocation.start_ms - job.start_ms) <= margin else allocation.start_ms,
                end_ms=end
                if allocation.end_ms is None or abs(allocation.end_ms - (job.end_ms or 0)) <= margin
                else allocation.end_ms,
            )
            for allocation in run.allocations
        )
        return replace(run, job=replace(job, key=key, start_ms=start, end_ms=end), allocations=allocations)

    def _edges(self, run: Found, start: int, end: int) -> tuple[int | None, int | None]:
        """First and last sample of the job's own series in an interval, plus one scrape interval at the end."""
        times: list[Millis] = []
        for dialect in {
            way[0].origin + way[1]: way[0] for ways in run.selectors.values() for way in ways
        }.values():
            names = "|".join(dialect.presence)
            for label in dialect.job:
                selector = f'{{__name__=~"{names}",{label}={quoted(run.job.id)}}}'
                times += [series.times_ms for series in self._client.raw(selector, start, end)]
            if dialect.job_value:
                for series in self._client.raw(dialect.job_value, start, end):
                    times.append(series.times_ms[series.values == _number(run.job.id)])
        merged = np.unique(np.concatenate(times)) if times else np.empty(0, np.int64)
        if not len(merged):
            return None, None
        interval = int(np.median(np.diff(times[0]))) if len(times[0]) > 1 else 0
        return int(merged[0]), int(merged[-1]) + interval

    def allocations(self, job_key: str) -> list[Allocation]:
        """The job's devices over all nodes; of a job that `jobs` has returned."""
        return list(self._of(job_key).allocations) if self._of(job_key) else []

    def _of(self, job_key: str) -> Found:
        if job_key not in self._found:
            self.jobs(JobFilter(id=job_key.split("/")[1] if job_key.count("/") == 2 else job_key))
        return self._found.get(job_key) or Found(Job(job_key, "", 0), (), {}, {})

    def devices(self, sources: Iterable[Source]) -> dict[Source, Device]:
        """Model and index as the labels say; memory as the last samples of the job say."""
        wanted = set(sources)
        known: dict[Source, Device] = {}
        for run in self._found.values():
            for source, device in run.devices.items():
                if source in wanted:
                    known[source] = replace(device, memory_total_bytes=self._memory_total(run, source))
        return known

    def _memory_total(self, run: Found, source: Source) -> float | None:
        end = run.job.end_ms or self._now_ms()
        total = self.read(source, max(run.job.start_ms, end - 600_000), end, ["memory_total_bytes"]).columns
        values = total.get("memory_total_bytes", np.empty(0))
        return float(np.nanmax(values)) if np.isfinite(values).any() else None

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: Sequence[str] | None = None) -> Block:
        """Samples as scraped; per metric only the best exporter's, the others named in `dropped_origins`."""
        gathered: dict[str, dict[str, list[tuple[Millis, Floats]]]] = defaultdict(lambda: defaultdict(list))
        for dialect, selector in self._ways(source):
            names = _wanted_names(dialect, source.scope, metrics)
            if not names:
                continue
            matched = f'{{__name__=~"{"|".join(names)}"{"," if selector else ""}{selector}}}'
            for name, times, values in _translated(dialect, self._client.raw(matched, start_ms, end_ms)):
                gathered[name][dialect.origin].append((times, values))
        return _block(source, gathered)

    def _ways(self, source: Source) -> list[tuple[Dialect, str]]:
        """Every exporter that may know the device, best first, with the matchers that select it."""
        if source.device == NODE:
            return [(DIALECTS[0], f'instance=~"{re.escape(source.node)}(:[0-9]+)?"')]
        if source.scope == "job":
            return [(DIALECTS[0], f"job_key={quoted(source.device.removeprefix('job:'))}")]
        if source.device.startswith("index:"):
            return [way for run in self._found.values() for way in run.selectors.get(source, ())]
        return [
            (dialect, f"{label}={quoted(source.device)}") for dialect in DIALECTS for label in dialect.device
        ]

    def sources(self, start_ms: int, end_ms: int) -> list[Source]:
        """Devices of the jobs found so far that were allocated in the interval."""
        found = {
            allocation.source
            for run in self._found.values()
            for allocation in run.allocations
            if allocation.start_ms < end_ms and (allocation.end_ms or end_ms) > start_ms
        }
        return sorted(found)

    def events(
        self, start_ms: int, end_ms: int, node: str | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        """Xids, as far as a gauge of the last code shows them: each change to another code is one event."""
        if kinds and "xid" not in kinds:
            return []
        found = []
        for source in self.sources(start_ms, end_ms):
            if node is None or source.node == node:
                for label in DCGM.device:
                    selector = f"{_XID}{{{label}={quoted(source.device)}}}"
                    found += _xids(source, list(self._client.raw(selector, start_ms, end_ms)))
        return sorted(found, key=lambda event: (event.time_ms, event.source, event.code))

    def findings(self, start_ms: int, end_ms: int, job_key: str | None = None) -> list[StoredFinding]:
        """None: without our agent nothing was judged live."""
        return []


def _access(options: Mapping[str, str]) -> Access:
    partial = options.get("partial", "no")
    if partial not in ("yes", "no"):
        raise InputError(f"partial={partial!r} in the Prometheus URL: expected yes or no")
    return Access(options.get("org", ""), options.get("token_file", ""), partial == "yes")


def _days(text: str) -> int:
    match = re.fullmatch(r"(\d{1,4})d", text)
    if not match or match.group(1).strip("0") == "":
        raise InputError(f"lookback={text!r} in the Prometheus URL: expected a number of days such as 30d")
    return int(match.group(1))


def _number(text: str) -> float:
    return float(text) if text.isdigit() else float("nan")


def _matches(run: Found, wanted: JobFilter) -> bool:
    return (
        (not wanted.user or run.job.user == wanted.user)
        and (not wanted.state or run.job.state == wanted.state)
        and (not wanted.node or any(one.source.node == wanted.node for one in run.allocations))
    )


def _wanted_names(dialect: Dialect, scope: str, metrics: Sequence[str] | None) -> list[str]:
    names = {
        item.name
        for item in dialect.translations
        if item.metric.scope == scope and (metrics is None or item.metric.name in metrics)
    }
    if dialect is DCGM and scope == "gpu" and (metrics is None or "memory_total_bytes" in metrics):
        names |= {_FREE, "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED"}
    return sorted(names)


def _translated(dialect: Dialect, answers: Iterable[Series]) -> Iterable[tuple[str, Millis, Floats]]:
    """Metric, times and values in base units; values the catalog does not believe are left out."""
    framebuffer: dict[str, list[Series]] = defaultdict(list)
    for series in answers:
        name = series.labels.get("__name__", "")
        if name in (_FREE, "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED"):
            framebuffer[name].append(series)
        translation = dialect.translate(series.labels)
        if translation is not None:
            values = series.values * translation.scale
            believed = (values >= translation.metric.minimum) & (values <= translation.metric.maximum)
            yield translation.metric.name, series.times_ms[believed], values[believed]
    if _FREE in framebuffer:
        yield ("memory_total_bytes", *_summed(framebuffer))


def _summed(framebuffer: dict[str, list[Series]]) -> tuple[Millis, Floats]:
    """Total = free + used + reserved, at the instants where all that the exporter gives were scraped."""
    together: dict[int, list[float]] = defaultdict(list)
    for parts in framebuffer.values():
        once = {
            int(at): value for part in parts for at, value in zip(part.times_ms, part.values, strict=True)
        }
        for at, value in once.items():
            together[at].append(value)
    complete = {at: sum(values) for at, values in together.items() if len(values) == len(framebuffer)}
    times = np.array(sorted(complete), dtype=np.int64)
    return times, np.array([complete[int(at)] * MEBIBYTE for at in times])


def _block(source: Source, gathered: dict[str, dict[str, list[tuple[Millis, Floats]]]]) -> Block:
    chosen: dict[str, tuple[Millis, Floats]] = {}
    origins, dropped = {}, {}
    for name, by_origin in gathered.items():
        best, *others = (dialect.origin for dialect in DIALECTS if dialect.origin in by_origin)
        parts = by_origin[best]
        times, first = np.unique(np.concatenate([times for times, _ in parts]), return_index=True)
        chosen[name] = (times, np.concatenate([values for _, values in parts])[first])
        metric = METRICS[(source.scope, name)]  # type: ignore[index]
        if "," in metric.field:
            origins[name] = best
        if rest := tuple(dict.fromkeys(other for other in others if other != best)):
            dropped[name] = rest
    every = (
        np.unique(np.concatenate([times for times, _ in chosen.values()]))
        if chosen
        else np.empty(0, np.int64)
    )
    columns = {}
    for name, (times, values) in chosen.items():
        column = np.full(len(every), np.nan)
        column[np.searchsorted(every, times)] = values
        columns[name] = column
    return Block(source, every.astype(np.int64), columns, origins, dropped)


def _xids(source: Source, parts: list[Series]) -> list[Event]:
    """The gauge keeps the last code for ever, so what it says at first may be old: only changes count."""
    if not parts:
        return []
    times, first = np.unique(np.concatenate([part.times_ms for part in parts]), return_index=True)
    codes = np.concatenate([part.values for part in parts])[first]
    changed = np.flatnonzero(np.diff(codes, prepend=codes[0]) * (codes > 0))
    return [
        Event(source, int(times[at]), "xid", int(codes[at]), detail={"known_from": "gauge of the last code"})
        for at in changed
    ]
