"""What an operator may ask of a running agent, over a unix socket that only its user and root can open.

One JSON line asks, one JSON line answers. The socket is the only way to change anything; HTTP has none.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpudiag.errors import GpudiagError, UnavailableError

log = logging.getLogger(__name__)
Message = Mapping[str, Any]
Command = Callable[[Message], Message]
SOCKET = "control.sock"
_LONGEST = 4096
_TIMEOUT = 10.0


class Control:
    """Answers in a thread of its own until `close`. A command raises `GpudiagError` to refuse."""

    def __init__(self, folder: Path, commands: Mapping[str, Command]) -> None:
        self._path = folder / SOCKET
        self._commands = commands
        self._listener = _listen(self._path)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return  # closed
            with channel:
                try:
                    channel.settimeout(_TIMEOUT)
                    channel.sendall(json.dumps(self._answer(_line(channel))).encode() + b"\n")
                except OSError as error:
                    log.debug("control connection: %s", error)

    def _answer(self, line: bytes) -> Message:
        try:
            asked = json.loads(line)
            command = self._commands[asked["op"]]
        except (ValueError, TypeError, KeyError):
            return {"error": "unknown command; known are: " + ", ".join(sorted(self._commands))}
        try:
            return command(asked)
        except GpudiagError as error:
            return {"error": str(error)}
        except Exception as error:
            log.exception("control command failed")
            return {"error": f"{type(error).__name__}: {error}"}


def ask(folder: Path, message: Message, timeout: float = 60.0) -> Message:
    """Send one command to the agent of this node; its answer.

    Raises `UnavailableError` when no agent listens there, `GpudiagError` when it refuses.
    """
    path = folder / SOCKET
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(timeout)
            channel.connect(str(path))
            channel.sendall(json.dumps(message).encode() + b"\n")
            answer: Message = json.loads(_line(channel))
    except (OSError, ValueError) as error:
        raise UnavailableError(f"no agent answers at {path}: {error}") from None
    if "error" in answer:
        raise GpudiagError(str(answer["error"]))
    return answer


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise GpudiagError(f"cannot listen on {path}: {error.strerror}") from None
    finally:
        os.umask(before)
    listener.listen(4)
    return listener


def _line(channel: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n") and len(received) < _LONGEST:
        part = channel.recv(_LONGEST)
        if not part:
            break
        received += part
    return received
