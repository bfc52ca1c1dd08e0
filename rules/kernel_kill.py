"""Lines of the kernel's OOM killer, wherever they are found: the kernel log, or a job's own output. Pure text.

A kill takes several lines: `oom-kill:...` says why and whom (kernels since 4.19), `Kill process` announces (before 5.1),
`Killed process` reports with sizes. Shapes: kernels 3.10 to 6.x.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Scope = Literal["cgroup", "host", ""]

_WHY = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+)(?:.*?oom_memcg=(?P<oom_cgroup>[^,]*))?(?:.*?task_memcg=(?P<cgroup>[^,]*))?"
    r"(?:.*?,task=(?P<process>.*),pid=(?P<pid>\d+))?"
)
_KILL = re.compile(
    r"(?P<scope>Memory cgroup out of memory|Out of memory)[^:]*: Kill(?P<done>ed)? process (?P<pid>\d+)"
    r"(?:, UID \d+,)? \((?P<process>.*?)\)(?P<rest>.*)"
)
_BARE = re.compile(r"^Killed process (?P<pid>\d+)(?:, UID \d+,)? \((?P<process>.*?)\)(?P<rest>.*)")
_KIB = re.compile(r"(?P<name>total-vm|anon-rss|file-rss|shmem-rss):(?P<kib>\d+)kB")
_SCOPES: Mapping[str, Scope] = {"CONSTRAINT_MEMCG": "cgroup", "CONSTRAINT_NONE": "host"}


@dataclass(frozen=True)
class KernelKill:
    """One line: `phase` is `why`, `announced` or `done`; `scope` is empty where the line does not tell whose limit.

    `cgroups` has the keys `constraint`, `oom_cgroup` and `cgroup` as far as a `why` line gives them; `sizes_bytes`
    those of `total_vm`, `anon_rss`, `file_rss` and `shmem_rss` that it states.
    """

    phase: Literal["why", "announced", "done"]
    scope: Scope
    pid: int | None = None
    process: str = ""
    cgroups: Mapping[str, str] = field(default_factory=dict)
    sizes_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def resident_bytes(self) -> int | None:
        """All resident memory of the victim, None when no size is stated."""
        parts = [size for name, size in self.sizes_bytes.items() if name.endswith("_rss")]
        return sum(parts) if parts else None


def read_kill(line: str) -> KernelKill | None:
    """What a line says about a kill for memory; None for any other line."""
    if match := _WHY.search(line):
        found = {key: match[key] for key in ("constraint", "oom_cgroup", "cgroup") if match[key]}
        pid = None if match["pid"] is None else int(match["pid"])
        return KernelKill("why", _SCOPES.get(match["constraint"], ""), pid, match["process"] or "", found)
    match = _KILL.search(line)
    scope: Scope = ""
    if match is not None:
        scope = "cgroup" if match["scope"].startswith("Memory") else "host"
    elif (match := _BARE.search(line)) is None:
        return None
    sizes = {one["name"].replace("-", "_"): int(one["kib"]) * 1024 for one in _KIB.finditer(match["rest"])}
    done = match.groupdict().get("done", "ed") is not None
    return KernelKill("done" if done else "announced", scope, int(match["pid"]), match["process"], {}, sizes)
