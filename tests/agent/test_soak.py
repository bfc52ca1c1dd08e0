"""A year in minutes: the agent's own parts on a clock of its own, over a driver, a scheduler and a disk that fail and recover.

Collector, attribution over cgroups and hook files, rules, SQLite and its retention are the real ones. What must stay
flat: open files, threads, memory, series on /metrics, rows that wait, bytes of the database.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from prometheus_client.exposition import generate_latest
from restless_driver import GPUS, ScriptedProbe, World

from gpudiag.agent.attribution import Attribution
from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors.nvml import NvmlCollector
from gpudiag.agent.hook_files import FOLDER, Hook, write_hook
from gpudiag.agent.housekeeping import Housekeeping
from gpudiag.agent.live import LiveJudge
from gpudiag.agent.metrics import SnapshotCollector, registry
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.sampler import Sampler
from gpudiag.agent.sources import JobsOnNode
from gpudiag.errors import StoreError
from gpudiag.rules.loader import builtin
from gpudiag.storage.open import open_store
from gpudiag.storage.retention import Policy
from gpudiag.storage.sample import Frame
from gpudiag.storage.sqlstore import SqlStore

TICKS = int(os.environ.get("GPUDIAG_SOAK_TICKS", "1500"))  # per round, of which there are four
NODE = "n1"
SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"
KEPT = Policy(
    raw_days=0.01, minute_days=0.02, event_days=0.02, job_days=0.02
)  # a quarter of an hour to half an hour
PRUNED_EVERY = 600
FORGOTTEN_SECONDS = 4000  # longer than anything of a job or a device is kept in memory
CALM_TICKS = 200


@dataclass
class Cluster:
    """Slurm on a node made of files: jobs come, are given up, lose their epilog, never start; numbers are used again."""

    host: FakeHost
    world: World
    chance: random.Random
    number: int = 0
    running: list[tuple[Hook, list[int]]] = field(default_factory=list)

    def step(self) -> None:
        """Now and then a job ends, now and then one begins; when it is calm, what runs ends."""
        if self.world.calm:
            while self.running:
                self._end(*self.running.pop(0))
            return
        if self.running and self.chance.random() < 0.02:
            self._end(*self.running.pop(0))
        free = [gpu for gpu in range(GPUS) if not any(gpu in gpus for _, gpus in self.running)]
        if free and self.chance.random() < 0.02:
            self._begin(self.chance.sample(free, self.chance.randrange(1, len(free) + 1)))

    def _begin(self, gpus: list[int]) -> None:
        self.number += 1
        devices = tuple(f"minor:{gpu}" for gpu in gpus)
        job = str(1000 + self.number % 500)
        hook = Hook("slurm", job, self.host.clock.now_ms(), cluster="c1", devices=devices, start_exact=True)
        write_hook(self.host.base / "run" / FOLDER, hook)
        self.running.append((hook, gpus))
        if self.chance.random() < 0.95:  # the others never start
            pid = 2000 + int(job)
            self.host.job_cgroup_v2(f"job_{job}", [pid])
            self.host.process(
                pid, cgroup=f"0::/system.slice/slurmstepd.scope/job_{job}/step_batch/user/task_0\n"
            )
            self.world.pids.update(dict.fromkeys(gpus, pid))

    def _end(self, hook: Hook, gpus: list[int]) -> None:
        for gpu in gpus:
            self.world.pids.pop(gpu, None)
        pid = 2000 + int(hook.raw_id)
        if self.host.root.exists(f"proc/{pid}"):
            self.host.end(pid)
            self.host.remove(f"{SCOPE}/job_{hook.raw_id}")
        if self.chance.random() < 0.9:  # the others' epilogs are missed
            code = self.chance.choice((0, 1, 137))
            done = replace(
                hook, end_ms=self.host.clock.now_ms(), exit_code=code, state="failed" if code else "completed"
            )
            write_hook(self.host.base / "run" / FOLDER, done)


class BadDisk(SqlStore):
    """The real store on a disk that refuses a write now and then."""

    chance: random.Random
    world: World

    def append(self, frames: Sequence[Frame]) -> None:
        if not self.world.calm and self.chance.random() < 0.02:
            raise StoreError("disk full")
        super().append(frames)


@dataclass
class Soak:
    """Everything, and what it held after each round."""

    sampler: Sampler
    recorder: Recorder
    cluster: Cluster
    housekeeping: Housekeeping
    clock: ManualClock
    ticks: int = 0

    def live(self, ticks: int) -> dict[str, int]:
        """What there is after so many ticks more, once everything is well and what is over is forgotten."""
        self.cluster.world.calm = False
        self._tick(ticks)
        self.cluster.world.calm = True
        self._tick(CALM_TICKS)
        self.clock.suspend(FORGOTTEN_SECONDS)
        self._tick(CALM_TICKS)
        self.housekeeping.once()
        gc.collect()
        return self._held()

    def _tick(self, ticks: int) -> None:
        for _ in range(ticks):
            self.cluster.step()
            self.sampler.tick()
            self.ticks += 1
            self.clock.sleep(1.0 if self.ticks % 5000 else 4.2)
            if self.ticks % 7919 == 0:
                self.clock.suspend(900)
            if self.ticks % 9973 == 0:
                self.clock.step(-3)
            if self.ticks % PRUNED_EVERY == 0:
                self.housekeeping.once()

    def _held(self) -> dict[str, int]:
        source = SnapshotCollector(
            lambda: self.sampler.snapshot, lambda: self.recorder.state, self.clock.monotonic, lambda: 30.0
        )
        text = generate_latest(registry(source)).decode()
        return {
            "ticks": self.ticks,
            "files": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "series": sum(not line.startswith("#") for line in text.splitlines()),
            "resident_kib": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            >> 10,
            "devices": len(self.sampler.snapshot.devices),
            "objects": len(gc.get_objects()),
            "waiting": self.recorder.state.waiting_frames,
            "database_kib": (self.housekeeping.bytes or 0) >> 10,
            "jobs": self.cluster.number,
            "slices": self.cluster.world.made,
        }


@pytest.fixture
def soak(tmp_path: Path, clock: ManualClock) -> Iterator[Soak]:
    host, world, chance = FakeHost(tmp_path, clock), World(), random.Random(7)
    host.unified()
    host.folder(f"{SCOPE}/system")
    BadDisk.chance, BadDisk.world = chance, world
    opened = _opener(f"sqlite:///{tmp_path}/soak.db")
    recorder = Recorder(opened, NODE, clock, ring_seconds=120, store=opened())
    nvml = NvmlCollector(NODE, clock, start=lambda: ScriptedProbe(world, clock))
    jobs = JobsOnNode(Attribution(tmp_path, NODE, clock, runtime_dir=tmp_path / "run"), nvml)
    sampler = Sampler([nvml], recorder, clock, NODE, attributor=jobs, judge=LiveJudge(builtin(), NODE))
    house = Housekeeping(
        lambda: open_store(f"sqlite:///{tmp_path}/soak.db", node=NODE, seal=False), KEPT, clock, start=False
    )
    logging.disable(logging.CRITICAL)  # the test runner would keep every line
    yield Soak(sampler, recorder, Cluster(host, world, chance), house, clock)
    logging.disable(logging.NOTSET)
    sampler.close()


def _opener(url: str) -> Callable[[], SqlStore]:
    def opened() -> SqlStore:
        store = open_store(url, node=NODE, agent=True)
        store.__class__ = BadDisk
        return store

    return opened


def test_nothing_grows_with_time(soak: Soak) -> None:
    rounds = []
    for _ in range(4):
        rounds.append(soak.live(TICKS))
        print(", ".join(f"{name} {value}" for name, value in rounds[-1].items()), flush=True)
    _, first, *later = rounds  # the first round fills the caches
    for one in later:
        assert one["files"] == first["files"]
        assert one["threads"] == first["threads"]
        assert abs(one["series"] - first["series"]) <= 3  # a finding of the node may be open
        assert one["devices"] == GPUS
        assert one["waiting"] <= 10 * GPUS  # what a flush has not yet taken
        assert one["objects"] - first["objects"] < 1000  # caches of a database that was just opened again
        assert one["resident_kib"] - first["resident_kib"] < 8 << 10
        assert one["database_kib"] < 2 * max(first["database_kib"], 4096)
    assert later[-1]["jobs"] > soak.ticks // 400
