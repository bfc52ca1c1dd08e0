"""The loop of the service: one cycle per interval, signals looked at between cycles, systemd told how it goes.

Signal handlers only wake the loop up. The watchdog is pinged by this loop after a finished cycle and by nothing else.
"""

from __future__ import annotations

import logging
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gpudiag.agent.clock import Clock
from gpudiag.agent.notify import Notifier

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PHASE = (
    0.02  # share of the interval after its start: a clock slewed by NTP then never ticks twice in one second
)


class Service(Protocol):
    """What the loop drives."""

    interval: float

    def cycle(self) -> None:
        """One round of work; called once per interval. Must not raise."""

    def reload(self) -> None:
        """Take over a changed configuration; keep the old one when the new is bad."""

    def shutdown(self) -> None:
        """Write what is in memory and let go of everything."""


class Wakeup:
    """A wait that a signal ends early: the interpreter writes each signal's number into a socket pair."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within the context the signals of the service are taken; afterwards the old handlers are back."""
        before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._reader.close()
            self._writer.close()

    def wait(self, seconds: float) -> list[int]:
        """Sleep, or less when a signal comes; the signals that came."""
        select.select([self._reader], [], [], min(max(seconds, 0.0), 3600.0))
        try:
            return list(self._reader.recv(256))
        except BlockingIOError:
            return []


class Daemon:
    """Runs a service until SIGTERM or SIGINT; SIGHUP reloads it."""

    def __init__(
        self, service: Service, clock: Clock, notifier: Notifier, wait: Callable[[float], list[int]]
    ) -> None:
        self._service = service
        self._clock = clock
        self._notifier = notifier
        self._wait = wait
        self._last_ping = float("-inf")
        self._ping_interval = (notifier.watchdog_seconds or float("inf")) / 4

    def run(self) -> None:
        """Cycle until told to stop; the service is shut down whatever happens."""
        try:
            self._notifier.ready("sampling")
            while self._pause():
                self._service.cycle()
                self._ping()
        finally:
            self._notifier.stopping()
            self._service.shutdown()

    def _pause(self) -> bool:
        """Wait for the next tick; false when it is time to stop."""
        end = self._clock.monotonic() + delay(self._clock.now_ms(), self._service.interval)
        while True:
            for number in self._wait(min(end - self._clock.monotonic(), self._ping_interval)):
                if number != signal.SIGHUP:
                    log.info("stopping on %s", signal.Signals(number).name)
                    return False
                self._reload()
            if self._clock.monotonic() >= end:
                return True
            self._ping()

    def _reload(self) -> None:
        self._notifier.reloading(self._clock.monotonic())
        self._service.reload()
        self._notifier.ready("sampling")

    def _ping(self) -> None:
        now = self._clock.monotonic()
        if self._notifier.watchdog_seconds and now - self._last_ping >= self._ping_interval:
            self._last_ping = now
            self._notifier.watchdog()


def delay(now_ms: int, interval: float) -> float:
    """Seconds until the next tick: shortly after the next multiple of the interval, so that ticks are never caught up."""
    phase = interval * _PHASE
    since = (now_ms / 1000 - phase) % interval
    return interval - since
