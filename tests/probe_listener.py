"""The agent's end of the probe socket, and where the start-up hook is."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HOOK = ROOT / "src/gpudiag/probe/hook"
Launch = Callable[..., "subprocess.Popen[str]"]


class Listener:
    """The agent's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.bind(str(path))

    def receive(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = 30) -> dict[str, Any]:
        """The first message that is wanted; fails when none comes in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.channel], [], [], left)[0]:
                message: dict[str, Any] = json.loads(self.channel.recv(65536))
                if wanted(message):
                    return message
        pytest.fail("no such message came")

    def poll(self, seconds: float) -> dict[str, Any] | None:
        """The next message, None when none comes in so many seconds."""
        if not select.select([self.channel], [], [], seconds)[0]:
            return None
        message: dict[str, Any] = json.loads(self.channel.recv(65536))
        return message
