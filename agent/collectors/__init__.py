"""One collector, one file: `collect(now_ms)` yields frames, events and device attributes; the sampler times it and catches what it raises."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from gpudiag.agent.clock import Clock
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame


class NothingToCollect(Exception):  # noqa: N818 - a quiet outcome, not an error
    """This host does not have what the collector reads (no PSI, no NFS mount): no failure, no series."""


class Collector(Protocol):
    """Reads one source of the host; raises `NothingToCollect` when it is absent, anything else when it fails."""

    name: str

    def collect(self, now_ms: int) -> Iterable[Frame | Event | Device]:
        """One reading, in base units; rates come from the difference to the previous call."""

    def close(self) -> None:
        """Let go of files, sockets and processes."""


def host_collectors(root: Path | str, node: str, clock: Clock) -> list[Collector]:
    """A collector per source of the host below `root`; a new one is a file of this package and a line here."""
    # the modules import this one for NothingToCollect
    from gpudiag.agent.collectors.cpu import CpuCollector
    from gpudiag.agent.collectors.disk import DiskCollector
    from gpudiag.agent.collectors.host_root import HostRoot
    from gpudiag.agent.collectors.infiniband import InfinibandCollector
    from gpudiag.agent.collectors.memory import MemoryCollector
    from gpudiag.agent.collectors.network import NetworkCollector
    from gpudiag.agent.collectors.nfs import NfsCollector
    from gpudiag.agent.collectors.pressure import PressureCollector
    from gpudiag.agent.collectors.shm import ShmCollector

    host = HostRoot.at(root)
    return [
        CpuCollector(host, node, clock),
        MemoryCollector(host, node, clock),
        PressureCollector(host, node, clock),
        DiskCollector(host, node, clock),
        NetworkCollector(host, node, clock),
        InfinibandCollector(host, node, clock),
        NfsCollector(host, node, clock),
        ShmCollector(host, node),
    ]
