"""One run of a job on this node, as far as it is known by now, and the rows it becomes in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpudiag.agent.attribution.devices import ALL, resolve
from gpudiag.agent.attribution.facts import NOTHING, Facts
from gpudiag.agent.attribution.identity import CgroupIdentity, Kind
from gpudiag.agent.hook_files import HookFile
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.storable import storable

Ident = tuple[Kind | str, str]  # what kind of job, and the id that tells it apart while it lives

# how surely a device belongs to the job, by where that is known from; a scheduler's own word is certain
CONFIDENCE = {"hook": 1.0, "scheduler": 1.0, "cgroup": 1.0, "kubelet": 1.0, "job_directory": 0.95, "environ": 0.9, "process": 0.9, "visible": 0.6}  # fmt: skip


@dataclass(frozen=True)
class RunningJob:
    """A job that runs on this node now: its rows, GPU processes, and its own cgroup (empty: it has none).

    `root_pid` is the process that `gpudiag run` started; `identity` holds the cgroup of each controller.
    """

    job: Job
    allocations: tuple[Allocation, ...]
    pids: tuple[int, ...]
    cgroup: str
    identity: CgroupIdentity | None = None
    root_pid: int | None = None


@dataclass
class Claim:
    """Device references of a job from one place."""

    known_from: str
    references: tuple[str, ...]


@dataclass
class Run:
    """Mutable record of a run. `start_ms` is when this node first knew it; `last_seen_ms` when it surely lived.

    `known_ms`: when it was first heard of, after a restart of the agent the last sample before it. `presumed`: why its
    end is only presumed; `silent_ms` and `last_sign_ms`: how long its GPUs were seen unused, and when last not.
    """

    ident: Ident
    first_seen_ms: int
    start_ms: int
    last_seen_ms: int
    facts: Facts = field(default_factory=Facts)
    scheduler: Facts = field(default_factory=Facts)
    hook: HookFile | None = None
    identity: CgroupIdentity | None = None
    inode: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    cgroup_seen: bool = False
    hook_start_ms: int | None = None
    asked_ms: int | None = None
    end_ms: int | None = None
    end_exact: bool = False
    presumed: str = ""
    silent_ms: int = 0
    last_sign_ms: int = 0
    compared: bool = False
    state: str = ""
    exit_code: int | None = None
    job: Job | None = None
    known_ms: int = 0
    allocations: dict[Source, Allocation] = field(default_factory=dict)
    written_from: tuple[object, ...] = ()

    @property
    def known(self) -> Facts:
        """Everything known: what the scheduler says comes first, then the hook, then the environment."""
        return self.scheduler.over(hook_facts(self.hook)).over(self.facts)

    def inputs(self, cluster: str, devices: Sequence[Device]) -> tuple[object, ...]:
        """All that the rows are made from, to be compared: most ticks change nothing."""
        told = (self.facts, self.scheduler, self.hook, self.identity, self.listed, dict(self.used))
        return (*told, self.end_ms, self.presumed, self.state, self.exit_code, cluster, devices)

    @property
    def start_exact(self) -> bool:
        """Whether all nodes of the job agree on its start."""
        exact_hook = self.hook is not None and self.hook.hook.start_exact
        return exact_hook or self.known.start_ms is not None

    def hear_end(self) -> None:
        """Take state, exit code and end from the scheduler once it knows them; an epilog's end is more exact."""
        answer = self.scheduler
        if self.end_ms is None or answer.state in ("", "running"):
            return
        self.state = answer.state
        self.exit_code = answer.exit_code if answer.exit_code is not None else self.exit_code
        if not self.end_exact and answer.end_ms is not None:
            self.end_ms = max(self.start_ms, answer.end_ms)

    def presume(self, end_ms: int, reason: str) -> None:
        """It seems to be over; whoever knows better may still say so."""
        self.end_ms, self.presumed = end_ms, reason

    def take_back(self) -> None:
        """It runs after all."""
        if self.presumed:
            self.end_ms, self.presumed, self.silent_ms = None, "", 0

    def was_requeued(self, answer: Facts) -> bool:
        """Whether the scheduler counts one more restart than this run: it was taken off, whatever its epilog says.

        An epilog sees exit code 0 then. A run whose end the scheduler has told keeps that.
        """
        before = self.known.restart
        if self.scheduler.state not in ("", "running") or before is None or (answer.restart or 0) <= before:
            return False
        if self.state in ("", "completed"):
            self.state, self.exit_code = "cancelled", None
        meta = {**self.scheduler.meta, "scheduler_state": "REQUEUED"}
        self.scheduler = replace(self.scheduler, state=self.state, meta=meta)
        return True

    def claims(self) -> list[Claim]:
        """Places that name devices, best first."""
        hooked = self.hook.hook.devices if self.hook else None
        return [
            Claim("hook", hooked or ()),
            Claim("scheduler", self.scheduler.devices),
            Claim("kubelet" if self.ident[0] == "kubernetes" else "job_directory", self.listed),
            Claim("environ", self.facts.devices),
        ]

    def devices(self, known: Sequence[Device]) -> dict[str, str]:
        """UUIDs of the job to where each is known from: what it was given, and what its processes use."""
        found: dict[str, str] = {}
        for claim in self.claims():
            guessed = claim.known_from == "hook" and self.ident[0] == "run" and _by_position(claim.references)
            for uuid in resolve(claim.references, known):
                found.setdefault(uuid, "visible" if guessed else claim.known_from)
        if self.used and "visible" in found.values() and not set(found) & set(self.used):
            # positions were counted inside a container: the processes show which devices were meant
            found = {}
        found.update((uuid, origin) for uuid, origin in self.used.items() if uuid not in found)
        # a card that is cut up belongs to nobody as a whole: the driver lists a process on both
        cut_up = {one.parent_uuid for one in known if one.source.device in found}
        return {uuid: origin for uuid, origin in found.items() if uuid not in cut_up}

    def make_job(self, cluster: str) -> Job:
        """The job's row; key and start stay what they were when the row was first made."""
        facts, before = self.known, self.job
        start_ms = before.start_ms if before else (facts.start_ms or self.start_ms)
        raw_id = before.raw_id if before else (facts.raw_id or self.ident[1])
        made_cluster = before.cluster if before else (facts.cluster or cluster)
        end_ms = self.end_ms if self.end_ms is None else max(self.end_ms, start_ms)
        hook = self.hook.hook if self.hook else None
        made = Job(
            key=before.key if before else f"{made_cluster}/{raw_id}/{start_ms // 1000}",
            id=facts.id or (before.id if before else raw_id),
            start_ms=start_ms,
            end_ms=end_ms,
            cluster=made_cluster,
            raw_id=raw_id,
            name=facts.name or (before.name if before else ""),
            user=facts.user or (before.user if before else ""),
            state=("running" if end_ms is None else self.state or "unknown"),
            exit_code=self.exit_code,
            restart=facts.restart or (before.restart if before else 0),
            tags=(hook.tags if hook else ()) or (before.tags if before else ()),
            meta={**_lasting(before), **self._meta()},
        )
        return Job(**storable(vars(made)))

    def _meta(self) -> Mapping[str, object]:
        meta: dict[str, object] = {"kind": self.ident[0], **self.known.meta}
        if self.presumed:
            meta.update(end_reason=self.presumed, end_presumed=True)
        if self.hook is not None:
            meta.update(self.hook.hook.meta)
            meta["hook_start_ms"] = self.hook.hook.start_ms
        if self.identity is not None:
            meta["cgroup"] = self.identity.path
        if self.known.sluid:
            meta["sluid"] = self.known.sluid
        if (
            self.identity is not None
            and self.identity.kind in ("kubernetes", "container")
            and self.identity.part
        ):
            meta["container"] = self.identity.part
        return meta

    def make_allocations(self, node: str, known: Sequence[Device]) -> dict[Source, Allocation]:
        """Rows for the node itself and each device; a device that turned out not to be meant gets an empty interval."""
        assert self.job is not None
        key, start_ms, end_ms = self.job.key, self.job.start_ms, self.job.end_ms
        places = {NODE: self._node_origin(), **self.devices(known)}
        made = {
            Source(node, device): Allocation(
                key, Source(node, device), start_ms, end_ms, origin, CONFIDENCE.get(origin, 0.5)
            )
            for device, origin in places.items()
        }
        for source, old in self.allocations.items():
            if source in made:
                made[source] = replace(made[source], known_from=old.known_from, confidence=old.confidence)
            elif old.known_from == "visible":
                made[source] = replace(old, end_ms=old.start_ms)
            else:  # a device stays the job's until the job ends, whatever becomes of its process or driver
                made[source] = replace(old, end_ms=end_ms)
        return made

    def _node_origin(self) -> str:
        if self.hook is not None:
            return "hook"
        if self.listed:
            return "kubelet" if self.ident[0] == "kubernetes" else "job_directory"
        return "cgroup" if self.identity is not None else "environ"


def hook_facts(found: HookFile | None) -> Facts:
    """A hook's fields as facts; its devices are a claim of their own."""
    if found is None:
        return NOTHING
    hook = found.hook
    return Facts(
        raw_id=hook.raw_id,
        id=hook.id,
        cluster=hook.cluster,
        name=hook.name,
        user=hook.user,
        start_ms=hook.start_ms if hook.start_exact else None,
        sluid=hook.sluid,
        restart=hook.restart,
    )


def _lasting(before: Job | None) -> Mapping[str, object]:
    """What was known of a job before, without what was only presumed."""
    known = dict(before.meta) if before is not None else {}
    if known.pop("end_presumed", False):
        known.pop("end_reason", None)
    return known


def _by_position(references: Sequence[str]) -> bool:
    return any(one == ALL or one.startswith("index:") for one in references)
