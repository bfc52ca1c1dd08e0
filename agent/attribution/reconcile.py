"""Keeps the list of jobs of this node true, every tick, from all places that know something.

Cgroups and processes show what lives; hook files, the scheduler and drop-in directories show what was given.
No single place is believed when it says that a job runs: a run ends when nothing of it is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.agent.attribution.cgroup_tree import CgroupTree
from gpudiag.agent.attribution.facts import Facts
from gpudiag.agent.attribution.hook_source import HookSource
from gpudiag.agent.attribution.identity import CgroupIdentity
from gpudiag.agent.attribution.pod_resources import PodResources
from gpudiag.agent.attribution.presumed import KEPT_MS, SILENCE_MS, SILENT, Presumption
from gpudiag.agent.attribution.processes import ProcessTable
from gpudiag.agent.attribution.run import Ident, Run, RunningJob
from gpudiag.agent.attribution.scontrol import Scontrol
from gpudiag.agent.attribution.sightings import Observer, Sighting
from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.gpu import GpuProcess
from gpudiag.agent.hook_files import Hook, HookFile
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import NODE, Source

if TYPE_CHECKING:
    from gpudiag.agent.attribution.pod_labels import PodLabels

END_GRACE_MS = 30_000  # between two steps a job may have neither cgroup nor process
RECORDER_GRACE_MS = (
    5_000  # a recorder that lives tells the end of its command within this time, on a busy node too
)
FACTS_WAIT_MS = 30_000  # how long a job's row waits for the scheduler's own start of it
FINAL_WAIT_MS = 60_000  # how long an ended job's row is kept open for its final state
ASK_AGAIN_MS = 60_000
LAUNCH_MS = (
    600_000  # how long a Slurm job may have a prolog and neither cgroup nor process nor the scheduler's word
)
SAME_START_MS = 1000
ANOTHER_BOOT = "the node was started anew"
NEVER_CAME = "a prolog announced it, but no cgroup or process of it was seen"


@dataclass(frozen=True)
class Changes:
    """Rows for the store: jobs and allocations that are new or different, and what happened."""

    jobs: tuple[Job, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    events: tuple[Event, ...] = ()


class Attribution:
    """Attributes the node's GPUs to jobs.

    `job_directories` are of the kinds of `attribution.drop_in`; `scontrol` or `pods` None: nobody is asked there.
    `silence_ms`: how long the GPUs of a job that only a hook knows may be unused until it counts as over; 0: for ever.
    """

    def __init__(
        self,
        root: Path | str,
        node: str,
        clock: Clock,
        *,
        cluster: str = "local",
        runtime_dir: Path | str = "/run/gpudiag",
        job_directories: Sequence[Path] = (),
        scontrol: Scontrol | None = None,
        pods: PodResources | None = None,
        pod_labels: PodLabels | None = None,
        trusted_uids: Sequence[int] = (0, os.getuid()),
        silence_ms: int = SILENCE_MS,
    ) -> None:
        self._root = HostRoot.at(root)
        self._node, self._clock, self._cluster = node, clock, cluster
        self._hooks = HookSource(Path(runtime_dir), self._root, trusted_uids)
        self._scontrol = scontrol
        self.cgroups = CgroupTree(self._root)
        self._processes = ProcessTable(self._root)
        self._observer = Observer(
            self._root, clock, self.cgroups, self._processes, job_directories, pods, pod_labels
        )
        self._presumption = Presumption(self._root, clock, silence_ms)
        self._boot_id = (self._root.read_if_there("proc/sys/kernel/random/boot_id") or "").strip()
        self._runs: dict[Ident, Run] = {}
        self._ended: list[Run] = []
        self._events: list[Event] = []
        self.running: tuple[RunningJob, ...] = ()

    def restore(self, jobs: Iterable[tuple[Job, Sequence[Allocation]]], last_sample_ms: int) -> None:
        """Take up the jobs that the store says run here, or ended presumably; one that is gone ends at `last_sample_ms`."""
        for job, allocations in jobs:
            kind = str(job.meta.get("kind", "slurm"))
            ident, now_ms = (kind, self._ident_of(kind, job)), self._clock.now_ms()
            run = Run(ident, now_ms, job.start_ms, last_sample_ms, job=job, known_ms=last_sample_ms)
            run.last_sign_ms, run.compared = last_sample_ms, True
            if job.end_ms is not None:
                run.presume(job.end_ms, str(job.meta.get("end_reason") or SILENT))
            run.allocations = {one.source: one for one in allocations if one.source.node == self._node}
            run.hook_start_ms = job.meta.get("hook_start_ms")
            run.facts = Facts(restart=job.restart or None)
            run.cgroup_seen = (
                "cgroup" in job.meta
            )  # gone meanwhile: then a hook file alone does not keep the job
            self._runs[run.ident] = run

    @staticmethod
    def _ident_of(kind: str, job: Job) -> str:
        if kind not in ("run", "hook"):
            return job.raw_id
        return Hook(kind, job.raw_id, job.meta.get("hook_start_ms", job.start_ms)).file_name

    def reconcile(
        self,
        now_ms: int,
        gpu_processes: Sequence[GpuProcess],
        devices: Iterable[Device],
        activity: Mapping[str, bool] | None = None,
    ) -> Changes:
        """Compare what is known with what is there now; `activity` as of `presumed.Presumption`."""
        known = [device for device in devices if device.source.node == self._node]
        self._events = []
        if self._scontrol is not None:
            self._scontrol.poll()
        hooks = self._read_hooks()
        sightings = self._observer.observe(gpu_processes, hooks)
        self._rename_early()
        self._apply_hooks(hooks, now_ms)
        for sighting in sightings:
            self._apply(sighting, now_ms)
        self._ask_scheduler(now_ms)
        self._end_missing(now_ms)
        for run in self._presumption.review(self._runs.values(), now_ms, gpu_processes, activity or {}):
            self._note_missed(run, {"presumed": True, "reason": run.presumed})
        return self._publish(now_ms, known)

    # -- what follows from it ----------------------------------------------------------------------------------

    def _read_hooks(self) -> list[HookFile]:
        hooks = self._hooks.read()
        for one in hooks:
            self._observer.learn_sluid(one.hook.sluid, one.hook.raw_id)
        return hooks

    def _rename_early(self) -> None:
        """Runs that were begun under a SLUID or a pod's UID whose better name is known by now."""
        for ident in [one for one in self._runs if one in self._observer.aliases]:
            early, better = self._runs.pop(ident), self._observer.aliases[ident]
            if better not in self._runs:
                early.ident = better
                sluid = ident[1] if ident[0] == "sluid" else ""
                early.facts = replace(early.facts, raw_id=better[1], sluid=sluid)
                self._runs[better] = early

    def _apply_hooks(self, hooks: Sequence[HookFile], now_ms: int) -> None:
        for found in hooks:
            ident = _hook_ident(found)
            run = self._runs.get(ident)
            if found.hook.meta.get("start_unknown"):
                self._apply_end(run, found, now_ms)
                continue
            if run is not None and not _same_run(run, found):
                # the same id starts again while nobody told the end of the run before
                self._finish(run, max(run.start_ms, min(found.hook.start_ms, now_ms)), missed=True)
                run = None
            if run is None and not self._ended_run(found):
                run = self._begin(ident, now_ms, found.hook.start_ms)
                if self._of_another_boot(found.hook):
                    run.last_seen_ms = run.start_ms
            if run is not None:
                run.hook = found
                self._take_devices_from_older(run, now_ms)
            if found.hook.end_ms is not None:
                self._apply_end(run or self._ended_run(found), found, now_ms)

    def _ended_run(self, found: HookFile) -> Run | None:
        for run in self._ended:
            if run.hook is not None and run.hook.hook.file_name == found.hook.file_name:
                return run
        return None

    def _apply_end(self, run: Run | None, found: HookFile, now_ms: int) -> None:
        hook = found.hook
        if run is not None and hook.end_ms is not None:
            run.state, run.exit_code, run.end_exact = hook.state, hook.exit_code, True
            self._presumption.told_after(run, hook.end_ms)
            run.take_back()
            if run.end_ms is None:
                self._finish(run, min(hook.end_ms, max(now_ms, run.start_ms)))
            else:
                run.end_ms = hook.end_ms
        self._hooks.take(found)

    def _take_devices_from_older(self, run: Run, now_ms: int) -> None:
        """A scheduler gives a device again only when it is free: the one before missed its epilog."""
        assert run.hook is not None
        wanted = set(run.hook.hook.devices or ())
        for other in list(self._runs.values()):
            if other is run or other.hook is None or run.ident[0] != "slurm" or other.ident[0] != "slurm":
                continue
            shared = wanted & set(other.hook.hook.devices or ())
            older = other.hook.hook.start_ms < run.hook.hook.start_ms
            if shared and older and not self._lives(other):
                self._finish(other, run.hook.hook.start_ms, missed=True)

    def _apply(self, sighting: Sighting, now_ms: int) -> None:
        run = self._runs.get(sighting.ident)
        if run is not None and self._is_another(run, sighting):
            self._finish(run, max(run.start_ms, run.last_seen_ms), missed=run.hook is not None)
            run = None
        if run is None:
            run = self._begin(sighting.ident, now_ms, self._observer.estimate_start(sighting, now_ms))
        run.take_back()
        if sighting.identity is not None or sighting.pids or (sighting.listed and not run.cgroup_seen):
            run.last_seen_ms = now_ms
        run.listed = sighting.listed or run.listed
        facts = sighting.facts.over(run.facts)
        if facts != run.facts:
            run.facts = facts
        run.pids.update(sighting.pids)
        run.used.update((uuid, origin) for uuid, origin in sighting.used.items() if uuid not in run.used)
        if sighting.identity is not None:
            self._see_cgroup(run, sighting.identity)

    def _see_cgroup(self, run: Run, identity: CgroupIdentity) -> None:
        if run.identity is None or set(identity.controllers) - set(run.identity.controllers):
            run.identity = identity
            if identity.kind == "sluid":
                run.facts = replace(run.facts, sluid=identity.id)
        run.cgroup_seen = True
        inode = self.cgroups.inode(identity)
        if run.inode not in (0, inode):
            run.asked_ms = None  # a new directory may be a new run: ask the scheduler again
        run.inode = inode

    @staticmethod
    def _is_another(run: Run, sighting: Sighting) -> bool:
        """Whether the same id now names another run: requeued, or the number was used again."""
        new, old = sighting.facts, run.known
        if new.start_ms is not None and old.start_ms is not None:
            return new.start_ms != old.start_ms
        if new.restart is not None and old.restart is not None and new.restart != old.restart:
            return True
        uids = [
            one.uid for one in (sighting.identity, run.identity) if one is not None and one.uid is not None
        ]
        return len(set(uids)) > 1

    def _begin(self, ident: Ident, now_ms: int, start_ms: int) -> Run:
        run = Run(ident, now_ms, min(start_ms, now_ms), now_ms, known_ms=now_ms, last_sign_ms=now_ms)
        self._runs[ident] = run
        return run

    def _ask_scheduler(self, now_ms: int) -> None:
        if self._scontrol is None:
            return
        for run in (*self._runs.values(), *self._ended):
            if run.ident[0] not in ("slurm", "sluid"):
                continue
            answer = self._scontrol.take(run.ident[1])
            if answer is not None:
                self._hear(run, answer)
            if run.asked_ms is None or self._should_ask_again(run, now_ms):
                self._scontrol.ask(run.ident[1])
                run.asked_ms = now_ms

    def _should_ask_again(self, run: Run, now_ms: int) -> bool:
        assert run.asked_ms is not None
        if run.end_ms is not None:
            return run.scheduler.state in ("", "running") and now_ms - run.asked_ms > 5000
        doubtful = run.hook is not None and run.last_seen_ms < now_ms
        return doubtful and now_ms - run.asked_ms > ASK_AGAIN_MS

    def _hear(self, run: Run, answer: Facts) -> None:
        run.take_back()  # whoever knows better speaks
        if run.end_ms is not None and run.was_requeued(answer):
            return
        known_start = run.scheduler.start_ms
        if run.end_ms is not None and known_start is not None and answer.start_ms != known_start:
            return  # it runs again already; this is not about the run that ended
        run.scheduler = answer
        if run.ident[0] == "sluid" and answer.raw_id:
            self._observer.learn_sluid(run.ident[1], answer.raw_id)
        elif answer.sluid:
            self._observer.learn_sluid(answer.sluid, answer.raw_id)
        run.hear_end()

    # -- the end -----------------------------------------------------------------------------------------------

    def _lives(self, run: Run) -> bool:
        if run.identity is not None and self.cgroups.populated(run.identity):
            return True
        return any(self._processes.alive(pid, ticks) for pid, ticks in run.pids.items())

    def _end_missing(self, now_ms: int) -> None:
        for run in list(self._runs.values()):
            if run.last_seen_ms == now_ms:
                continue
            if run.presumed:
                if not self._hook_holds(run) or now_ms - (run.end_ms or 0) > KEPT_MS:
                    self._finish(run, run.last_seen_ms, missed=True)
            elif self._of_another_boot(run.hook.hook if run.hook else None):
                run.facts = replace(run.facts, meta={**run.facts.meta, "end_reason": ANOTHER_BOOT})
                self._finish(run, run.last_seen_ms, missed=True)
            elif self._never_came(run, now_ms):
                run.facts = replace(run.facts, meta={**run.facts.meta, "end_reason": NEVER_CAME})
                self._finish(run, max(run.start_ms, run.known_ms), missed=True)
            elif self._lives(run) or self._hook_holds(run):
                run.last_seen_ms = now_ms
            elif now_ms - run.last_seen_ms >= self._grace_ms(run):
                self._finish(run, run.last_seen_ms, missed=run.hook is not None)

    def _of_another_boot(self, hook: Hook | None) -> bool:
        """Whether it began before the node was started the last time: nothing outlives that."""
        return hook is not None and bool(hook.boot_id and self._boot_id) and hook.boot_id != self._boot_id

    def _grace_ms(self, run: Run) -> int:
        if run.ident[0] == "run":
            return RECORDER_GRACE_MS if run.hook is not None and os.path.exists(run.hook.path) else 0
        is_gone = run.scheduler.state not in ("", "running")
        return 0 if is_gone else END_GRACE_MS

    def _never_came(self, run: Run, now_ms: int) -> bool:
        """Whether only a hook speaks for a Slurm job, on a node where Slurm's jobs have cgroups, and has for too long."""
        if run.ident[0] != "slurm" or run.hook is None or run.cgroup_seen or run.pids or run.listed:
            return False
        silent = not run.scheduler.state and now_ms - run.first_seen_ms >= LAUNCH_MS
        return silent and self._observer.slurm_uses_cgroups

    def _hook_holds(self, run: Run) -> bool:
        """Whether an open hook alone keeps the run: not when its cgroup or its process is gone."""
        if run.hook is None or not os.path.exists(run.hook.path):
            return False
        hook = run.hook.hook
        if hook.pid is not None:
            return self._processes.alive(hook.pid, hook.pid_start_ticks)
        if run.scheduler.state:
            return run.scheduler.state == "running"
        return not run.cgroup_seen

    def _finish(self, run: Run, end_ms: int, missed: bool = False) -> None:
        told_before = bool(run.presumed)
        if not told_before:
            run.end_ms = end_ms
        run.hear_end()
        if missed:
            if run.hook is not None:
                self._hooks.take(run.hook)
            if run.ident[0] in ("slurm", "hook") and not told_before:
                reason = run.facts.meta.get("end_reason")
                self._note_missed(run, {"reason": reason} if reason else {})
        if self._runs.get(run.ident) is run:
            del self._runs[run.ident]
        self._ended.append(run)
        run.asked_ms = None

    def _note_missed(self, run: Run, detail: Mapping[str, object]) -> None:
        job = run.job.key if run.job else run.ident[1]
        assert run.end_ms is not None
        source = Source(self._node, NODE)
        self._events.append(Event(source, run.end_ms, "epilog_missed", detail={"job": job, **detail}))

    # -- rows --------------------------------------------------------------------------------------------------

    def _publish(self, now_ms: int, known: Sequence[Device]) -> Changes:
        jobs: list[Job] = []
        allocations: list[Allocation] = []
        running: list[RunningJob] = []
        for run in (*self._runs.values(), *self._ended):
            if run.job is None and not self._is_ready(run, now_ms):
                continue
            self._update_rows(run, known, jobs, allocations)
            if run.end_ms is None and run.job is not None:
                running.append(self._running_job(run))
        self._ended = [run for run in self._ended if run.job is None or not self._is_final(run, now_ms)]
        self.running = tuple(running)
        return Changes(tuple(jobs), tuple(allocations), tuple(self._events))

    def _is_ready(self, run: Run, now_ms: int) -> bool:
        """A key is for ever and the same on all nodes: wait a little for the scheduler's word on the start."""
        if run.ident[0] not in ("slurm", "sluid") or self._scontrol is None:
            return True
        cluster_known = bool(run.known.cluster or self._scontrol.cluster)
        if run.start_exact and cluster_known and run.ident[0] == "slurm":
            return True
        return now_ms - run.first_seen_ms >= FACTS_WAIT_MS

    def _is_final(self, run: Run, now_ms: int) -> bool:
        assert run.end_ms is not None
        if self._scontrol is None or run.ident[0] != "slurm":
            return True
        return run.scheduler.state not in ("", "running") or now_ms - run.end_ms > FINAL_WAIT_MS

    def _update_rows(
        self, run: Run, known: Sequence[Device], jobs: list[Job], allocations: list[Allocation]
    ) -> None:
        scheduler_cluster = self._scontrol.cluster if self._scontrol and run.ident[0] == "slurm" else ""
        cluster = scheduler_cluster or self._cluster
        inputs = run.inputs(cluster, known)
        if run.job is not None and inputs == run.written_from:
            return
        run.written_from = inputs
        job = run.make_job(cluster)
        if job != run.job:
            jobs.append(job)
        run.job = job
        made = run.make_allocations(self._node, known)
        allocations += [one for source, one in made.items() if run.allocations.get(source) != one]
        run.allocations = made

    def _running_job(self, run: Run) -> RunningJob:
        assert run.job is not None
        pids = [pid for pid, ticks in run.pids.items() if self._processes.alive(pid, ticks)]
        run.pids = {pid: run.pids[pid] for pid in pids}
        root_pid = run.hook.hook.pid if run.hook is not None else None
        identity = run.identity if run.ident[0] != "run" else None
        path = identity.path if identity is not None else ""
        return RunningJob(
            run.job, tuple(run.allocations.values()), tuple(sorted(pids)), path, identity, root_pid
        )


def _hook_ident(found: HookFile) -> Ident:
    """Slurm runs a job once at a time on a node; `gpudiag run` may record two commands under one id."""
    hook = found.hook
    return ("slurm", hook.raw_id) if hook.kind == "slurm" else (hook.kind, hook.file_name)


def _same_run(run: Run, found: HookFile) -> bool:
    if run.hook is not None:
        return run.hook.hook.file_name == found.hook.file_name
    if run.hook_start_ms is not None:  # known by this hook before we were restarted
        return run.hook_start_ms == found.hook.start_ms
    if run.job is not None and found.hook.start_exact:
        return run.job.start_ms == found.hook.start_ms
    # seen by its cgroup first: the prolog runs before there is one, but its file may be read after
    return found.hook.start_ms <= run.start_ms + SAME_START_MS
