"""What training processes report about themselves (`gpudiag.probe`), over a unix datagram socket.

A datagram counts only when the kernel says that it comes from a process of a job on this node, run by the
job's own user; its size, rate and every number in it are bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpudiag.storage.job import Allocation, Event, Job
from gpudiag.storage.sample import JOB_PREFIX, Frame, Source
from gpudiag.storage.storable import storable

MAXIMUM_BYTES = 8192
MESSAGES_PER_PROCESS = 5
MESSAGES_PER_TICK = 1024
MARKS_PER_TICK = 256
MESSAGES_WAITING = 256
_CLAIMED_WITHIN_MS = 5000
_MARK_MAX_AGE_MS = 600_000
_JOBS_KEPT = 1000
_STEPS_LAST = 2  # how long steps are holds until the next one is late by as much again
_CREDENTIALS = struct.Struct("iII")
_SUMS = ("steps", "timed_steps", "step_seconds", "wait_seconds", "samples")
_TORCH = {
    "allocated_bytes": "torch_allocated_bytes",
    "reserved_bytes": "torch_reserved_bytes",
    "inactive_split_bytes": "torch_inactive_split_bytes",
    "alloc_retries": "torch_alloc_retries_total",
    "ooms": "torch_ooms_total",
    "allocator": "torch_allocator",
}


class JobHere(Protocol):
    """A running job as attribution knows it."""

    @property
    def job(self) -> Job: ...
    @property
    def allocations(self) -> tuple[Allocation, ...]: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    @property
    def cgroup(self) -> str: ...
    @property
    def root_pid(self) -> int | None: ...


@dataclass(frozen=True)
class Message:
    """What a process said, and who it is by the kernel's word."""

    came_ms: int
    pid: int
    uid: int
    content: dict[str, Any]


@dataclass(frozen=True)
class LastSteps:
    """The steps that ended last: how long they were, until when that is how it goes."""

    seconds: float
    until_ms: float


class TrainingCollector:
    """Yields step and allocator series of the jobs, and their marks as events.

    A process often speaks before its job is known here: then its marks wait for a few seconds. `jobs` gives the running
    jobs; `root` is where proc is mounted below; `.rejected` counts what was refused.
    """

    name = "training"

    def __init__(
        self, path: Path, node: str, jobs: Callable[[], Sequence[JobHere]], root: Path = Path("/")
    ) -> None:
        self._path, self._node, self._jobs, self._proc = path, node, jobs, root / "proc"
        self._loaders: dict[str, Mapping[str, Any]] = {}
        self._ordinal = 0
        self._waiting: list[Message] = []
        self._last_steps: dict[str, LastSteps] = {}
        self.rejected: Counter[str] = Counter()
        self._channel = self._listen()

    def _listen(self) -> socket.socket:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        channel.setblocking(False)
        channel.bind(str(self._path))
        os.chmod(self._path, 0o666)  # any user may send; who counts is decided by the kernel's credentials
        return channel

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def collect(self, now_ms: int) -> Iterable[Frame | Event]:
        by_job: dict[str, list[tuple[JobHere, Message]]] = defaultdict(list)
        before, self._waiting = self._waiting, []
        for message in (*before, *self._messages(now_ms)):
            owner = self._owner(message.pid, message.uid)
            if owner is not None:
                by_job[owner.job.key].append((owner, message))
            elif 0 <= now_ms - message.came_ms < _CLAIMED_WITHIN_MS and len(self._waiting) < MESSAGES_WAITING:
                self._waiting.append(message)
            else:
                self.rejected["not from a job's user"] += 1
        for reports in by_job.values():
            owner = reports[0][0]
            fresh = [message.content for _, message in reports if message.came_ms == now_ms]
            yield from self._frames(owner, fresh, now_ms)
            yield from self._events(owner, [message.content for _, message in reports], now_ms)

    def _messages(self, now_ms: int) -> Iterator[Message]:
        sent: Counter[int] = Counter()
        for _ in range(MESSAGES_PER_TICK):
            try:
                data, ancillary, flags, _ = self._channel.recvmsg(
                    MAXIMUM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except (BlockingIOError, InterruptedError):
                return
            credentials = _credentials(ancillary)
            if credentials is None or flags & socket.MSG_TRUNC:
                self.rejected["too large"] += 1
                continue
            pid, uid = credentials
            sent[pid] += 1
            if sent[pid] > MESSAGES_PER_PROCESS:
                self.rejected["too often"] += 1
                continue
            content = parse(data)
            if content is None:
                self.rejected["malformed"] += 1
            else:
                yield Message(now_ms, pid, uid, content)

    def _owner(self, pid: int, uid: int) -> JobHere | None:
        family = list(self._ancestors(pid))
        groups = self._cgroups(pid)
        for candidate in self._jobs():
            own = {*candidate.pids, candidate.root_pid}
            member = next((one for one in family if one in own), None)
            if member is not None and self._user(member) == uid:
                return candidate
            # A process in the job's own cgroup was put there by the scheduler; it must still be the user's.
            inside = bool(candidate.cgroup) and any(_within(group, candidate.cgroup) for group in groups)
            users = {self._user(one) for one in own if one is not None} - {None}
            if inside and (not users or uid in users):
                return candidate
        return None

    def _cgroups(self, pid: int) -> list[str]:
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text(errors="surrogateescape").split("\n")
        except OSError:
            return []
        return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]

    def _ancestors(self, pid: int) -> Iterator[int]:
        while pid > 1:
            yield pid
            try:
                stat = (self._proc / str(pid) / "stat").read_bytes()  # a process may call itself anything
                pid = int(stat.rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                return

    def _user(self, pid: int) -> int | None:
        try:
            return (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None

    def _frames(self, owner: JobHere, messages: list[dict[str, Any]], now_ms: int) -> Iterator[Frame]:
        values = {**_waiting(messages), **_rates(messages)}
        values.update(self._steps_now(owner.job.key, _steps(messages), now_ms))
        if values:
            yield Frame(Source(self._node, JOB_PREFIX + owner.job.key), now_ms, values)
        own = [allocation.source for allocation in owner.allocations if allocation.source.node == self._node]
        uuids = {source.device for source in own}
        readings: dict[str, dict[str, float]] = defaultdict(dict)
        for reading in (device for message in messages for device in message["devices"]):
            uuid = reading["uuid"] or (own[0].device if len(own) == 1 else "")
            if uuid not in uuids:
                self.rejected["not a device of the job"] += 1
                continue
            # Several processes on one GPU: what they hold adds up.
            for name, value in reading["values"].items():
                together = readings[uuid].get(name, 0.0)
                readings[uuid][name] = max(together, value) if name == "torch_allocator" else together + value
        for uuid, values in readings.items():
            yield Frame(Source(self._node, uuid), now_ms, values)

    def _steps_now(self, key: str, ended: Mapping[str, float], now_ms: int) -> Mapping[str, float]:
        """Steps that take longer than a tick end in few of them: in between, they are as long as the last one."""
        if ended:
            seconds = ended["step_seconds"]
            self._last_steps[key] = LastSteps(seconds, now_ms + _STEPS_LAST * 1000 * seconds)
            while len(self._last_steps) > _JOBS_KEPT:
                del self._last_steps[next(iter(self._last_steps))]
            return ended
        last = self._last_steps.get(key)
        return {"step_seconds": last.seconds} if last is not None and now_ms <= last.until_ms else {}

    def _events(self, owner: JobHere, messages: list[dict[str, Any]], now_ms: int) -> Iterator[Event]:
        source = Source(self._node, JOB_PREFIX + owner.job.key)
        first_ranks = [message for message in messages if message["rank"] in ("", "0")]
        marks = [mark for message in first_ranks for mark in message["marks"]]
        if len(marks) > MARKS_PER_TICK:
            self.rejected["too many marks"] += len(marks) - MARKS_PER_TICK
        for name, seconds in marks[:MARKS_PER_TICK]:
            if abs(seconds * 1000 - now_ms) > _MARK_MAX_AGE_MS:
                self.rejected["mark of another time"] += 1
                continue
            self._ordinal += 1
            detail = {"name": name}
            yield Event(source, round(seconds * 1000), "mark", ordinal=self._ordinal % 2**31, detail=detail)
        loader = next((message["loader"] for message in reversed(first_ranks) if message["loader"]), None)
        if loader and loader != self._loaders.get(owner.job.key):
            if len(self._loaders) >= _JOBS_KEPT:
                self._loaders.clear()
            self._loaders[owner.job.key] = loader
            yield Event(source, now_ms, "loader_settings", detail=loader)


def _within(group: str, folder: str) -> bool:
    folder = "/" + folder.strip("/")
    return group == folder or group.startswith(folder + "/")


def _credentials(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int] | None:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            return pid, uid
    return None


def _rates(messages: list[dict[str, Any]]) -> dict[str, float]:
    """Steps and samples per second of processes that train, zero while none ends; ranks step together: the fastest one's."""
    stepped = [message for message in messages if message["stepped"]]
    values: dict[str, float] = {}
    if stepped:
        values["steps_per_second"] = max(message["steps"] / message["seconds"] for message in stepped)
    if any(message["loader"] or message["samples"] for message in stepped):
        values["samples_per_second"] = sum(message["samples"] / message["seconds"] for message in messages)
    return values


def _waiting(messages: list[dict[str, Any]]) -> dict[str, float]:
    """The share of this moment that was spent waiting for input, where all of it was training."""
    training = [message for message in messages if message["stepped"] and message["steady"]]
    seconds = sum(message["seconds"] for message in training)
    if not seconds:
        return {}
    return {
        "input_wait_ratio": min(1.0, sum(message["now_waited_seconds"] for message in training) / seconds)
    }


def _steps(messages: list[dict[str, Any]]) -> dict[str, float]:
    """Mean length and wait of the steps that ended, over all ranks; empty when none did."""
    timed = sum(message["timed_steps"] for message in messages)
    if not timed:
        return {}
    seconds = sum(message["step_seconds"] for message in messages)
    values = {"step_seconds": seconds / timed}
    if seconds:
        waited = sum(message["wait_seconds"] for message in messages)
        values["input_wait_ratio"] = min(1.0, waited / seconds)
    return values


def parse(data: bytes) -> dict[str, Any] | None:
    """A datagram's content with every number checked, or None when it is not one of ours."""
    try:
        raw = json.loads(data)
        if raw["version"] != 1:
            return None
        message: dict[str, Any] = {name: _number(raw[name]) for name in (*_SUMS, "seconds")}
        message["seconds"] = max(message["seconds"], 0.1)
        message["steady"] = bool(raw.get("steady", False))
        message["now_waited_seconds"] = _number(raw.get("now_waited_seconds", 0))
        message["stepped"] = bool(raw.get("stepped", False)) or message["steps"] > 0
        message["rank"] = _text(raw["rank"], 16)
        message["marks"] = [(_text(name, 32), _number(seconds)) for name, seconds in raw["marks"][:64]]
        message["loader"] = {
            _text(name, 32): _setting(value) for name, value in list(raw["loader"].items())[:16]
        }
        message["devices"] = [_device(device) for device in raw["devices"][:64]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return message


def _text(value: object, limit: int) -> str:
    """Text that every database takes."""
    return storable(str(value)[:limit])


def _number(value: object) -> float:
    # what is not finite, and an integer that no float can hold, are outside too
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        raise ValueError(value)
    return float(value)


def _setting(value: object) -> float | bool | None:
    return value if value is None or isinstance(value, bool) else _number(value)


def _device(raw: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: _number(raw[key]) for key, name in _TORCH.items() if key in raw}
    return {"uuid": _text(raw["uuid"], 64), "values": values}
