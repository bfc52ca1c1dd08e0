"""CPU time and memory of running processes, as the kernel counts them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """CPU seconds so far, resident bytes now, open file descriptors and threads, over some processes."""

    cpu_seconds: float
    rss_bytes: int
    descriptors: int
    threads: int


def usage(pids: Iterable[int]) -> Usage:
    """Sum over the processes that still live."""
    parts = [_of(pid) for pid in pids if Path(f"/proc/{pid}").exists()]
    return Usage(
        sum(part.cpu_seconds for part in parts),
        sum(part.rss_bytes for part in parts),
        sum(part.descriptors for part in parts),
        sum(part.threads for part in parts),
    )


def children(pid: int) -> list[int]:
    """Direct children."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _of(pid: int) -> Usage:
    folder = Path(f"/proc/{pid}")
    # user and system time of the whole thread group, ended threads included; the kernel scales both so that their
    # sum is the exact time on a CPU, in steps of 10 ms
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    rss = int(status["VmRSS"].split()[0]) * 1024
    return Usage(cpu_seconds, rss, len(list((folder / "fd").iterdir())), int(status["Threads"]))
