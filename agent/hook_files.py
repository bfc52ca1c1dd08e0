"""Hook files: how a scheduler's prolog and epilog, and `gpudiag run`, tell the agent about a job.

One JSON file per run of a job in `<runtime directory>/jobs.d`, written at its start and replaced at its end. The
agent reads the directory each tick and removes files of ended jobs, so that an end told while it was down is not
lost. This module imports the standard library only: a prolog has 100 ms.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote  # pathlib has loaded it anyway

FOLDER = "jobs.d"
VERSION = 1
_MAX_NAME = 128
_KEPT_SECONDS = 7 * 86400
_MAX_BYTES = 1 << 20
_EVERYBODY = 0o1777
_CLOCK_TICK_NS = 2_000_000_000


@dataclass(frozen=True)
class Hook:
    """One run of a job. Times are UNIX milliseconds; `start_exact` says that all nodes know the same start.

    `restart` counts how often the scheduler had started the job before. `devices` are references as in `attribution.devices`, None when the writer did not know. `pid` with its
    start in clock ticks and the boot's id names the process whose tree the job is (`gpudiag run` only).
    """

    kind: str
    raw_id: str
    start_ms: int
    id: str = ""
    start_exact: bool = False
    end_ms: int | None = None
    exit_code: int | None = None
    state: str = ""
    cluster: str = ""
    name: str = ""
    user: str = ""
    devices: tuple[str, ...] | None = None
    pid: int | None = None
    pid_start_ticks: int | None = None
    boot_id: str = ""
    sluid: str = ""
    restart: int | None = None
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Name in the directory, another for each id and start: a requeued job gets a second file."""
        name = quote(self.raw_id, safe="+", errors="surrogatepass")
        if name.startswith("."):  # names of unfinished files start so
            name = "%2E" + name[1:]
        if len(name) > _MAX_NAME:
            name = f"{name[:_MAX_NAME]}-{zlib.crc32(name.encode()):08x}"
        return f"{name}-{self.start_ms}.json"


@dataclass(frozen=True)
class HookFile:
    """A hook with where it was found and who wrote it."""

    hook: Hook
    path: str
    owner: int


def make_folder(runtime_dir: Path) -> Path:
    """The hook directory, made so that every user may add files and nobody may touch another's. Raises `OSError`."""
    folder = runtime_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o7777 != _EVERYBODY:
        folder.chmod(_EVERYBODY)
    return folder


def write_hook(folder: Path, hook: Hook) -> Path:
    """Write or replace the file of this run, all or nothing. Raises `OSError`."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    body = json.dumps({"gpudiag_hook": VERSION, **asdict(hook)}, ensure_ascii=False)
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogatepass") as stream:
            stream.write(body)
        os.chmod(temporary, 0o644)
        path = folder / hook.file_name
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def parse_hook(text: str) -> Hook:
    """Raises `ValueError` for anything that is no hook; unknown keys of later versions are ignored."""
    body = json.loads(text)
    if not isinstance(body, dict) or not isinstance(body.get("gpudiag_hook"), int):
        raise ValueError("not a hook file")  # noqa: TRY004 - the content is wrong, not our call
    known = {one.name: body[one.name] for one in fields(Hook) if body.get(one.name) is not None}
    for name, kinds in _KINDS.items():
        if name in known and (not isinstance(known[name], kinds) or isinstance(known[name], bool)):
            raise ValueError(f"{name}: {known[name]!r} is not allowed")
    for name in ("devices", "tags"):
        if name in known:
            known[name] = tuple(str(item) for item in known[name])
    if not known.get("raw_id") or "start_ms" not in known or "kind" not in known:
        raise ValueError("kind, raw_id and start_ms are needed")
    return Hook(**known)


_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("kind", "raw_id", "id", "state", "cluster", "name", "user", "boot_id", "sluid"), str),
    **dict.fromkeys(("start_ms", "end_ms", "exit_code", "pid", "pid_start_ticks", "restart"), int),
    **dict.fromkeys(("devices", "tags"), list),
    "meta": dict,
}


def read_hooks(folder: Path) -> tuple[list[HookFile], list[str]]:
    """All hooks of the directory by start, and one line for each file that is none. No directory: no hooks."""
    found: list[HookFile] = []
    problems: list[str] = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and name[0] != ".")
    except OSError:
        return [], []
    for name in names:
        path = os.path.join(folder, name)
        try:
            found.append(read_hook(path))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    return sorted(found, key=lambda one: (one.hook.start_ms, one.path)), problems


class HookFolder:
    """The directory as it is read each tick: files are parsed again only after one was added, replaced or removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._content: tuple[list[HookFile], list[str]] = ([], [])

    def read(self) -> tuple[list[HookFile], list[str]]:
        """Like `read_hooks`."""
        try:
            state = os.stat(self._folder)
        except OSError:
            self._seen = None
            return [], []
        stamp = (state.st_ino, state.st_mtime_ns)
        # a change in the same clock tick as our reading would keep the time of the directory
        if stamp != self._seen or time.time_ns() - state.st_mtime_ns < _CLOCK_TICK_NS:
            self._seen = stamp
            self._content = read_hooks(self._folder)
        return self._content


def read_hook(path: str) -> HookFile:
    """One file of the directory. Raises `OSError`, and `ValueError` for a file that is no hook."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        owner = os.fstat(descriptor).st_uid
        data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError("file too large")
    return HookFile(parse_hook(data.decode("utf-8")), path, owner)


def open_runs(folder: Path, raw_id: str) -> list[HookFile]:
    """Runs of a job that have not ended, latest start last."""
    hooks, _ = read_hooks(folder)
    return [one for one in hooks if one.hook.raw_id == raw_id and one.hook.end_ms is None]


def prune(folder: Path, now: float | None = None) -> None:
    """Remove files of jobs that ended over a week ago and that no agent took."""
    limit_ms = ((time.time() if now is None else now) - _KEPT_SECONDS) * 1000
    hooks, _ = read_hooks(folder)
    for one in hooks:
        if one.hook.end_ms is not None and one.hook.end_ms < limit_ms:
            Path(one.path).unlink(missing_ok=True)
