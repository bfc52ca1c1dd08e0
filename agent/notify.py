"""Tells systemd how the service is (sd_notify); does nothing when it was not started by systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends state lines to the socket named by NOTIFY_SOCKET (a path, or `@name` in the abstract namespace)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_seconds = _watchdog_seconds(environ)

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self, monotonic_seconds: float) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_seconds * 1e6)}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """The loop went round once more."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            try:
                channel.sendto(message.encode(), address)
            except OSError:
                return  # nobody listens any more; the service goes on


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdigit() and int(microseconds) > 0 else None
