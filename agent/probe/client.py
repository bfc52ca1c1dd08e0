"""The parent's end of one probe process: start it, ask, look for an answer without waiting long, see what it is stuck in."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gpudiag
from gpudiag.agent.probe import framing, progress
from gpudiag.agent.probe.framing import Decoder, FramingError, Message

_PACKAGES = str(Path(gpudiag.__file__).parents[1])


class ProbeDiedError(Exception):
    """The child ended without being asked to."""


@dataclass(frozen=True)
class Stuck:
    """What can be seen of a child that does not answer: its call, scheduler state (`D`: cannot be killed), kernel function."""

    operation: str
    device: str
    state: str
    wchan: str
    stat: str
    pid: int


class ProbeClient:
    """One child that reads `source` (what to read, and its arguments).

    `library`: file or directory of libnvidia-ml.so.1 when the loader would not find it.
    """

    def __init__(
        self, library: str = "", environ: Mapping[str, str] | None = None, source: Sequence[str] = ("nvml",)
    ) -> None:
        page = progress.create()
        ours, theirs = socket.socketpair()
        try:
            self._progress = progress.Progress(page)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpudiag.agent.probe", str(theirs.fileno()), str(page), *source],
                pass_fds=(theirs.fileno(), page),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(library, os.environ if environ is None else environ),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(page)
        ours.setblocking(False)
        self._socket = ours
        self._decoder = Decoder()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> None:
        """Ask; raises `ProbeDiedError`."""
        try:
            self._socket.sendall(framing.encode(message))
        except OSError as error:
            raise ProbeDiedError(str(error)) from None

    def receive(self, timeout: float) -> Message | None:
        """The next answer, or None after `timeout` seconds; raises `ProbeDiedError`."""
        while (message := self._next()) is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                return None
            self._read()
        return message

    def stuck(self) -> Stuck:
        """What the child is doing now, for a report about a hang."""
        operation, device = self._progress.read()
        stat = _line(f"/proc/{self.pid}/stat")
        state = stat.rpartition(")")[2].split()[:1]
        return Stuck(operation, device, "".join(state), _line(f"/proc/{self.pid}/wchan"), stat, self.pid)

    def operation(self) -> tuple[str, str]:
        """Function and device of the call in progress."""
        return self._progress.read()

    def kill(self) -> None:
        """Send SIGKILL, which a call in uninterruptible sleep does not heed."""
        self._process.kill()

    def ended(self) -> bool:
        """Whether the child is no more; never waits."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Wait for its end, however long."""
        self._process.wait()

    def how_it_ended(self) -> str:
        """Exit status in words."""
        code = self._process.poll()
        if code is None:
            return "still running"
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def close(self, timeout: float = 2.0) -> bool:
        """Ask it to let go of the driver and end; False when it does not within `timeout` seconds."""
        self._socket.close()
        self._progress.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _next(self) -> Message | None:
        try:
            return self._decoder.next()
        except FramingError as error:
            raise ProbeDiedError(f"it speaks nonsense: {error}") from None

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except OSError as error:
            raise ProbeDiedError(str(error)) from None
        if not data:
            raise ProbeDiedError("it closed the connection")
        self._decoder.feed(data)


def _environment(library: str, environ: Mapping[str, str]) -> dict[str, str]:
    made = dict(environ)
    made["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGES, environ.get("PYTHONPATH"))))
    if library:
        path = Path(library)
        directory = path if path.is_dir() else path.parent
        made["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, (str(directory), environ.get("LD_LIBRARY_PATH")))
        )
    return made


def _line(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
