"""Recording one command as a job: through the agent of this node, or by sampling ourselves while it runs."""

from __future__ import annotations

import hashlib
import logging
import os
import pwd
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpudiag.agent.attribution.devices import visible_references
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.hook_files import FOLDER, Hook, make_folder, write_hook
from gpudiag.agent.launch import Child, shell_code
from gpudiag.agent.proc_stat import read_proc_stat
from gpudiag.errors import GpudiagError, StoreBusyError

if TYPE_CHECKING:
    from gpudiag.agent.config import Config
    from gpudiag.agent.service import Agent

log = logging.getLogger(__name__)
CONTROL_SOCKET = "control.sock"
_TAKEN_WITHIN = 10.0  # seconds in which another sampler must have seen the end of our job
_CANCELLED = (130, 143)  # SIGINT, SIGTERM


class Recorder(Protocol):
    """Where samples of the job come from meanwhile."""

    @property
    def interval(self) -> float:
        """Seconds between two calls of `tick`."""

    def tick(self) -> None:
        """Called about once per interval while the command runs; does not raise."""

    def finish(self, hook: Path) -> bool:
        """The end is in the hook file: make sure that it is seen; whether the job is recorded."""


def agent_answers(runtime_dir: Path) -> bool:
    """Whether an agent runs that reads hook files there, and we may write one."""
    folder = runtime_dir / FOLDER
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        try:
            channel.connect(str(runtime_dir / CONTROL_SOCKET))
        except PermissionError:
            return True  # it listens, only not to us
        except OSError:
            return False
    return True


def own_runtime_dir(url: str, environ: Mapping[str, str]) -> Path:
    """A private directory for this user and database: two recordings into one database find each other there."""
    base = environ.get("XDG_RUNTIME_DIR")
    parent = Path(base) / "gpudiag" if base else Path("/tmp") / f"gpudiag-{os.getuid()}"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if parent.stat().st_uid != os.getuid():
        raise GpudiagError(f"{parent} belongs to another user")
    folder = parent / hashlib.sha256(url.encode()).hexdigest()[:12]
    make_folder(folder)
    return folder


def make_hook(
    job: str,
    name: str,
    child: Child,
    command: Sequence[str],
    environ: Mapping[str, str],
    tags: tuple[str, ...] = (),
) -> Hook:
    """The hook of a command that has just been started, with the GPUs that it can see."""
    stat = read_proc_stat(HostRoot(), child.pid)
    return Hook(
        "run",
        job,
        time.time_ns() // 1_000_000,
        id=job,
        name=name or Path(command[0]).name,
        user=_user(environ),
        devices=visible_references(environ.get("CUDA_VISIBLE_DEVICES")),
        pid=child.pid,
        pid_start_ticks=stat.start_ticks if stat is not None else None,
        boot_id=(HostRoot().read_if_there("proc/sys/kernel/random/boot_id") or "").strip(),
        tags=tags,
        meta={"command": " ".join(command)[:1000]},
    )


def _user(environ: Mapping[str, str]) -> str:
    """Who we are: a service or a container has no USER, and its uid need not have a name."""
    try:
        return environ.get("USER") or environ.get("LOGNAME") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def record(
    child: Child,
    hook: Hook,
    folder: Path,
    recorder: Recorder,
    learned: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[int, bool]:
    """Follow the command to its end; its return code, and whether the job is recorded.

    `learned` is asked at the end what else belongs in the job's `meta`.
    """
    path = _write(folder, hook)
    due = time.monotonic()
    while not child.wait(due - time.monotonic()):
        recorder.tick()
        due = max(due + recorder.interval, time.monotonic())
    assert child.returncode is not None
    recorded = False
    if path is not None:
        hook = replace(hook, meta={**hook.meta, **learned()})
        _write(folder, ended(hook, child.returncode))
        recorded = recorder.finish(path)
    child.release_signals()
    return child.returncode, recorded


def ended(hook: Hook, returncode: int) -> Hook:
    """The hook at the end of the command."""
    code = shell_code(returncode)
    state = "completed" if code == 0 else "cancelled" if code in _CANCELLED and returncode < 0 else "failed"
    now_ms = time.time_ns() // 1_000_000
    return replace(hook, end_ms=max(now_ms, hook.start_ms), exit_code=code, state=state)


def _write(folder: Path, hook: Hook) -> Path | None:
    try:
        return write_hook(folder, hook)
    except OSError as error:
        log.error("the job is not recorded: %s", error)
        return None


class ByAgent:
    """The node's agent samples; we only tell it when the job starts and ends."""

    interval = 3600.0

    def tick(self) -> None:
        """Nothing to do."""

    def finish(self, hook: Path) -> bool:
        """Give the agent time to see the end, so that a report right after it finds a finished job."""
        _wait_until(lambda: not hook.exists())
        return True  # a slow agent reads the file later


class BySampling:
    """We sample with the agent's own pipeline into a database of the user.

    When another `gpudiag run` samples into the same database, it does so for both jobs; we take over when it ends.
    """

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._config, self._environ = config, environ
        self._agent: Agent | None = None
        self._failed = False

    @property
    def interval(self) -> float:
        return self._config.agent.interval

    def tick(self) -> None:
        """One sample; the first one starts the pipeline."""
        if self._agent is None and not self._failed:
            self._start()
        if self._agent is not None:
            self._agent.cycle()

    def finish(self, hook: Path) -> bool:
        """A last sample with the end of the job, or wait for whoever samples."""
        if not _wait_until(lambda: self._sees_end(hook), once=self._failed):
            log.error("the end of the job was not recorded: %s is left for the next sampler", hook)
        if self._agent is None:
            return not self._failed
        self._agent.shutdown()
        return self._agent.ready().ok

    def _sees_end(self, hook: Path) -> bool:
        self.tick()
        return self._failed or not hook.exists()

    def _start(self) -> None:
        from gpudiag.agent import logs
        from gpudiag.agent.clock import SystemClock
        from gpudiag.agent.main import build

        clock = SystemClock()
        limit = logs.configure("error", 1, clock.monotonic, False)
        try:
            self._agent = build(self._config, clock, self._environ, lambda: self._config, limit)
        except StoreBusyError:
            return
        except Exception as error:
            reason = str(error) if isinstance(error, GpudiagError) else f"{type(error).__name__}: {error}"
            log.error("the job is not recorded: %s", reason)
            log.debug("traceback", exc_info=True)
            self._failed = True


def _wait_until(done: Callable[[], bool], once: bool = False) -> bool:
    """Ask now and then for a while; whether it became true."""
    limit = time.monotonic() + (0.0 if once else _TAKEN_WITHIN)
    while not done():
        if time.monotonic() >= limit:
            return False
        time.sleep(0.1)
    return True
