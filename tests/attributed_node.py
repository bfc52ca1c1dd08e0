"""A node made of files whose jobs are attributed: what the scheduler, the kernel and the driver would show, and what was written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fake_host import FakeHost

from gpudiag.agent.attribution import Attribution
from gpudiag.agent.attribution.facts import Facts
from gpudiag.agent.gpu import GpuProcess
from gpudiag.agent.hook_files import FOLDER, Hook, write_hook
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import NODE, Source

SECOND = 1000


def device(index: int, **attributes: Any) -> Device:
    return Device(
        Source("n1", f"GPU-{index}"), 0, index=index, minor=attributes.pop("minor", index), **attributes
    )


DEVICES = [device(index) for index in range(4)]


@dataclass
class FakeScontrol:
    """Answers at the next poll; `known` is what the scheduler would say."""

    known: dict[str, Facts] = field(default_factory=dict)
    cluster: str = "c1"
    silent: bool = False
    asked: list[str] = field(default_factory=list)
    _waiting: list[str] = field(default_factory=list)
    _answers: dict[str, Facts] = field(default_factory=dict)

    def ask(self, job: str) -> None:
        self.asked.append(job)
        self._waiting.append(job)

    def take(self, job: str) -> Facts | None:
        return self._answers.pop(job, None)

    def poll(self) -> None:
        if not self.silent:
            self._answers.update({job: self.known[job] for job in self._waiting if job in self.known})
            self._waiting.clear()


@dataclass
class Node:
    """The attribution under test with everything it wrote."""

    host: FakeHost
    attribution: Attribution
    jobs: dict[str, Job] = field(default_factory=dict)
    allocations: dict[tuple[str, str, int], Allocation] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    devices: Sequence[Device] = field(default_factory=lambda: list(DEVICES))

    @property
    def hooks(self) -> Path:
        return self.host.base / "run" / FOLDER

    def tick(
        self,
        *processes: tuple[int, int],
        seconds: float = 1.0,
        busy: Collection[int] = (),
        blind: bool = True,
    ) -> None:
        """Time passes; `processes` are pairs of device index and pid.

        `busy` are devices that work; unless `blind`, all others without a process are seen to do nothing.
        """
        self.host.clock.sleep(seconds)
        seen = [GpuProcess(f"GPU-{index}", pid) for index, pid in processes]
        used = {index for index, _ in processes} | set(busy)
        activity = {} if blind else {f"GPU-{index}": index in used for index in range(len(self.devices))}
        changes = self.attribution.reconcile(self.host.clock.now_ms(), seen, self.devices, activity)
        self.jobs.update((job.key, job) for job in changes.jobs)
        self.allocations.update(
            ((one.job_key, one.source.device, one.start_ms), one) for one in changes.allocations
        )
        self.events += changes.events

    def job(self, raw_id: str) -> Job:
        [found] = [job for job in self.jobs.values() if job.raw_id == raw_id]
        return found

    def runs(self, raw_id: str) -> list[Job]:
        return sorted(
            (job for job in self.jobs.values() if job.raw_id == raw_id), key=lambda job: job.start_ms
        )

    def gpus(self, job: Job) -> dict[str, Allocation]:
        return {
            one.source.device: one
            for one in self.allocations.values()
            if one.job_key == job.key and one.source.device != NODE and one.end_ms != one.start_ms
        }

    @property
    def now_ms(self) -> int:
        return self.host.clock.now_ms()

    def prolog(self, raw_id: str, *gpus: int, **fields: Any) -> Hook:
        hook = Hook(
            "slurm",
            raw_id,
            fields.pop("start_ms", self.now_ms),
            devices=tuple(f"minor:{gpu}" for gpu in gpus) or None,
            **fields,
        )
        write_hook(self.hooks, hook)
        return hook

    def start(self, raw_id: str, *gpus: int, **fields: Any) -> Hook:
        """`gpudiag job start --job ID` without a scheduler."""
        devices = tuple(f"minor:{gpu}" for gpu in gpus) or None
        hook = Hook("hook", raw_id, self.now_ms, id=raw_id, devices=devices, **fields)
        write_hook(self.hooks, hook)
        return hook

    def epilog(self, hook: Hook, code: int = 0, end_ms: int | None = None) -> None:
        state = "completed" if code == 0 else "failed"
        write_hook(self.hooks, replace(hook, end_ms=end_ms or self.now_ms, exit_code=code, state=state))


def make_node(host: FakeHost, **options: Any) -> Node:
    attribution = Attribution(
        host.base, "n1", host.clock, cluster="c1", runtime_dir=host.base / "run", **options
    )
    return Node(host, attribution)


def cgroup_line(job: str) -> str:
    return f"0::/system.slice/slurmstepd.scope/{job}/step_batch/user/task_0\n"


def slurm_process(node: Node, job: int, pid: int, **environ: str) -> None:
    node.host.job_cgroup_v2(f"job_{job}", [pid])
    node.host.process(pid, cgroup=cgroup_line(f"job_{job}"), environ=environ or None)


def recorded(node: Node, pid: int, devices: tuple[str, ...] | None = None, raw_id: str = "42") -> Hook:
    node.host.process(pid)
    stat = node.host.root.read(f"proc/{pid}/stat")
    ticks = int(stat.rpartition(")")[2].split()[19])
    hook = Hook("run", raw_id, node.now_ms, id=raw_id, devices=devices, pid=pid, pid_start_ticks=ticks)
    write_hook(node.hooks, hook)
    return hook


def restarted(node: Node, last_sample_ms: int) -> Node:
    """A new agent that finds what the old one stored."""
    again = make_node(node.host)
    stored = [
        (job, [one for one in node.allocations.values() if one.job_key == job.key])
        for job in node.jobs.values()
        if job.end_ms is None or job.meta.get("end_presumed")
    ]
    again.attribution.restore(stored, last_sample_ms)
    again.jobs, again.allocations = dict(node.jobs), dict(node.allocations)
    return again
