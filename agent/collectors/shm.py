"""Shared memory of the host: /dev/shm is where data loaders pass batches between processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.frames import node_frame
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.message import Message
from gpudiag.storage.sample import Frame


class ShmCollector:
    """`shm_used_bytes`, by statvfs; a tmpfs cannot hang as a network mount can."""

    name = "shm"

    def __init__(
        self, root: HostRoot, node: str, statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    ) -> None:
        self._root, self._node, self._statvfs = root, node, statvfs

    def collect(self, now_ms: int) -> Iterable[Frame]:
        try:
            space = self._statvfs(self._root.path("dev/shm"))
        except OSError:
            raise NothingToCollect(Message("no /dev/shm")) from None
        return node_frame(
            self._node, now_ms, {"shm_used_bytes": (space.f_blocks - space.f_bfree) * space.f_frsize}
        )

    def close(self) -> None:
        """Nothing is held."""
