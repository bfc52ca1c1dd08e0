"""The daemon thread that sends one datagram a second to the agent, and forgets it when nobody listens."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .recorder import Recorder

DEFAULT_SOCKET = "/run/gpudiag/probe.sock"
MAXIMUM_BYTES = 8192
INTERVAL_SECONDS = 1.0


class Sender:
    """Owns the thread; `devices` returns allocator statistics per GPU once torch is there."""

    def __init__(self, recorder: Recorder) -> None:
        self.path = os.environ.get("GPUDIAG_PROBE_SOCKET", DEFAULT_SOCKET)
        self.devices: Callable[[], list[dict[str, Any]]] = list
        self._recorder = recorder
        self._thread: threading.Thread | None = None
        self._pid = 0

    def start(self) -> bool:
        """Start the thread; False when it runs already."""
        if self._pid == os.getpid():
            return False
        first = self._pid == 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="gpudiag-probe", daemon=True)
        self._thread.start()
        return first

    def resume_after_fork(self) -> None:
        """A thread does not survive fork: called by the loop's hooks, so a child that trains sends again."""
        if self._pid and self._pid != os.getpid():
            self.start()

    def _run(self) -> None:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.setblocking(False)
        while True:
            began = time.monotonic()
            time.sleep(INTERVAL_SECONDS)
            with contextlib.suppress(Exception):  # nothing here may reach the user's program
                self._send(channel, time.monotonic() - began)

    def _send(self, channel: socket.socket, seconds: float) -> None:
        content = self._recorder.take()
        message = self.message(content, seconds)
        try:
            if message:
                channel.sendto(message, self.path)
        except OSError:  # nobody listens yet: sums of the past are of no use then, a phase that began is
            self._recorder.keep(content["marks"])

    def message(self, content: dict[str, Any], seconds: float) -> bytes:
        """One datagram about the last `seconds`; empty when there is nothing to say."""
        content["devices"] = self.devices()
        if not (content["stepped"] or content["devices"] or content["marks"]):
            return b""
        content.update(
            version=1,
            pid=os.getpid(),
            time=time.time(),
            seconds=seconds,
            rank=os.environ.get("RANK", ""),
            visible=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        )
        encoded = json.dumps(content, separators=(",", ":")).encode()
        return encoded if len(encoded) <= MAXIMUM_BYTES else b""
