"""The process tree of a job: its GPU processes, and the workers that feed them. Never a walk over all of /proc.

Who is a worker is told by name and command line (torch 2.x names its workers `pt_data_worker`; fork keeps the
command line of the parent; spawn and forkserver leave their own marks).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpudiag.agent.collectors.cgroup import parse_cpu_list
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.proc_stat import ProcStat, read_proc_stat

MAIN, WORKER, OTHER = "main", "worker", "other"
_MOST_PROCESSES = 4096
_SERVICE = re.compile(
    r"multiprocessing\.(resource_tracker|semaphore_tracker)|forkserver import main|_inductor|compile_worker"
)
_SPAWNED = re.compile(r"multiprocessing\.spawn|--multiprocessing-fork")
_FORKSERVER = "forkserver import main"  # its children keep its command line
_TRACKER = "_tracker"
_SHELL = re.compile(r"(ba|da|z|k|c|tc)?sh$")


@dataclass
class Member:
    """A process of the job: what it is, and its latest /proc/PID/stat."""

    stat: ProcStat
    command: str
    role: str = OTHER

    @property
    def key(self) -> str:
        """Pid and start: names the process for ever."""
        return f"{self.stat.pid}.{self.stat.start_ticks}"


@dataclass
class ProcessTree:
    """The processes below some roots. `refresh` finds them, `update` reads the known ones again."""

    root: HostRoot
    members: dict[int, Member] = field(default_factory=dict)

    def refresh(
        self,
        mains: Collection[int],
        inside: Collection[int] | None,
        thorough: bool,
        roots: Collection[int] = (),
    ) -> None:
        """Find the processes of the job again: `mains` use a GPU, `roots` started everything.

        `inside` are all pids of the job's own cgroup. Without one the children of each process are followed;
        `thorough` also follows those that threads other than the first have started.
        """
        starts = {*mains, *roots}
        pids = starts | set(inside) if inside is not None else self._descendants(starts, thorough)
        found: dict[int, Member] = {}
        for pid in sorted(pids)[:_MOST_PROCESSES]:
            stat = read_proc_stat(self.root, pid)
            if stat is None or stat.state == "Z":
                continue
            known = self.members.get(pid)
            if known is not None and known.stat.start_ticks == stat.start_ticks:
                found[pid] = Member(stat, known.command, known.role)
            else:
                found[pid] = Member(stat, self._command(pid))
        self.members = found
        assign_roles(found, mains)

    def update(self) -> bool:
        """Read all known processes again; True when one of them is gone."""
        gone = []
        for pid, member in self.members.items():
            stat = read_proc_stat(self.root, pid)
            if stat is None or stat.state == "Z" or stat.start_ticks != member.stat.start_ticks:
                gone.append(pid)
            else:
                member.stat = stat
        for pid in gone:
            del self.members[pid]
        return bool(gone)

    def with_role(self, role: str) -> list[Member]:
        """Members that are that."""
        return [member for member in self.members.values() if member.role == role]

    def transferred(self) -> dict[str, float]:
        """Bytes each member read from and wrote to storage, network file systems included; what may be read."""
        found = {}
        for member in self.members.values():
            text = self.root.read_if_there(f"proc/{member.stat.pid}/io")
            if text is not None:
                counts = parse_io(text)
                found[f"{member.key}/read"] = counts.get("read_bytes", 0.0)
                found[f"{member.key}/write"] = counts.get("write_bytes", 0.0)
        return found

    def cpus_allowed(self) -> int | None:
        """CPUs that any GPU process may run on, by affinity."""
        allowed: set[int] = set()
        for member in self.with_role(MAIN):
            for line in (self.root.read_if_there(f"proc/{member.stat.pid}/status") or "").splitlines():
                if line.startswith("Cpus_allowed_list:"):
                    allowed |= parse_cpu_list(line.partition(":")[2])
        return len(allowed) or None

    def pss(self, pid: int) -> int | None:
        """Proportional set size in bytes; None when it may not be read. Slow for large processes."""
        text = self.root.read_if_there(f"proc/{pid}/smaps_rollup")
        for line in (text or "").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        return None

    def _command(self, pid: int) -> str:
        return (self.root.read_if_there(f"proc/{pid}/cmdline") or "").replace("\0", " ").strip()

    def _descendants(self, roots: Iterable[int], thorough: bool) -> set[int]:
        found: set[int] = set()
        waiting = list(roots)
        while waiting and len(found) < _MOST_PROCESSES:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting += self._children(pid, thorough)
        # processes known to be below stay so until they end, even when only a thread's list shows them
        return found | {pid for pid, member in self.members.items() if member.stat.parent in found}

    def _children(self, pid: int, thorough: bool) -> list[int]:
        threads = self.root.names(f"proc/{pid}/task") if thorough else [str(pid)]
        lists = (self.root.read_if_there(f"proc/{pid}/task/{thread}/children") or "" for thread in threads)
        return [int(word) for text in lists for word in text.split()]


def assign_roles(members: Mapping[int, Member], mains: Collection[int]) -> None:
    """Mark main processes and workers; a GPU process is never a worker.

    While no process uses a GPU, whatever is neither worker nor service may become the main one.
    """
    for pid, member in members.items():
        parent = members.get(member.stat.parent)
        if pid in mains:
            member.role = MAIN
        elif parent is not None and is_worker(member, parent):
            member.role = WORKER
        else:
            is_main = not mains and not _SERVICE.search(member.command)
            member.role = MAIN if is_main else OTHER


def is_worker(member: Member, parent: Member) -> bool:
    """Whether a child process looks like one that loads data for its parent."""
    if member.stat.name.startswith("pt_data_worker"):
        return True
    if _SHELL.match(member.stat.name):
        return False
    if _FORKSERVER in parent.command:
        return _TRACKER not in member.command
    if _SERVICE.search(member.command):
        return False
    is_forked = bool(member.command) and member.command == parent.command
    return is_forked or _SPAWNED.search(member.command) is not None


def parse_io(text: str) -> dict[str, float]:
    """Counters of /proc/PID/io."""
    found = {}
    for line in text.splitlines():
        name, _, number = line.partition(":")
        if number.strip().isdigit():
            found[name] = float(number)
    return found
