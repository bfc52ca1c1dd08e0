"""Judges while samples arrive: the rules' own evaluation on bounded memory, with the findings a report would give."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpudiag.rules.activity import GPU_FIELDS, HEADLINES, HOST_FIELDS, ActivityFold
from gpudiag.rules.judgement import FiredInterval
from gpudiag.rules.model import Maturity
from gpudiag.rules.phases import PhaseTracker
from gpudiag.rules.ring import Rings
from gpudiag.rules.ruleset import Rule, RuleSet
from gpudiag.rules.run import RuleRun, Views
from gpudiag.rules.samples import allocated
from gpudiag.rules.stretch import NO_PHASE, Codes, Stretch, host_source
from gpudiag.storage.job import Allocation, Device, Event, Job, Json
from gpudiag.storage.sample import Floats, Frame, Source
from gpudiag.storage.store import StoredFinding

GRID_S = 10
_PHASE_REACH_S = 60
_LATE_S = 600
_UPDATE_S = 60
_FORGET_MS = 3600_000
_PHASE_METRICS = (
    *(("gpu", name) for name in (*HEADLINES, "memory_used_bytes", "memory_total_bytes", *GPU_FIELDS)),
    *((scope, name) for name, (scope, _) in HOST_FIELDS.items()),
)


@dataclass(frozen=True)
class LiveJob:
    """A job that runs on this node: its allocations and the attributes of its devices."""

    job: Job
    allocations: tuple[Allocation, ...]
    devices: tuple[Device, ...] = ()


class LiveEngine:
    """Follows the jobs of one node. `evaluate` judges every multiple of 10 s that has passed.

    Rules that are on judge the node's share of each job; those marked `jobless` also devices that no job has.
    Samples must be observed before the time they belong to is evaluated. Memory is bounded by the longest window of
    any rule, not by how long a job runs.
    """

    def __init__(
        self,
        ruleset: RuleSet,
        node: str,
        *,
        maturities: Sequence[Maturity] = ("stable",),
        together_s: int = GRID_S,
        wait_s: int = 0,
    ) -> None:
        """`together_s` says how many seconds' worth of evaluations are computed at once when they are pending.

        A rule's evaluations wait for one another up to `wait_s` or half its window (by which the time of a finding is
        uncertain anyway): what is found is the same, told that much later, at a fraction of the cost.
        """
        self._rules = ruleset.active(maturities)
        self._node = node
        self._together = max(together_s // GRID_S, 1)
        self._wait_s = wait_s
        reach = self._rules.reach()
        for key in _PHASE_METRICS:
            reach[key] = max(reach.get(key, 0), _PHASE_REACH_S)
        self._rings = Rings({key: seconds + together_s - GRID_S + wait_s for key, seconds in reach.items()})
        self._events: deque[Event] = deque(maxlen=10_000)
        self._watches: dict[str, _JobWatch] = {}
        self._jobs: tuple[LiveJob, ...] = ()
        self._done_s: int | None = None
        self._leftover: list[StoredFinding] = []

    @property
    def open(self) -> tuple[StoredFinding, ...]:
        """Findings that hold now."""
        return tuple(one for watch in self._watches.values() for one in watch.open_findings())

    def observe(self, frames: Iterable[Frame]) -> None:
        """Take in samples, in time order per source."""
        for frame in frames:
            self._rings.put(frame)

    def observe_events(self, events: Iterable[Event]) -> None:
        """Take in events of this node."""
        self._events.extend(events)

    def set_jobs(self, jobs: Sequence[LiveJob]) -> None:
        """The jobs that run now; findings of those that are gone are closed at the next evaluation."""
        self._jobs = tuple(jobs)

    def evaluate(self, now_ms: int) -> list[StoredFinding]:
        """Judge up to `now_ms`: findings that opened, changed or closed since the last call."""
        last_s = now_ms // 1000 // GRID_S * GRID_S
        done_s = last_s - GRID_S if self._done_s is None else self._done_s
        if done_s < last_s - _LATE_S or done_s > last_s:
            done_s = last_s - GRID_S
        changed: list[StoredFinding] = []
        pending = range(done_s + GRID_S, last_s + 1, GRID_S)
        batches = [pending[at : at + self._together] for at in range(0, len(pending), self._together)]
        self._follow(now_ms, batches, changed)
        for times in batches:
            for watch in self._watches.values():
                changed += watch.evaluate(times, self._events)
        self._done_s = last_s
        self._forget(now_ms)
        return changed

    def _follow(self, now_ms: int, batches: Sequence[range], changed: list[StoredFinding]) -> None:
        """Begin to watch new jobs, judge those that ended for the last time."""
        wanted = {one.job.key: one for one in (*self._jobs, *self._without_job(now_ms))}
        for key in [key for key, watch in self._watches.items() if not watch.goes_on(wanted.get(key))]:
            ended = self._watches.pop(key)
            for times in batches:
                changed += (one for one in ended.evaluate(times, self._events) if one.end_ms is not None)
            changed += (one for one in ended.catch_up(self._events) if one.end_ms is not None)
            changed += ended.close(now_ms)
        for key, one in wanted.items():
            if key in self._watches:
                changed += self._watches[key].update(one, self._events)
            else:
                rules = self._rules if key else RuleSet({r.id: r for r in self._rules if r.jobless})
                self._watches[key] = _JobWatch(
                    one, rules, self._rings, self._node, now_ms // 1000, self._wait_s
                )

    def _without_job(self, now_ms: int) -> list[LiveJob]:
        """The devices that no job has, watched as if they had one."""
        taken = {allocation.source for one in self._jobs for allocation in one.allocations}
        free = [gpu for gpu in self._rings.gpus() if gpu not in taken and gpu.node == self._node]
        before = self._watches.get("")
        start_ms = before.live.job.start_ms if before else now_ms
        if before and before.gpus != tuple(free):
            start_ms = now_ms
        if not free or not any(rule.jobless for rule in self._rules):
            return []
        job = Job("", "", start_ms)
        return [LiveJob(job, tuple(Allocation("", gpu, start_ms, None, "") for gpu in free))]

    def _forget(self, now_ms: int) -> None:
        oldest = now_ms - (self._rules.horizon + 60 + self._wait_s) * 1000
        while self._events and self._events[0].time_ms < oldest:
            self._events.popleft()
        self._rings.forget_before(now_ms - _FORGET_MS)


class _JobWatch:
    """One job on this node."""

    def __init__(
        self, live: LiveJob, rules: RuleSet, rings: Rings, node: str, now_s: int, wait_s: int
    ) -> None:
        self.live = live
        self._rules = rules
        self._rings = rings
        self._node = node
        self._allocations = _by_source(live)
        self.gpus = _gpus(live, node)
        self._horizon = rules.horizon
        job = live.job
        self._tracker = PhaseTracker(job.tags)
        self._begin_s = job.start_ms // 1000
        self._labels: Codes = np.empty(0, dtype=np.int8)
        # a job older than this program is followed from now on: its phases begin anew, nothing older is made up
        unseen = max(0, now_s - self._begin_s - _LATE_S) // GRID_S * GRID_S
        self._labels_from_s = self._seen_s = self._begin_s + unseen
        first = self._stretch(self._begin_s)
        tagged = set(job.tags)
        runs = [RuleRun(rule, first.rows(rule.scope)) for rule in rules if not tagged & set(rule.unless_tags)]
        self._runs = [run for run in runs if run.sources]
        self._wait_s = wait_s
        self._waiting: deque[int] = deque()
        self._told: dict[tuple[str, Source, int], tuple[object, ...]] = {}
        self._open: dict[tuple[str, Source, int], StoredFinding] = {}

    def goes_on(self, live: LiveJob | None) -> bool:
        """Whether this is still the same job on the same devices."""
        return live is not None and (live.job.key != "" or _gpus(live, self._node) == self.gpus)

    def update(self, live: LiveJob, events: Iterable[Event]) -> list[StoredFinding]:
        """Take in what is known of the job now; GPUs that came or went change what is watched from here on."""
        changed: list[StoredFinding] = []
        gpus = _gpus(live, self._node)
        if gpus != self.gpus:
            changed = self.catch_up(events)
            self.gpus = gpus
            self._regroup()
        if live.allocations != self.live.allocations:
            self._allocations = _by_source(live)
        self.live = live
        return changed

    def _regroup(self) -> None:
        by_rule = {run.rule.id: run for run in self._runs}
        stretch = self._stretch(self._seen_s)
        for rule in self._rules:
            run = by_rule.get(rule.id)
            if run is not None and rule.scope == "gpu":
                by_rule[rule.id] = run.with_sources(stretch.rows("gpu"))
        self._runs = list(by_rule.values())

    def open_findings(self) -> list[StoredFinding]:
        return list(self._open.values())

    def evaluate(self, times: Sequence[int], events: Iterable[Event]) -> list[StoredFinding]:
        """Take in successive multiples of 10 s, and judge those rules of which enough wait to be worth it."""
        end_ms = self.live.job.end_ms
        self._waiting.extend(
            t for t in times if t > self._begin_s and (end_ms is None or t <= -(-end_ms // 1000))
        )
        if self._waiting and self._waiting[-1] - self._seen_s >= self._wait_s:
            self._label(self._waiting[-1], events)
        due = [run for run in self._runs if any(t % self._bunch_s(run.rule) == 0 for t in times)]
        changed = self._judge(due, events)
        while self._waiting and self._waiting[0] <= times[-1] - max(self._wait_s, GRID_S):
            self._waiting.popleft()
        return changed

    def catch_up(self, events: Iterable[Event]) -> list[StoredFinding]:
        """Judge what still waits."""
        return self._judge(self._runs, events)

    def _bunch_s(self, rule: Rule) -> int:
        """Seconds between looks at a rule: a multiple of its step; events are told at once."""
        wait_s = min(self._wait_s, rule.window // 2) if rule.requires else 0
        return max(wait_s // rule.step, 1) * rule.step

    def _judge(self, due: Sequence[RuleRun], events: Iterable[Event]) -> list[StoredFinding]:
        """Evaluate runs at their times since the last."""
        pending = [
            (run, own)
            for run in due
            if (own := [t for t in self._waiting if t % run.rule.step == 0 and t > run.judged_s])
        ]
        if not pending:
            return []
        now_s = self._waiting[-1]
        if any(run.rule.lag for run, _ in pending):  # the others look at no phase
            self._label(now_s, events)
        views = Views(self._stretch(now_s, min(own[0] for _, own in pending), tuple(events)))
        for run, own in pending:
            run.advance(views, np.array(own, dtype=np.int64))
        return self._changes([run for run, _ in pending], now_s)

    def _stretch(self, now_s: int, first_s: int | None = None, events: tuple[Event, ...] = ()) -> Stretch:
        start_s = (now_s if first_s is None else first_s) - self._horizon
        known = {device.source: device for device in self.live.devices}
        from_ms, until_ms = self.live.job.start_ms, now_s * 1000
        mine = tuple(e for e in events if e.source.node == self._node and from_ms <= e.time_ms < until_ms)
        return Stretch(
            self._node,
            self.live.job,
            start_s,
            now_s - start_s,
            self.gpus,
            lambda source, metric, at: self._column(source, metric, start_s + at, now_s),
            self._codes(start_s, now_s),
            known,
            mine,
            max(1, len({allocation.source.node for allocation in self.live.allocations})),
            partial=True,
        )

    def _column(self, source: Source, metric: str, first: int, last: int) -> Floats:
        values = self._rings.window(source, metric, first, last)
        if first < self._begin_s:
            values[: self._begin_s - first] = np.nan
        belongs = allocated(self._allocations.get(source, ()), source, first, last - first)
        if belongs is not None:
            values[~belongs] = np.nan
        return values

    def _codes(self, first: int, last: int) -> Codes:
        codes = np.full(last - first, NO_PHASE)
        begin = max(first, self._labels_from_s)
        labels = self._labels[begin - self._labels_from_s : max(0, last - self._labels_from_s)]
        codes[begin - first : begin - first + len(labels)] = labels
        return codes

    def _label(self, now_s: int, events: Iterable[Event]) -> None:
        """Give the phase tracker the seconds since the last time."""
        first = self._seen_s
        if now_s <= first:
            return
        fold = ActivityFold(first * 1000, now_s - first)
        known = {device.source: device for device in self.live.devices}
        for gpu in self.gpus:
            total = known[gpu].memory_total_bytes if gpu in known else None
            fold.add_device(lambda metric, gpu=gpu: self._column(gpu, metric, first, now_s), total)  # type: ignore[misc]
        for scope in ("node", "job"):
            source = host_source(self._node, self.live.job, scope)
            fold.add_host(scope, lambda metric, source=source: self._column(source, metric, first, now_s))  # type: ignore[misc]
        share = host_source(self._node, self.live.job, "job")
        marks = [event for event in events if event.source == share]
        self._labels = np.concatenate((self._labels, self._tracker.advance(fold.result(), marks)))
        self._seen_s = now_s
        surplus = len(self._labels) - self._horizon - _LATE_S
        if surplus > _LATE_S:
            self._labels = self._labels[surplus:]
            self._labels_from_s += surplus

    def _changes(self, runs: Iterable[RuleRun], now_s: int) -> list[StoredFinding]:
        changed = []
        for run in runs:
            for source, watch in zip(run.sources, run.watches, strict=True):
                for episode in [*watch.closed, *([watch.current] if watch.current else [])]:
                    interval = run.interval(episode, self._begin_s, now_s)
                    finding = self._finding(run, source, interval)
                    if self._is_news(finding, interval, now_s):
                        changed.append(finding)
                del watch.closed[:-1]
        return changed

    def _is_news(self, finding: StoredFinding, interval: FiredInterval, now_s: int) -> bool:
        key = finding.rule, finding.source, finding.start_ms
        end_ms = None if interval.open else interval.end_ms  # it may have gone on for a while and ended again
        signature = interval.open, interval.severity, interval.confidence, end_ms
        told = self._told.get(key)
        if interval.open:
            self._open[key] = finding
        else:
            self._open.pop(key, None)
        fresh = told is None or told[0] != signature
        grown = interval.open and told is not None and now_s - int(str(told[1])) >= _UPDATE_S
        if fresh or grown:
            self._told[key] = signature, now_s
            return True
        return False

    def _finding(self, run: RuleRun, source: Source, interval: FiredInterval) -> StoredFinding:
        return StoredFinding(
            run.rule.id,
            source,
            interval.start_ms,
            None if interval.open else interval.end_ms,
            interval.severity,
            self.live.job.key,
            body_of(interval, run.rule.cause),
        )

    def close(self, now_ms: int) -> list[StoredFinding]:
        """The job is over: whatever was open ends with it."""
        end_ms = self.live.job.end_ms or now_ms
        closed = [
            StoredFinding(
                f.rule, f.source, f.start_ms, max(end_ms, f.start_ms), f.severity, f.job_key, f.body
            )
            for f in self._open.values()
        ]
        self._open.clear()
        return closed


def _by_source(live: LiveJob) -> dict[Source, list[Allocation]]:
    found: dict[Source, list[Allocation]] = {}
    for allocation in live.allocations:
        found.setdefault(allocation.source, []).append(allocation)
    return found


def _gpus(live: LiveJob, node: str) -> tuple[Source, ...]:
    own = {a.source for a in live.allocations if a.source.scope == "gpu" and a.source.node == node}
    return tuple(sorted(own))


def body_of(interval: FiredInterval, cause: str) -> Json:
    """A finding's evidence and advice as it is stored."""
    return {
        "summary": str(interval.summary),
        "confidence": interval.confidence,
        "cause": cause,
        "lost_ratio": interval.lost,
        "announced_ms": interval.announced_ms,
        "evidence": [{"name": e.name, "value": e.value, "unit": e.unit} for e in interval.evidence],
        "hints": [{"tier": advice.tier, "text": str(advice.text)} for advice in interval.advice],
    }
