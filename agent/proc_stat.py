"""One line of /proc/PID/stat (proc_pid_stat(5)): state, parent, CPU time, start."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpudiag.agent.collectors.host_root import HostRoot

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcStat:
    """A process at one instant: CPU time and start (since boot) in clock ticks, resident size in pages.

    `start_ticks` together with the pid names a process for ever on one boot.
    """

    pid: int
    name: str
    state: str
    parent: int
    cpu_ticks: int
    start_ticks: int
    rss_pages: int


def parse_proc_stat(text: str) -> ProcStat:
    """Raises `ValueError` for anything else than such a line; a name may hold blanks and brackets."""
    head, bracket, tail = text.rpartition(")")
    pid, opening, name = head.partition("(")
    words = tail.split()
    if not bracket or not opening or len(words) < 22:
        raise ValueError("not a line of /proc/PID/stat")
    return ProcStat(
        int(pid),
        name,
        words[0],
        int(words[1]),
        int(words[11]) + int(words[12]),
        int(words[19]),
        int(words[21]),
    )


def read_proc_stat(root: HostRoot, pid: int) -> ProcStat | None:
    """The process now; None when it is gone or hidden."""
    try:
        return parse_proc_stat(root.read_record(f"proc/{pid}/stat"))
    except (OSError, ValueError):
        return None
