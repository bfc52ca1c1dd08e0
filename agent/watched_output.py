"""The error output of a recorded command, passed on unchanged and looked through for out-of-memory messages."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict
from typing import Any

from gpudiag.rules.oom import OomLog

_KEPT = 20
_GRACE_SECONDS = 2.0


def is_watchable(descriptor: int = 2) -> bool:
    """A terminal stays the command's own: a program may behave differently when it writes to a pipe."""
    return not os.isatty(descriptor)


class WatchedOutput:
    """Give `descriptor` to the command as its error output, call `close_ours` once it has started.

    What arrives goes to `target` at once and byte by byte as it was.
    """

    def __init__(self, target: int = 2) -> None:
        self._source, self.descriptor = os.pipe()
        self._target = target
        self._log = OomLog()
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._copy, name="watched-output", daemon=True)

    def close_ours(self) -> None:
        """The command holds the writing end now; when it and its children end, so does the copying."""
        os.close(self.descriptor)
        self._thread.start()

    def messages(self) -> list[dict[str, Any]]:
        """What was found, for the job's record. Grandchildren that keep the pipe open are not waited for."""
        self._thread.join(_GRACE_SECONDS)
        with self._reading:
            found = self._log.messages()[:_KEPT]
        return [
            {name: value for name, value in asdict(message).items() if value is not None} for message in found
        ]

    def _copy(self) -> None:
        while chunk := os.read(self._source, 1 << 16):
            self._write(chunk)
            with self._reading:
                self._log.feed(chunk)
        os.close(self._source)
        with self._reading:
            self._log.close()

    def _write(self, chunk: bytes) -> None:
        try:
            while chunk:
                chunk = chunk[os.write(self._target, chunk) :]
        except OSError:
            self._target = os.open(os.devnull, os.O_WRONLY)  # whoever read it has gone: the command goes on
