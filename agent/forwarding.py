"""The thread that forwards the local database to the central one, and how it shows on /metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gpudiag.agent.config import ForwardSection
from gpudiag.agent.families import Families, single
from gpudiag.agent.sampler import Snapshot
from gpudiag.errors import GpudiagError, InputError
from gpudiag.storage.forward import ForwardState

log = logging.getLogger(__name__)
CREDENTIAL = "forward-url"
_RETRY_SECONDS = 60.0


class Forwarder(Protocol):
    """`storage.forward.Forwarder`."""

    state: ForwardState

    def run(self, stop: threading.Event) -> None: ...


def sink_url(section: ForwardSection, environ: Mapping[str, str]) -> str:
    """The URL itself, else the first line of the file that holds it, else of the systemd credential; empty: none.

    Raises `InputError` when the file cannot be read.
    """
    if section.url:
        return section.url
    credential = Path(environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / CREDENTIAL
    path = Path(section.url_file) if section.url_file else credential
    if not section.url_file and not credential.exists():
        return ""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"forward.url_file {path}: {error}") from None
    if not lines:
        raise InputError(f"forward.url_file {path}: expected a database URL, found nothing")
    return lines[0]


class Forwarding:
    """Runs a forwarder until `close`; one that breaks off is made anew after a minute, the agent goes on meanwhile."""

    def __init__(self, make: Callable[[], Forwarder], retry_seconds: float = _RETRY_SECONDS) -> None:
        self._make = make
        self._retry_seconds = retry_seconds
        self._stop = threading.Event()
        self._forwarder: Forwarder | None = None
        self._error = ""
        self._broken = 0
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    @property
    def state(self) -> ForwardState:
        if self._error or self._forwarder is None:
            return ForwardState(error=self._error or "not started", failures=self._broken)
        return self._forwarder.state

    def close(self) -> None:
        """End after the round that is under way; what is not sent yet is sent by the next start."""
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._forwarder = self._make()
                self._error = ""
                self._forwarder.run(self._stop)
            except Exception as error:
                self._broken += 1
                self._error = str(error)
                known = isinstance(error, GpudiagError)
                log.error("forwarding broke off: %s", error, exc_info=None if known else error)
                self._stop.wait(self._retry_seconds)

    def families(self, _: Snapshot) -> Families:
        """For `SnapshotCollector(always=...)`."""
        state = self.state
        yield from single("gpudiag_forward_up", float(not state.error))
        yield from single("gpudiag_forward_lag_seconds", state.lag_seconds)
        yield from single("gpudiag_forward_waiting_rows", state.backlog_rows)
        yield from single("gpudiag_forward_sent_rows_total", state.sent_rows)
        yield from single("gpudiag_forward_rejected_rows_total", state.rejected_rows)
        yield from single("gpudiag_forward_failures_total", state.failures)
        if state.last_success_ms is not None:
            yield from single("gpudiag_forward_last_success_timestamp_seconds", state.last_success_ms / 1000)
