"""Each running job's share of this node: its cgroup, its processes, its workers. This tells input stalls apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpudiag.agent.attribution.cgroup_tree import CgroupTree
from gpudiag.agent.attribution.run import RunningJob
from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.cgroup import CgroupLimits, CgroupReader, CgroupUsage, enclosing_cgroups
from gpudiag.agent.collectors.counters import Change, Counters
from gpudiag.agent.collectors.frames import share
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.collectors.pressure import stall_ratios
from gpudiag.agent.collectors.process import MAIN, WORKER, Member, ProcessTree
from gpudiag.agent.proc_stat import TICKS_PER_SECOND
from gpudiag.message import Message
from gpudiag.storage.job import Event
from gpudiag.storage.sample import JOB_PREFIX, Frame, Source

REFRESH_SECONDS = 5.0  # how often new processes are looked for, and storage bytes of processes are read
THOROUGH_SECONDS = 30.0
PSS_SECONDS = 60.0
PSS_DUTY = 1000.0  # reading PSS holds the process's memory map: at most a thousandth of the time
PRESSURES = {
    "cpu.some": "job_pressure_cpu_some_ratio",
    "io.some": "job_pressure_io_some_ratio",
    "memory.full": "job_pressure_memory_full_ratio",
}
IO_METRICS = ("job_read_bytes_per_second", "job_write_bytes_per_second")
UNBOUNDED = CgroupLimits(None, None, None)
Values = dict[str, float | None]


class Jobs(Protocol):
    """Who knows which jobs run here: `attribution.Attribution`."""

    cgroups: CgroupTree
    running: tuple[RunningJob, ...]


class JobCollector:
    """A frame per running job; frames of a job begin when its key is known and end with the job."""

    name = "job"

    def __init__(
        self,
        root: HostRoot,
        node: str,
        clock: Clock,
        jobs: Jobs,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._root, self._node, self._clock, self._jobs = root, node, clock, jobs
        self._stopwatch = stopwatch
        self._watched: dict[str, JobWatch] = {}

    def collect(self, now_ms: int) -> Iterable[Frame | Event]:
        running = self._jobs.running
        if not running:
            self._watched = {}
            raise NothingToCollect(Message("no job runs here"))
        self._watched = {one.job.key: self._watch(one) for one in running}
        results: list[Frame | Event] = []
        for one in running:
            results += self._watched[one.job.key].collect(one, now_ms)
        return results

    def _watch(self, running: RunningJob) -> JobWatch:
        known = self._watched.get(running.job.key)
        if known is not None and known.identity == running.identity:
            return known
        return JobWatch(self._root, self._node, self._clock, self._jobs.cgroups, running, self._stopwatch)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class _Pss:
    """A round over all processes of the job, one at a time."""

    waiting: list[int] = field(default_factory=list)
    total: int = 0
    complete: bool = False
    next_read: float = float("-inf")
    next_round: float = float("-inf")


class JobWatch:
    """What is remembered of one job between two ticks."""

    def __init__(
        self,
        root: HostRoot,
        node: str,
        clock: Clock,
        tree: CgroupTree,
        running: RunningJob,
        stopwatch: Callable[[], float],
    ) -> None:
        self.identity = running.identity
        self._root, self._clock, self._tree, self._stopwatch = root, clock, tree, stopwatch
        self._source = Source(node, JOB_PREFIX + running.job.key)
        self._processes = ProcessTree(root)
        self._reader = CgroupReader(root, tree, running.identity) if running.identity else None
        self._limits = UNBOUNDED
        self._usage, self._cpu, self._io = (Counters(clock.monotonic) for _ in range(3))
        self._next_refresh = self._next_thorough = float("-inf")
        self._oom_kills: float | None = None
        self._io_of_processes = False
        self._pss = _Pss()

    def collect(self, running: RunningJob, now_ms: int) -> list[Frame | Event]:
        """One reading of the job."""
        now = self._clock.monotonic()
        values: Values = {}
        someone_left = self._processes.update()
        refreshed = now >= self._next_refresh or someone_left
        if refreshed:
            self._refresh(running, now)
            values["job_processes"] = len(self._processes.members) or None
        cpu = self._cpu.advance(
            {member.key: member.stat.cpu_ticks for member in self._processes.members.values()}
        )
        if cpu is not None:
            values.update(self._process_values(cpu))
        if refreshed:
            values.update(self._transferred())
        values["loader_workers"] = len(self._processes.with_role(WORKER)) if self._has_main else None
        values.update(self._pss_values(now))
        events = self._cgroup_values(values, now_ms)
        values["job_cpus_allowed"] = self._limits.cpus
        values["job_memory_limit_bytes"] = self._limits.memory
        measured = {name: value for name, value in values.items() if value is not None}
        origins = {name: self._io_origin for name in IO_METRICS if name in measured}
        frames: list[Frame | Event] = [Frame(self._source, now_ms, measured, origins)] if measured else []
        return frames + list(events)

    @property
    def _io_origin(self) -> str:
        return "processes" if self._io_of_processes else "cgroup"

    @property
    def _has_main(self) -> bool:
        return bool(self._processes.with_role(MAIN))

    def _refresh(self, running: RunningJob, now: float) -> None:
        thorough = now >= self._next_thorough
        inside = self._tree.pids(self.identity) if self.identity is not None else None
        roots = () if running.root_pid is None else (running.root_pid,)
        self._processes.refresh(running.pids, inside or None, thorough, roots)
        self._next_refresh = now + REFRESH_SECONDS
        if thorough:
            self._next_thorough = now + THOROUGH_SECONDS
            self._limits = self._find_limits([*running.pids, *roots])

    def _find_limits(self, pids: Sequence[int]) -> CgroupLimits:
        reader = self._reader
        if reader is None and pids:
            enclosing = enclosing_cgroups(self._root.read_if_there(f"proc/{pids[0]}/cgroup") or "")
            reader = CgroupReader(self._root, self._tree, enclosing)
        limits = UNBOUNDED if reader is None else reader.limits()
        cpus = [one for one in (limits.cpus, self._processes.cpus_allowed()) if one is not None]
        return CgroupLimits(min(cpus, default=None), limits.memory, limits.quota_folder)

    # -- processes ---------------------------------------------------------------------------------------------

    def _process_values(self, cpu: Change) -> Values:
        workers = self._processes.with_role(WORKER)
        main = _cores(cpu, self._processes.with_role(MAIN))
        loading = _cores(cpu, workers)
        waiting = sum(one.stat.state == "D" for one in workers)
        values: Values = {
            "main_cpu_ratio": max(main, default=None),
            "loader_cpu_ratio": sum(loading) / len(loading) if loading else None,
            "loader_dstate_ratio": waiting / len(workers) if workers else None,
        }
        if self._reader is None:
            used = _cores(cpu, self._processes.members.values())
            if used and self._limits.cpus:
                values["job_cpu_busy_ratio"] = sum(used) / self._limits.cpus
        return values

    def _transferred(self) -> Values:
        transferred = self._processes.transferred()
        self._io_of_processes = bool(transferred)
        change = self._io.advance(transferred)
        if change is None:
            return {}
        return {
            "job_read_bytes_per_second": change.total("/read"),
            "job_write_bytes_per_second": change.total("/write"),
        }

    def _pss_values(self, now: float) -> Values:
        pss = self._pss
        if not pss.waiting and now >= pss.next_round:
            self._pss = pss = _Pss(list(self._processes.members), 0, True, pss.next_read, now + PSS_SECONDS)
        if not pss.waiting or now < pss.next_read:
            return {}
        pid = pss.waiting.pop()
        started = self._stopwatch()
        size = self._processes.pss(pid)
        pss.next_read = now + (self._stopwatch() - started) * PSS_DUTY
        if size is None:
            pss.complete = pss.complete and pid not in self._processes.members
        else:
            pss.total += size
        if pss.waiting or not pss.complete or not pss.total:
            return {}
        values: Values = {"process_pss_bytes": pss.total}
        if self._reader is None:
            values["job_memory_working_set_bytes"] = pss.total
        return values

    # -- cgroup ------------------------------------------------------------------------------------------------

    def _cgroup_values(self, values: Values, now_ms: int) -> list[Event]:
        if self._reader is None:
            return []
        usage = self._reader.usage(self._limits)
        change = self._usage.advance(usage.counters)
        if change is not None:
            values.update(self._rates(change))
        values.update(
            job_memory_working_set_bytes=usage.working_set,
            job_memory_anon_bytes=usage.anon,
            job_memory_file_bytes=usage.file,
            job_memory_shmem_bytes=usage.shmem,
            job_oom_kills_total=usage.oom_kills,
        )
        return self._oom_events(usage, now_ms)

    def _rates(self, change: Change) -> Values:
        rates = stall_ratios(change, PRESSURES)
        rates["job_cpu_throttled_ratio"] = share(change.amount("throttled"), change.amount("periods"))
        used = change.rate("cpu_seconds")
        if used is not None and self._limits.cpus:
            rates["job_cpu_busy_ratio"] = used / self._limits.cpus
        if not self._io_of_processes:  # processes count network file systems too: they come first
            rates["job_read_bytes_per_second"] = change.rate("read")
            rates["job_write_bytes_per_second"] = change.rate("write")
        return rates

    def _oom_events(self, usage: CgroupUsage, now_ms: int) -> list[Event]:
        before, self._oom_kills = self._oom_kills, usage.oom_kills
        if before is None or usage.oom_kills is None or usage.oom_kills <= before:
            return []
        detail = {"killed": int(usage.oom_kills - before), "known_from": "cgroup"}
        return [Event(self._source, now_ms, "cgroup_oom_kill", detail=detail)]


def _cores(change: Change, members: Iterable[Member]) -> list[float]:
    """CPU over the interval of each process that was there all the time, 1 is one core."""
    rates = (change.rate(member.key, 1 / TICKS_PER_SECOND) for member in members)
    return [rate for rate in rates if rate is not None]
