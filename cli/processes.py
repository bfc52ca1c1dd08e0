"""How many processes a command may use for a large job, and those processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from gpudiag.cli.progress import READS_PER_SOURCE, Meter, counted

if TYPE_CHECKING:
    from gpudiag.agent.collectors.host_root import HostRoot
    from gpudiag.cli.messages import Words
    from gpudiag.rules.node_work import Crew
    from gpudiag.storage.job import Job
    from gpudiag.storage.store import Reader

PROCESS_BYTES = 400 * 2**20  # what one takes at most, with room to spare


@contextmanager
def diagnosing(reader: Reader, url: str, jobs: Sequence[Job], words: Words) -> Iterator[tuple[Reader, Crew]]:
    """What to diagnose these jobs of `reader` with, under a bar of how far it is; `url` is the reader's own.

    As many processes as the CPUs and the memory of this user's control group allow share a large job.
    """
    from gpudiag.agent.collectors.host_root import HostRoot
    from gpudiag.rules.crew import ProcessCrew
    from gpudiag.storage.open import open_reader

    size = allowed_processes(HostRoot(), len(os.sched_getaffinity(0)))
    reads = READS_PER_SOURCE * sum(len(reader.allocations(job.key)) for job in jobs)
    meter = Meter(reads, words("diagnosing"))
    try:
        with closing(ProcessCrew(partial(open_reader, url), size, meter.step)) as crew:
            yield counted(reader, meter), crew
    finally:
        meter.finish()


def allowed_processes(root: HostRoot, cpus: int) -> int:
    """At most one per CPU: of `cpus`, and within the quota and the memory limit of the control groups; at least one."""
    from gpudiag.agent.attribution.cgroup_tree import CgroupTree
    from gpudiag.agent.collectors.cgroup import CgroupReader, enclosing_cgroups

    identity = enclosing_cgroups(root.read_if_there("proc/self/cgroup") or "")
    limits = CgroupReader(root, CgroupTree(root), identity).limits()
    if limits.cpus is not None:
        cpus = min(cpus, int(limits.cpus))
    if limits.memory is not None:
        cpus = min(cpus, int(limits.memory // PROCESS_BYTES))
    return max(1, cpus)
