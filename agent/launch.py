"""A command that runs as our child: signals go through to it, its end ends us the same way."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType

from gpudiag.errors import GpudiagError

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


class CannotRunError(GpudiagError):
    """The command is not there (exit code 127) or not a program (126), as a shell says it."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"{command}: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


class Child:
    """The command, started. `returncode` is None while it runs, negative when a signal ended it.

    From before the start on, signals that we get go to the command and do not end us; what we ignore (nohup), it
    ignores too.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], stderr: int | None = None) -> None:
        self._early: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        ours = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._pass_on) for number in ours}
        try:
            self._process = subprocess.Popen(list(command), env=dict(environ), stderr=stderr)
        except OSError as error:
            self.release_signals()
            raise CannotRunError(command[0], error) from None
        for number in self._early:
            self._pass_on(number, None)
        self._descriptor = _open_pidfd(self._process.pid)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        assert self._process is not None
        return self._process.returncode

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for the end; whether it has come."""
        assert self._process is not None
        if self._descriptor is None:  # kernels before 5.3
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        else:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)
        if self._process.poll() is None:
            return False
        self._close()
        return True

    def release_signals(self) -> None:
        """Signals are ours again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number in _FROM_TERMINAL and _in_foreground():
            return  # the terminal has sent it to the command already
        if self._process is None:
            self._early.append(number)
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def shell_code(returncode: int) -> int:
    """Exit code as a shell gives it: 128 plus the signal's number."""
    return 128 - returncode if returncode < 0 else returncode


def end_like(returncode: int) -> int:
    """Die of the signal that the child died of, without a core of our own; else its exit code, to exit with."""
    if returncode >= 0:
        return returncode
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError, ValueError):
        signal.signal(-returncode, signal.SIG_DFL)
    os.kill(os.getpid(), -returncode)
    time.sleep(0.1)  # a signal that does not end a process (it ended the child, though)
    return shell_code(returncode)


def _in_foreground() -> bool:
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
