"""Which job each GPU process belongs to. Looked up once per process, not once per tick."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpudiag.agent.attribution.environ import parse_environ, slurm_facts
from gpudiag.agent.attribution.facts import Facts
from gpudiag.agent.attribution.identity import CgroupIdentity, identify
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.proc_stat import read_proc_stat

_MOST_ANCESTORS = 64
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True)
class ProcessIdentity:
    """What /proc says about a process: its cgroup's job, and its environment's."""

    pid: int
    start_ticks: int
    cgroup: CgroupIdentity | None
    facts: Facts | None


class ProcessTable:
    """Remembers the identity of processes by pid and start."""

    def __init__(self, root: HostRoot) -> None:
        self._root = root
        self._known: dict[int, ProcessIdentity] = {}
        self._ancestors: dict[tuple[int, int], int | None] = {}
        self._wanted: frozenset[int] = frozenset()

    def lookup(self, pids: Iterable[int]) -> dict[int, ProcessIdentity]:
        """Identities of the processes that exist now; what is not asked for any more is forgotten."""
        found = {}
        for pid in pids:
            stat = read_proc_stat(self._root, pid)
            if stat is None:
                continue
            known = self._known.get(pid)
            if known is None or known.start_ticks != stat.start_ticks:
                known = self.identity(pid, stat.start_ticks)
            found[pid] = known
        self._known = found
        return found

    def identity(self, pid: int, start_ticks: int) -> ProcessIdentity:
        """Read the identity of one process."""
        cgroup = identify(self._root.read_if_there(f"proc/{pid}/cgroup") or "")
        return ProcessIdentity(pid, start_ticks, cgroup, self.facts(pid))

    def facts(self, pid: int) -> Facts | None:
        """What the environment says; None without a scheduler in it or without the permission to read it."""
        text = self._root.read_if_there(f"proc/{pid}/environ")
        return None if text is None else slurm_facts(parse_environ(text))

    def alive(self, pid: int, start_ticks: int | None) -> bool:
        """Whether this very process still exists; a zombie does not count."""
        stat = read_proc_stat(self._root, pid)
        return stat is not None and stat.state != "Z" and start_ticks in (None, stat.start_ticks)

    def ancestor_among(self, known: ProcessIdentity, wanted: Collection[int]) -> int | None:
        """The process itself or its nearest ancestor that is one of `wanted`; remembered while those stay the same."""
        if self._wanted != frozenset(wanted) or len(self._ancestors) > _MOST_REMEMBERED:
            self._wanted = frozenset(wanted)
            self._ancestors = {}
        key = (known.pid, known.start_ticks)
        if key not in self._ancestors:
            self._ancestors[key] = self._climb(known.pid)
        return self._ancestors[key]

    def _climb(self, pid: int) -> int | None:
        for _ in range(_MOST_ANCESTORS):
            if pid in self._wanted:
                return pid
            stat = read_proc_stat(self._root, pid)
            if stat is None or stat.parent <= 1:
                return None
            pid = stat.parent
        return None
