"""A host made of files below a temporary root: processes, cgroups, devices, and a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.proc_stat import TICKS_PER_SECOND
from gpudiag.storage.sample import Frame


@dataclass
class FakeHost:
    """Writes what the kernel would show."""

    base: Path
    clock: ManualClock

    @property
    def root(self) -> HostRoot:
        return HostRoot.at(self.base)

    def write(self, relative: str, text: str) -> None:
        path = self.base / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_all(self, folder: str, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            self.write(f"{folder}/{name}", text)

    def folder(self, relative: str) -> None:
        (self.base / relative).mkdir(parents=True, exist_ok=True)

    def remove(self, relative: str) -> None:
        path = self.base / relative
        if path.is_dir():
            for inner in sorted(path.rglob("*"), reverse=True):
                inner.rmdir() if inner.is_dir() else inner.unlink()
            path.rmdir()
        else:
            path.unlink()

    def values(self, collector: Any) -> dict[str, float]:
        """What one reading of the collector says about its only source."""
        return merged(item for item in collector.collect(self.clock.now_ms()) if isinstance(item, Frame))

    def process(
        self,
        pid: int,
        parent: int = 1,
        *,
        name: str = "python",
        state: str = "S",
        cpu_seconds: float = 0.0,
        command: str | None = "python train.py",
        cgroup: str | None = None,
        environ: Mapping[str, str] | None = None,
        start: float | None = None,
        io: tuple[int, int] | None = None,
        pss: int | None = None,
    ) -> None:
        """Write a process, or write it anew; `start` in seconds since boot, now by default."""
        folder = f"proc/{pid}"
        begun = self._start_of(folder) if start is None else round(start * TICKS_PER_SECOND)
        ticks = round(cpu_seconds * TICKS_PER_SECOND)
        self.write(
            f"{folder}/stat",
            f"{pid} ({name}) {state} {parent} 1 1 0 -1 4194304 1 2 3 4 {ticks} 0 0 0 20 0 1 0 {begun} 99 100 1\n",
        )
        self.folder(f"{folder}/task/{pid}")
        if parent > 1:
            self._add_child(parent, pid)
        if command is not None:
            self.write(f"{folder}/cmdline", command.replace(" ", "\0") + "\0")
        if cgroup is not None:
            self.write(f"{folder}/cgroup", cgroup)
        if environ is not None:
            self.write(f"{folder}/environ", "\0".join(f"{key}={value}" for key, value in environ.items()))
        if io is not None:
            self.write(f"{folder}/io", f"rchar: 1\nwchar: 1\nread_bytes: {io[0]}\nwrite_bytes: {io[1]}\n")
        if pss is not None:
            self.write(f"{folder}/smaps_rollup", f"0-f [rollup]\nRss: 1 kB\nPss: {pss // 1024} kB\n")

    def end(self, *pids: int) -> None:
        """The processes are gone."""
        for pid in pids:
            self.remove(f"proc/{pid}")
            for path in (self.base / "proc").glob("*/task/*/children"):
                words = [word for word in path.read_text().split() if word != str(pid)]
                path.write_text(" ".join(words))

    def _start_of(self, folder: str) -> int:
        text = self.root.read_if_there(f"{folder}/stat")
        if text is not None:
            return int(text.rpartition(")")[2].split()[19])
        return round(self.clock.boottime() * TICKS_PER_SECOND)

    def _add_child(self, parent: int, pid: int) -> None:
        relative = f"proc/{parent}/task/{parent}/children"
        words = (self.root.read_if_there(relative) or "").split()
        if str(pid) not in words:
            self.write(relative, " ".join([*words, str(pid)]) + " ")

    # -- Slurm's cgroups -----------------------------------------------------------------------------------------

    def unified(self) -> None:
        """Mount the unified tree."""
        self.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")

    def job_cgroup_v2(self, name: str, pids: Iterable[int] = (), scope: str = "slurmstepd.scope") -> str:
        """A populated job on the unified tree with one step; its directory."""
        folder = f"sys/fs/cgroup/system.slice/{scope}/{name}"
        inside = list(pids)
        self.write(f"{folder}/cgroup.events", f"populated {int(bool(inside))}\nfrozen 0\n")
        self.write(f"{folder}/cgroup.procs", "")
        self.write(f"{folder}/step_batch/user/task_0/cgroup.procs", "".join(f"{pid}\n" for pid in inside))
        return folder

    def job_cgroup_v1(self, job: int, uid: int = 1000, pids: Iterable[int] = (), root: str = "slurm") -> str:
        """A job under the controllers that Slurm uses on version 1; its path below each."""
        path = f"/{root}/uid_{uid}/job_{job}"
        for controller in ("freezer", "memory", "cpuset", "cpu,cpuacct"):
            self.write(f"sys/fs/cgroup/{controller}{path}/cgroup.procs", "")
            procs = "".join(f"{pid}\n" for pid in pids)
            self.write(f"sys/fs/cgroup/{controller}{path}/step_0/cgroup.procs", procs)
        return path


def merged(frames: Iterable[Frame]) -> dict[str, float]:
    """Values of all frames together."""
    values: dict[str, float] = {}
    for frame in frames:
        values.update(frame.values)
    return values
