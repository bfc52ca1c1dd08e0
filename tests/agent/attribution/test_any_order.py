"""Whatever happens in whatever order: each run of a job is one row, and what is gone has ended."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from fake_host import FakeHost
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpudiag.agent.attribution import Attribution
from gpudiag.agent.clock import ManualClock
from gpudiag.agent.gpu import GpuProcess
from gpudiag.agent.hook_files import FOLDER, Hook, write_hook
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.sample import Source

GPUS = 3
DEVICES = [Device(Source("n1", f"GPU-{index}"), 0, index=index, minor=index) for index in range(GPUS)]
SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"


@dataclass
class Truth:
    """A run as it really is."""

    number: int
    gpu: int
    start_ms: int
    hook: Hook | None
    pid: int | None = None
    over: bool = False
    told: bool = False
    seen: bool = False
    end_ms: int = 0


class AnyOrder(RuleBasedStateMachine):
    """Jobs start with and without a prolog, run, and end with and without an epilog, while the agent ticks or restarts."""

    @initialize()
    def node(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.host = FakeHost(Path(self.temporary.name), ManualClock(1_767_225_600_000))
        self.host.unified()
        self.jobs: dict[str, Job] = {}
        self.allocations: dict[tuple[str, Source, int], Allocation] = {}
        self.runs: list[Truth] = []
        self.agent()

    def agent(self) -> None:
        self.attribution = Attribution(
            self.host.base, "n1", self.host.clock, cluster="c1", runtime_dir=self.host.base / "run"
        )

    @property
    def now_ms(self) -> int:
        return self.host.clock.now_ms()

    @property
    def alive(self) -> list[Truth]:
        return [run for run in self.runs if not run.over]

    def free_gpus(self) -> list[int]:
        return sorted(set(range(GPUS)) - {run.gpu for run in self.alive})

    @precondition(lambda self: self.free_gpus())
    @rule(number=st.integers(1, 4), prolog=st.booleans(), process=st.booleans(), exact=st.booleans())
    def start(self, number: int, prolog: bool, process: bool, exact: bool) -> None:
        """A scheduler runs one number once at a time, and gives it a GPU that is free."""
        if any(run.number == number for run in self.alive) or not (prolog or process):
            return
        self.host.clock.sleep(1)
        run = Truth(number, self.free_gpus()[0], self.now_ms, None)
        if prolog:
            run.hook = Hook(
                "slurm", str(number), self.now_ms, devices=(f"minor:{run.gpu}",), start_exact=exact
            )
            write_hook(self.host.base / "run" / FOLDER, run.hook)
        self.runs.append(run)
        if process:
            self.run_process(run)

    def run_process(self, run: Truth) -> None:
        run.pid = 1000 + len(self.runs)
        name = f"job_{run.number}"
        self.host.job_cgroup_v2(name, [run.pid])
        self.host.process(run.pid, cgroup=f"0::/system.slice/slurmstepd.scope/{name}/step_batch\n")

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 10), epilog=st.booleans(), tick_before=st.booleans())
    def end(self, which: int, epilog: bool, tick_before: bool) -> None:
        run = self.alive[which % len(self.alive)]
        if tick_before:
            self.tick(1.0)
        self.host.clock.sleep(0.5)
        if run.pid is not None:
            self.host.end(run.pid)
            self.host.remove(f"{SCOPE}/job_{run.number}")
        run.over, run.end_ms = True, self.now_ms
        if epilog and run.hook is not None:
            run.told = True
            write_hook(
                self.host.base / "run" / FOLDER,
                replace(run.hook, end_ms=self.now_ms, exit_code=0, state="completed"),
            )

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 45.0]))
    def tick(self, seconds: float) -> None:
        self.host.clock.sleep(seconds)
        seen = [GpuProcess(f"GPU-{run.gpu}", run.pid) for run in self.alive if run.pid is not None]
        for run in self.alive:
            run.seen = True
        changes = self.attribution.reconcile(self.now_ms, seen, DEVICES)
        self.jobs.update((job.key, job) for job in changes.jobs)
        self.allocations.update(((one.job_key, one.source, one.start_ms), one) for one in changes.allocations)

    @rule()
    def restart(self) -> None:
        self.tick(1.0)
        last_ms = self.now_ms
        self.agent()
        running = [job for job in self.jobs.values() if job.end_ms is None]
        self.attribution.restore(
            [(job, [one for one in self.allocations.values() if one.job_key == job.key]) for job in running],
            last_ms,
        )

    @invariant()
    def rows_make_sense(self) -> None:
        for job in getattr(self, "jobs", {}).values():
            assert job.end_ms is None or job.end_ms >= job.start_ms
            assert (job.state == "running") == (job.end_ms is None)
        for one in getattr(self, "allocations", {}).values():
            assert one.job_key in self.jobs
            assert one.end_ms is None or one.end_ms >= one.start_ms

    def teardown(self) -> None:
        if not hasattr(self, "jobs"):
            return
        try:
            self.check()
        finally:
            self.temporary.cleanup()

    def check(self) -> None:
        self.tick(1.0)
        for run in self.alive:
            assert self.row(run).end_ms is None, f"job {run.number} still runs"
        for _ in range(2):
            self.tick(45.0)
        for run in self.runs:
            # without a prolog the next run of the same number may be a further step of this one
            later = [one for one in self.runs if one.number == run.number and one.start_ms > run.start_ms]
            clear = run.hook is not None or not [
                one for one in self.runs if one.number == run.number and one is not run
            ]
            if run.over and run.pid is not None and run.seen and clear and all(one.hook for one in later):
                assert self.row(run).end_ms is not None, f"job {run.number} is gone"
            if run.told:
                assert self.row(run).end_ms == run.end_ms
                assert self.row(run).exit_code == 0
            if run.hook is not None:
                devices = {
                    one.source.device for one in self.allocations.values() if one.job_key == self.row(run).key
                }
                assert f"GPU-{run.gpu}" in devices
        assert len(self.jobs) <= len(self.runs)

    def row(self, run: Truth) -> Job:
        """The row of a run: the exact one when its prolog told the start, else the one that covers its time."""
        named = [job for job in self.jobs.values() if job.raw_id == str(run.number)]
        if run.hook is not None:
            [found] = [job for job in named if job.start_ms == run.start_ms]
            return found
        return max(named, key=lambda job: job.start_ms)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
