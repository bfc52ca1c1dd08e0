"""What is there now: jobs' cgroups, processes on GPUs, and what drop-in directories list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.agent.attribution.cgroup_tree import CgroupTree, SlurmCgroups
from gpudiag.agent.attribution.drop_in import read_directories
from gpudiag.agent.attribution.facts import Facts
from gpudiag.agent.attribution.identity import CgroupIdentity
from gpudiag.agent.attribution.pod_resources import PodResources
from gpudiag.agent.attribution.processes import ProcessIdentity, ProcessTable
from gpudiag.agent.attribution.run import Ident
from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.gpu import GpuProcess
from gpudiag.agent.hook_files import HookFile
from gpudiag.agent.proc_stat import TICKS_PER_SECOND, read_proc_stat

if TYPE_CHECKING:
    from gpudiag.agent.attribution.pod_labels import Labels, PodLabels

DISCOVER_SECONDS = 30.0
_LATEST = 16  # processes asked for their environment: the latest are the user's own, not slurmstepd
_ALIASES_KEPT = 10_000


@dataclass
class Sighting:
    """Everything seen of one job in this tick; `used` maps UUIDs to where the use is known from."""

    ident: Ident
    identity: CgroupIdentity | None = None
    pids: dict[int, int] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    listed: tuple[str, ...] = ()
    since_ms: int | None = None


class Observer:
    """Looks once per tick. `aliases` maps what a cgroup calls a job to the better name that something has told."""

    def __init__(
        self,
        root: HostRoot,
        clock: Clock,
        cgroups: CgroupTree,
        processes: ProcessTable,
        job_directories: Sequence[Path],
        pods: PodResources | None = None,
        pod_labels: PodLabels | None = None,
    ) -> None:
        self._root, self._clock, self._cgroups, self._processes = root, clock, cgroups, processes
        self._job_directories = tuple(job_directories)
        self._slurm = SlurmCgroups(root, cgroups)
        self._discover_at = float("-inf")
        self._tried: set[str] = set()
        self._pods, self._pod_labels = pods, pod_labels
        self.aliases: dict[Ident, Ident] = {}

    @property
    def slurm_uses_cgroups(self) -> bool:
        """Whether slurmd keeps a place for its jobs' cgroups here."""
        return bool(self._slurm.roots)

    def learn_sluid(self, sluid: str, number: str) -> None:
        """A hook or the scheduler told the number of the job."""
        if sluid and number:
            self._learn(("sluid", sluid), ("slurm", number))

    def _learn(self, given: Ident, better: Ident) -> None:
        if len(self.aliases) > _ALIASES_KEPT:
            self.aliases.clear()
        self.aliases[given] = better

    def observe(self, gpu_processes: Sequence[GpuProcess], hooks: Iterable[HookFile]) -> list[Sighting]:
        """One sighting per job that shows itself."""
        sightings: dict[Ident, Sighting] = {}
        for identity in self._scan_slurm():
            if self._cgroups.populated(identity):
                _of(sightings, self._resolve(identity, None)).identity = identity
        self._see_pods(sightings)
        roots = {one.hook.pid: one for one in hooks if one.hook.kind == "run" and one.hook.pid is not None}
        found = self._processes.lookup({process.pid for process in gpu_processes})
        for process in gpu_processes:
            if process.pid in found:
                self._see_process(sightings, process.uuid, found[process.pid], roots)
        for listing in read_directories(self._job_directories).values():
            sighting = _of(sightings, ("slurm", listing.raw_id))
            sighting.listed, sighting.since_ms = listing.references, listing.since_ms
        return list(sightings.values())

    def estimate_start(self, sighting: Sighting, now_ms: int) -> int:
        """When the oldest process of the job started; every node of the job may say something else."""
        if sighting.since_ms is not None:
            return min(sighting.since_ms, now_ms)
        pids = list(sighting.pids)
        if sighting.identity is not None:
            pids += self._cgroups.pids(sighting.identity)
        stats = [stat for pid in pids if (stat := read_proc_stat(self._root, pid)) is not None]
        if not stats:
            return now_ms
        age = self._clock.boottime() - min(stat.start_ticks for stat in stats) / TICKS_PER_SECOND
        return now_ms - max(0, round(age * 1000))

    def _scan_slurm(self) -> list[CgroupIdentity]:
        if self._clock.monotonic() >= self._discover_at:
            self._slurm.discover()
            self._discover_at = self._clock.monotonic() + DISCOVER_SECONDS
        return self._slurm.scan()

    def _see_pods(self, sightings: dict[Ident, Sighting]) -> None:
        if self._pods is None:
            return
        self._pods.poll()
        labels: Labels = {}
        if self._pod_labels is not None:
            self._pod_labels.poll()
            labels = self._pod_labels.labels
        for pod in self._pods.pods:
            sighting = _of(sightings, ("kubernetes", pod.id))
            sighting.listed = pod.uuids
            meta: dict[str, object] = {"namespace": pod.namespace, "pod": pod.name}
            if (pod.namespace, pod.name) in labels:
                meta["labels"] = dict(labels[(pod.namespace, pod.name)])
            sighting.facts = Facts(raw_id=pod.id, id=pod.name, name=pod.name, meta=meta)

    def _see_process(
        self,
        sightings: dict[Ident, Sighting],
        uuid: str,
        known: ProcessIdentity,
        roots: Mapping[int, HookFile],
    ) -> None:
        ident, origin = self._place(known, roots)
        if ident is None:
            return
        ident = self._named_pod(ident, uuid)
        sighting = _of(sightings, ident)
        sighting.pids[known.pid] = known.start_ticks
        sighting.used[uuid] = origin
        if known.facts is not None and origin != "process":
            sighting.facts = sighting.facts.over(known.facts)
        if known.cgroup is not None and origin == "cgroup":
            sighting.identity = sighting.identity or known.cgroup

    def _named_pod(self, ident: Ident, uuid: str) -> Ident:
        """A pod's name for its UID: the only pod that was given this GPU."""
        if ident[0] == "kubernetes" and ident not in self.aliases and self._pods is not None:
            owners = [pod for pod in self._pods.pods if uuid in pod.uuids]
            if len(owners) == 1:
                self._learn(ident, ("kubernetes", owners[0].id))
        return self.aliases.get(ident, ident)

    def _place(self, known: ProcessIdentity, roots: Mapping[int, HookFile]) -> tuple[Ident | None, str]:
        """Which job the process is in: `gpudiag run` inside a job wins, because it is the narrower one."""
        root = self._processes.ancestor_among(known, roots) if roots else None
        if root is not None:
            return ("run", roots[root].hook.file_name), "process"
        if known.cgroup is not None and known.cgroup.kind in ("slurm", "sluid"):
            return self._resolve(known.cgroup, known.facts), "cgroup"
        if known.facts is not None:
            return ("slurm", known.facts.raw_id), "environ"
        if known.cgroup is not None:
            return (known.cgroup.kind, known.cgroup.id), "cgroup"
        return None, ""

    def _resolve(self, identity: CgroupIdentity, facts: Facts | None) -> Ident:
        """A SLUID becomes the job's number as soon as anything tells it."""
        if identity.kind != "sluid":
            return identity.kind, identity.id
        ident: Ident = ("sluid", identity.id)
        if ident not in self.aliases:
            self.learn_sluid(identity.id, facts.raw_id if facts is not None else self._number_of(identity))
        return self.aliases.get(ident, ident)

    def _number_of(self, identity: CgroupIdentity) -> str:
        """The job number in the environment of one of its processes; looked for once."""
        if identity.id in self._tried:
            return ""
        if len(self._tried) > _ALIASES_KEPT:
            self._tried.clear()
        self._tried.add(identity.id)
        for pid in self._cgroups.pids(identity)[-_LATEST:]:
            facts = self._processes.facts(pid)
            if facts is not None:
                return facts.raw_id
        return ""


def _of(sightings: dict[Ident, Sighting], ident: Ident) -> Sighting:
    return sightings.setdefault(ident, Sighting(ident))
