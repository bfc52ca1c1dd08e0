"""A job's samples on a 1-second grid, read lazily and kept within a memory bound."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpudiag.rules.packed import Packed, nothing, pack
from gpudiag.rules.silence import told_until
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import JOB_PREFIX, NODE, Block, Floats, Millis, Source
from gpudiag.storage.store import Reader

SECOND_MS = 1000
LONGEST_HOLD_MS = 120_000
CONTEXT_MS = 3 * LONGEST_HOLD_MS  # samples before a stretch that say how long a value holds into it
WHOLE_COLUMN_SECONDS = 6 * 3600
DEFAULT_CACHE_BYTES = 128 * 2**20


def grid(times_ms: Millis, values: Floats, start_ms: int, seconds: int) -> Floats:
    """Place samples on `seconds` seconds from `start_ms`: float64 [seconds], NaN where nothing was measured.

    A second holds the last sample taken in it. Where none was, the sample before holds if the middle of the
    second lies within that sample's own interval: the shorter of the two gaps before it, or a second when one of
    them is longer than two minutes. It looks only backwards, so that a growing log never changes a second that
    is already past.
    """
    return _place(Instants.of(times_ms, start_ms), values, seconds)


@dataclass(frozen=True)
class Instants:
    """When the samples of a block were taken, and in which second each lies: what its columns have in common.

    `dense`: every second from the first sample to the last has its place, one without a sample an empty one;
    `place` [samples] says whose is where, None when none is empty.
    """

    start_ms: int
    times_ms: Millis
    index: Millis
    dense: bool
    place: Millis | None = None

    @classmethod
    def of(cls, times_ms: Millis, start_ms: int) -> Instants:
        """Seconds are counted from `start_ms`."""
        index = (times_ms - start_ms) // SECOND_MS
        steps = np.diff(index)
        if not len(index) or (steps < 1).any():
            return cls(start_ms, times_ms, index, dense=False)
        if (steps == 1).all():
            return cls(start_ms, times_ms, index, dense=True)
        seconds = np.arange(int(index[0]), int(index[-1]) + 1)
        spread = np.zeros(len(seconds), dtype=np.int64)
        spread[index - index[0]] = times_ms
        return cls(start_ms, spread, seconds, dense=True, place=index - index[0])

    def spread(self, values: Floats) -> Floats:
        """One value per place, NaN for an empty one."""
        if self.place is None:
            return values
        spread = np.full(len(self.index), np.nan)
        spread[self.place] = values
        return spread


def _place(at: Instants, values: Floats, seconds: int) -> Floats:
    """`grid`, given in which second each sample lies."""
    out = np.full(seconds, np.nan)
    values = at.spread(values)
    missing = np.isnan(values)
    if at.dense:
        origin = int(at.index[0])
        first, last = max(0, origin), min(seconds, int(at.index[-1]) + 1)
        if last > first:
            out[first:last] = values[first - origin : last - origin]
        _hold(out, at, values, *_beside_gaps(missing))
        return out
    present = np.flatnonzero(~missing)
    index = at.index[present]
    inside = (index >= 0) & (index < seconds)
    out[index[inside]] = values[present[inside]]
    gap = np.flatnonzero(np.diff(index, append=seconds) > 1)
    following = np.append(present, -1)[gap + 1]
    before = np.concatenate(([-1, -1], present))
    _hold(out, at, values, present[gap], before[gap + 1], before[gap], following)
    return out


def _beside_gaps(missing: npt.NDArray[np.bool_]) -> tuple[Millis, Millis, Millis, Millis]:
    """Positions of the last sample before each stretch of missing ones and before the end, of the two samples before
    that one and of the one after the stretch; -1 where there is none."""
    edges = np.flatnonzero(np.diff(missing, prepend=False, append=True))
    starts, ends = edges[::2], edges[1::2]  # the last stretch begins at the latest behind the last sample
    ends = np.append(ends, -1)[: len(starts)]
    last = starts - 1
    known = last >= 0
    last, following = last[known], ends[known]
    previous = _previous(last, starts, ends)
    return last, previous, _previous(previous, starts, ends), following


def _previous(at: Millis, starts: Millis, ends: Millis) -> Millis:
    """The sample before each of `at`, given where stretches of missing ones start and end."""
    stretch = np.searchsorted(starts, at) - 1
    behind = (stretch >= 0) & (ends[np.maximum(stretch, 0)] == at)
    previous: Millis = np.where(behind, starts[np.maximum(stretch, 0)], at) - 1
    return np.maximum(previous, -1)


def _hold(out: Floats, at: Instants, values: Floats, last: Millis, previous: Millis, third: Millis, following: Millis) -> None:  # fmt: skip
    """Fill the seconds after each sample before a gap that its interval still covers and no later sample fills.

    `last` are those samples' positions, `previous` and `third` those of the two before, `following` of the one after.
    """
    if not len(last):
        return
    interval = np.minimum(_gap(at.times_ms, last, previous), _gap(at.times_ms, previous, third))
    until = at.times_ms[last] + np.maximum(interval, SECOND_MS)
    end = (until - at.start_ms - SECOND_MS // 2 - 1) // SECOND_MS
    free = np.where(following >= 0, at.index[following], len(out)) - 1
    end = np.minimum(np.minimum(end, free), len(out) - 1)
    begin = np.maximum(at.index[last] + 1, 0)
    count = np.maximum(end - begin + 1, 0)
    held = np.flatnonzero(count)
    if not len(held):
        return
    count = count[held]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    out[np.repeat(begin[held], count) + within] = np.repeat(values[last[held]], count)


def _gap(times_ms: Millis, later: Millis, earlier: Millis) -> Millis:
    """Milliseconds between samples; a second where one is not there, or they are too far apart."""
    gaps = times_ms[later] - times_ms[earlier]
    known: Millis = np.where((earlier >= 0) & (later >= 0) & (gaps <= LONGEST_HOLD_MS), gaps, SECOND_MS)
    return known


def allocated(
    allocations: Iterable[Allocation], source: Source, start_s: int, seconds: int
) -> npt.NDArray[np.bool_] | None:
    """Seconds in which the source belonged to the job, [seconds]; None when it always did, or no allocation names it."""
    held = [allocation for allocation in allocations if allocation.source == source]
    end_s = start_s + seconds
    if not held or any(_covers(allocation, start_s, end_s) for allocation in held):
        return None
    belongs = np.zeros(seconds, dtype=bool)
    for allocation in held:
        first = max(0, allocation.start_ms // SECOND_MS - start_s)
        end = seconds if allocation.end_ms is None else -(-allocation.end_ms // SECOND_MS) - start_s
        belongs[first : max(0, end)] = True
    return belongs


def _covers(allocation: Allocation, start_s: int, end_s: int) -> bool:
    begins = allocation.start_ms // SECOND_MS <= start_s
    return begins and (allocation.end_ms is None or allocation.end_ms >= end_s * SECOND_MS)


@dataclass(frozen=True)
class Column:
    """One metric of one source on the grid, where it was measured, and the lesser origins left out."""

    values: Floats
    origin: str = ""
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Shelved:
    """A column put away in few bytes."""

    packed: Packed
    origin: str
    dropped: tuple[str, ...]

    def column(self) -> Column:
        return Column(self.packed.values(), self.origin, self.dropped)


@dataclass(frozen=True)
class Outline:
    """What `JobSamples` is made of besides the reader, to read the same job elsewhere."""

    job: Job
    start_ms: int
    end_ms: int
    allocations: tuple[Allocation, ...]
    devices: Mapping[Source, Device]
    events: tuple[Event, ...]
    cache_bytes: int

    def samples(self, reader: Reader) -> JobSamples:
        """The samples of that job, as yet unread."""
        return JobSamples(
            reader,
            self.job,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            allocations=self.allocations,
            devices=self.devices,
            events=self.events,
            cache_bytes=self.cache_bytes,
        )


class JobSamples:
    """Everything measured during one job: series on a 1-second grid from `start_ms` (a whole second).

    Second `k` is `[start_ms + 1000 k, start_ms + 1000 (k + 1))`; `seconds` of them reach `end_ms`. Columns are
    read when first asked for, several of a source at once (`want`), kept packed for the passes to come, and forgotten
    oldest first beyond `cache_bytes` (a quarter of it for columns in use), so that memory depends neither on the number
    of GPUs nor on the length of the catalog. What later passes need stays as far as there is room (`keep`).
    """

    def __init__(
        self,
        reader: Reader,
        job: Job,
        *,
        start_ms: int,
        end_ms: int,
        allocations: Sequence[Allocation] = (),
        devices: Mapping[Source, Device] | None = None,
        events: Sequence[Event] = (),
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self.reader = reader
        self.job = job
        self.start_ms = start_ms // SECOND_MS * SECOND_MS
        self.seconds = max(0, -((self.start_ms - end_ms) // SECOND_MS))
        self.end_ms = self.start_ms + self.seconds * SECOND_MS
        self.allocations = tuple(allocations)
        self.devices: Mapping[Source, Device] = devices or {}
        self.events = tuple(events)
        self.damaged: dict[Source, tuple[tuple[int, int], ...]] = {}
        self._cache_bytes = cache_bytes
        self._columns: OrderedDict[tuple[Source, str], Column] = OrderedDict()
        self._shelf: OrderedDict[tuple[Source, str], _Shelved] = OrderedDict()
        self._shelf_bytes = 0
        self._kept: dict[tuple[Source, str], _Shelved] = {}  # off the shelf, until they are forgotten
        self._kept_bytes = 0
        self._bytes_per_gpu: int | None = None
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._part: JobSamples | None = None
        self.silent = False  # the job was never said to end, and nothing was measured for more than a day

    @classmethod
    def read(
        cls, reader: Reader, job: Job, now_ms: int, *, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> JobSamples:
        """The samples of `job` up to its end, while it runs up to `now_ms` or its last day; raises `StoreError`."""
        allocations = reader.allocations(job.key)
        end_ms = told_until(reader, job, allocations, now_ms)
        nodes = {allocation.source.node for allocation in allocations}
        events = [event for event in reader.events(job.start_ms, end_ms) if event.source.node in nodes]
        samples = cls(
            reader,
            job,
            start_ms=job.start_ms,
            end_ms=end_ms,
            allocations=allocations,
            devices=reader.devices(sorted({allocation.source for allocation in allocations})),
            events=events,
            cache_bytes=cache_bytes,
        )
        samples.silent = job.end_ms is None and end_ms < now_ms
        return samples

    def outline(self) -> Outline:
        """What it takes to read the same samples by another reader."""
        return Outline(
            self.job,
            self.start_ms,
            self.end_ms,
            self.allocations,
            self.devices,
            self.events,
            self._cache_bytes,
        )

    def sources(self, scope: str) -> tuple[Source, ...]:
        """The job's sources of `scope` (`gpu`, `node` or `job`), sorted."""
        if scope == "gpu":
            return tuple(sorted({a.source for a in self.allocations if a.source.scope == "gpu"}))
        device = NODE if scope == "node" else f"{JOB_PREFIX}{self.job.key}"
        return tuple(Source(node, device) for node in self.nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes the job ran on, sorted."""
        return tuple(sorted({allocation.source.node for allocation in self.allocations}))

    def beside(self, source: Source, scope: str) -> Source:
        """The source of `scope` that belongs with `source`: itself, its node, or its job's share of the node."""
        if source.scope == scope:
            return source
        return Source(source.node, NODE if scope == "node" else f"{JOB_PREFIX}{self.job.key}")

    def peers(self, source: Source) -> tuple[Source, ...]:
        """The job's other GPUs on the same node of the same model (an unknown model fits any)."""
        model = self._model(source)
        others = (gpu for gpu in self.sources("gpu") if gpu != source and gpu.node == source.node)
        return tuple(gpu for gpu in others if not model or self._model(gpu) in ("", model))

    def _model(self, source: Source) -> str:
        device = self.devices.get(source)
        return device.model if device else ""

    def want(self, scope: str, metrics: Iterable[str]) -> None:
        """Read these metrics together with the first of them that is asked for."""
        self._wanted[scope] = tuple(dict.fromkeys((*self._wanted.get(scope, ()), *metrics)))

    def want_only(self, scope: str, metrics: Iterable[str]) -> None:
        """`want` these, and none that were wanted before."""
        self._wanted[scope] = ()
        self.want(scope, metrics)

    def want_kept(self, metrics: Iterable[str], gpus: Sequence[Source]) -> bool:
        """`want` these of GPUs, if those of any of their nodes can be kept, and say so: the first GPU shows it."""
        before = self._wanted.get("gpu", ())
        self.want("gpu", metrics)
        if not gpus or not self._wanted["gpu"] or self.seconds <= 0:
            return True
        held = self._shelf_bytes
        for metric in self._wanted["gpu"]:
            self.origin(gpus[0], metric)
        self._bytes_per_gpu = self._shelf_bytes - held
        fits = self.room_of_a_node(gpus) <= self._shelf_limit
        if not fits:
            self._wanted["gpu"] = before
        return fits

    def room_of_a_node(self, gpus: Sequence[Source]) -> int:
        """Bytes for all wanted columns of the GPUs of the largest node among these, and some for the host's."""
        largest = max(Counter(gpu.node for gpu in gpus).values(), default=0)
        return int(1.2 * largest * (self._bytes_per_gpu or 0))

    def keep(self, source: Source, metrics: Collection[str], beside: int = 0) -> None:
        """Of this source no columns but these are needed again; they stay if `beside` bytes are still free then."""
        left = {key: one for key, one in self._own(source).items() if key[1] in metrics}
        size = sum(one.packed.nbytes for one in left.values())
        self.forget(source)
        if self._kept_bytes + size + beside <= self._shelf_limit:
            self._kept.update(left)
            self._kept_bytes += size

    def _own(self, source: Source) -> dict[tuple[Source, str], _Shelved]:
        return {
            key: one for shelf in (self._kept, self._shelf) for key, one in shelf.items() if key[0] == source
        }

    @property
    def _shelf_limit(self) -> int:
        return self._cache_bytes - self._cache_bytes // 4

    def series(self, source: Source, metric: str) -> Floats:
        """float64 [seconds], NaN where missing or outside the allocation; not to be written to."""
        return self._column(source, metric).values

    def origin(self, source: Source, metric: str) -> str:
        """Where the series was measured (`gpm`, `dcgm`, `nvml`, ...), empty when unknown or missing."""
        return self._column(source, metric).origin

    def dropped_origins(self, source: Source, metric: str) -> tuple[str, ...]:
        """Origins whose samples were left out because a better one measured the same metric."""
        return self._column(source, metric).dropped

    def window(self, source: Source, metric: str, first: int, last: int) -> Floats:
        """`series` from second `first` (may be negative: unknown) to `last`, without reading all of a long job."""
        begin, end = max(0, first), min(self.seconds, last)
        out = np.full(last - first, np.nan)
        if end > begin:
            out[begin - first : end - first] = self._stretch(source, metric, begin, end)
        return out

    def _stretch(self, source: Source, metric: str, first: int, last: int) -> Floats:
        if self.seconds <= WHOLE_COLUMN_SECONDS or (source, metric) in self._columns:
            return self.series(source, metric)[first:last]
        if not self._has((source, metric)) and self._fits(source):
            self._load(source, metric)
        if self._has((source, metric)):
            return self._shelved((source, metric)).packed.values(first, last)
        if self._part is None or (self._part.start_ms, self._part.seconds) != (
            self.start_ms + first * SECOND_MS,
            last - first,
        ):
            self._part = self._cut(first, last)
        return self._part.series(source, metric)

    def _fits(self, source: Source) -> bool:
        """Whether the columns of all GPUs of its node can be kept while the node is judged."""
        if self._bytes_per_gpu is None:
            return False
        return (
            self.room_of_a_node([g for g in self.sources("gpu") if g.node == source.node])
            <= self._shelf_limit
        )

    def _cut(self, first: int, last: int) -> JobSamples:
        begin_ms, end_ms = (self.start_ms + second * SECOND_MS for second in (first, last))
        part = replace(self.outline(), start_ms=begin_ms, end_ms=end_ms).samples(self.reader)
        part._wanted = self._wanted
        return part

    def forget(self, source: Source) -> None:
        """Let go of a source's columns."""
        for key in [key for key in self._columns if key[0] == source]:
            del self._columns[key]
        for key in self._own(source):
            if key in self._kept:
                self._kept_bytes -= self._kept.pop(key).packed.nbytes
            else:
                self._shelf_bytes -= self._shelf.pop(key).packed.nbytes

    @property
    def held_bytes(self) -> int:
        """Size of the columns in memory."""
        return self._shelf_bytes + self._kept_bytes + len(self._columns) * self.seconds * 8

    def _column(self, source: Source, metric: str) -> Column:
        column = self._columns.get((source, metric))
        if column is None:
            if not self._has((source, metric)):
                self._load(source, metric)
            column = self._columns.get((source, metric)) or self._take_down(source, metric)
        self._columns.move_to_end((source, metric))
        return column

    def _load(self, source: Source, metric: str) -> None:
        names = self._together(source, metric)
        block = self.reader.read(source, self.start_ms - CONTEXT_MS, self.end_ms, names)
        if block.damaged_ms:
            self.damaged[source] = block.damaged_ms
        instants = Instants.of(block.times_ms, self.start_ms)
        for name in names:
            column = self._on_grid(source, block, instants, name)
            self._put_away(source, name, column)
            if name == metric:
                self._columns[(source, name)] = column
        self._evict()

    def _put_away(self, source: Source, name: str, column: Column) -> None:
        shelved = _Shelved(pack(column.values), column.origin, column.dropped)
        self._shelf[(source, name)] = shelved
        self._shelf_bytes += shelved.packed.nbytes

    def _take_down(self, source: Source, name: str) -> Column:
        column = self._columns[(source, name)] = self._shelved((source, name)).column()
        self._evict()
        return column

    def _has(self, key: tuple[Source, str]) -> bool:
        return key in self._kept or key in self._shelf

    def _shelved(self, key: tuple[Source, str]) -> _Shelved:
        if key in self._kept:
            return self._kept[key]
        self._shelf.move_to_end(key)
        return self._shelf[key]

    def _together(self, source: Source, metric: str) -> list[str]:
        """The missing metrics to read in one go: as many as a quarter of the cache holds."""
        wanted = [name for name in self._wanted.get(source.scope, ()) if not self._has((source, name))]
        room = max(1, self._cache_bytes // 4 // max(1, self.seconds * 8))
        return list(dict.fromkeys((metric, *wanted)))[:room]

    def _on_grid(self, source: Source, block: Block, instants: Instants, name: str) -> Column:
        values = block.columns.get(name)
        if values is None:
            return Column(nothing(self.seconds))
        gridded = _place(instants, values, self.seconds)
        self._mask_allocation(source, gridded)
        gridded.flags.writeable = False
        return Column(gridded, block.origins.get(name, ""), block.dropped_origins.get(name, ()))

    def _mask_allocation(self, source: Source, values: Floats) -> None:
        """What a device did before or after it belonged to the job is none of the job's business."""
        belongs = allocated(self.allocations, source, self.start_ms // SECOND_MS, self.seconds)
        if belongs is not None:
            values[~belongs] = np.nan

    def _evict(self) -> None:
        size = self.seconds * 8
        while len(self._columns) > 1 and len(self._columns) * size > self._cache_bytes // 4:
            self._columns.popitem(last=False)
        while len(self._shelf) > 1 and self._shelf_bytes + self._kept_bytes > self._shelf_limit:
            self._shelf_bytes -= self._shelf.popitem(last=False)[1].packed.nbytes
