"""The thread that keeps the local database within its age and size, once an hour."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from gpudiag.agent.clock import Clock
from gpudiag.agent.config import StorageSection
from gpudiag.agent.families import Families, single
from gpudiag.agent.sampler import Snapshot
from gpudiag.errors import StoreError
from gpudiag.storage.retention import Policy, prune, used_bytes
from gpudiag.storage.sqlstore import SqlStore

log = logging.getLogger(__name__)
_PERIOD_SECONDS = 3600.0
_FIRST_SECONDS = 120.0  # not while the agent starts
_DAY_SECONDS = 86_400.0


def policy(section: StorageSection) -> Policy:
    """What the configuration keeps."""
    return Policy(
        section.keep_samples / _DAY_SECONDS,
        section.keep_minutes / _DAY_SECONDS,
        section.keep_events / _DAY_SECONDS,
        section.keep_jobs / _DAY_SECONDS,
        section.max_size,
    )


class Housekeeping:
    """Prunes through a connection of its own until `close`; `sink` must have a chunk before its age removes it."""

    def __init__(
        self,
        open_store: Callable[[], SqlStore],
        policy: Policy,
        clock: Clock,
        sink: str = "",
        start: bool = True,
    ) -> None:
        self._open = open_store
        self._policy = policy
        self._clock = clock
        self._sink = sink
        self._stop = threading.Event()
        self.bytes: int | None = None
        self.dropped_chunks = 0
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)
        if start:
            self._thread.start()

    def once(self) -> None:
        """One round; what goes wrong is logged and tried again in an hour."""
        try:
            store = self._open()
            try:
                pruned = prune(store, self._policy, self._clock.now_ms(), self._sink)
                self.bytes = used_bytes(store)
            finally:
                store.close()
        except StoreError as error:
            log.warning("the database could not be pruned: %s", error)
            return
        self.dropped_chunks += pruned.dropped_chunks
        if pruned.anything:
            log.info("pruned %s", {name: count for name, count in vars(pruned).items() if count})

    def families(self, _: Snapshot) -> Families:
        """For `SnapshotCollector(always=...)`."""
        if self.bytes is not None:
            yield from single("gpudiag_store_bytes", self.bytes)
        yield from single("gpudiag_store_dropped_chunks_total", self.dropped_chunks)

    def close(self) -> None:
        """End after the round that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        wait = _FIRST_SECONDS
        while not self._stop.wait(wait):
            self.once()
            wait = _PERIOD_SECONDS
