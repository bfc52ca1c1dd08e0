"""DCGM through NVIDIA's own Python bindings, in the child: always a running host engine, never one started in here.

The bindings come with the DCGM packages, not from PyPI. Fields are asked for by number: their names changed in
DCGM 4.6.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpudiag.agent.probe.failures import DriverError
from gpudiag.agent.probe.framing import Message
from gpudiag.agent.probe.progress import Progress

FOLDERS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
    "/usr/local/dcgm/bindings",
)
NO_BINDINGS = 12  # as NVML's code for a library that is not there
STALE = 3.0  # intervals after which a value is no longer one: the host engine repeats the last one while it is paused
DEVICE = (100, 101, 112, 140, 150, 153, 155, 156, 164, 202, 203, 204, 230, 237, 238, 240, 241, 250, 252, 253, 310, 311, 390, 391,
          393, 394, 395, 396, 409, 419, 429, 439)  # fmt: skip
PROFILING = tuple(range(1001, 1013))
INSTANCE = frozenset(
    (*range(1001, 1009), 250, 251, 252, 253)
)  # what a MIG instance has of its own; the rest is the card's
_ENTITY_GPU, _ENTITY_INSTANCE = 1, 4  # DCGM_FE_GPU, DCGM_FE_GPU_I
_RESLICED_EVERY = 10  # cycles between two looks at what MIG instances there are
_KEPT_SAMPLES = 2


class Session:
    """Connects on creation: `address` is host:port, or a path for a UNIX socket."""

    def __init__(
        self,
        progress: Progress,
        address: str,
        folders: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._progress = progress
        self._now = now
        self._calls = 0
        self._pydcgm = _bindings([*folders, *FOLDERS])
        where = {"unixSocketPath": address} if address.startswith("/") else {"ipAddress": address}
        self._handle = self._call("dcgmConnect_v2", self._pydcgm.DcgmHandle, **where)
        self._system = self._handle.GetSystem()
        ids = list(self._call("dcgmGetAllSupportedDevices", self._system.discovery.GetAllSupportedGpuIds))
        self._uuids = {one: self._uuid(one) for one in ids}
        self._group: Any = None
        self._instances: dict[int, tuple[str, int]] = {}
        self._watched: list[Any] = []
        self._absent: dict[str, str] = {}
        self._interval = 0.0
        self._cycles = self._groups = 0
        self._make_group()

    def sample(self, interval: float) -> Message:
        """The latest value of every field of every GPU, by field number."""
        self._calls = 0
        self._cycles += 1
        if self._cycles % _RESLICED_EVERY == 0 and self._hierarchy() != self._instances:
            self._make_group()
        if not self._watched or interval != self._interval:
            self._watch(interval)
        gpus: dict[int, dict[str, float]] = {one: {} for one in self._uuids}
        parts: dict[int, dict[str, float]] = {}
        since = self._now() - STALE * max(interval, 1.0)
        for fields in self._watched:
            latest = self._call("dcgmGetLatestValues_v2", self._group.samples.GetLatest_v2, fields)
            for gpu, number, value in _values(latest, _ENTITY_GPU, since):
                gpus.setdefault(gpu, {})[str(number)] = value
            for entity, number, value in _values(latest, _ENTITY_INSTANCE, since):
                if number in INSTANCE:
                    parts.setdefault(entity, {})[str(number)] = value
        found: list[Message] = [
            {"uuid": self._uuids[gpu], "fields": fields} for gpu, fields in gpus.items() if gpu in self._uuids
        ]
        for entity, fields in parts.items():
            if entity in self._instances:
                uuid, number = self._instances[entity]
                found.append({"uuid": uuid, "instance": number, "fields": fields})
        return {"gpus": found, "absent": self._absent, "calls": self._calls}

    def between(self) -> float | None:
        """Nothing to do between cycles."""
        return None

    def close(self) -> None:
        """Take the watches back and disconnect."""
        for fields in self._watched:
            self._call("dcgmUnwatchFields", self._group.samples.UnwatchFields, fields)
        self._call("dcgmDisconnect", self._handle.Shutdown)

    def _make_group(self) -> None:
        """All GPUs and MIG instances of now; the host engine drops a group whose object is gone."""
        self._group = None
        self._watched = []
        self._groups += 1
        name = f"gpudiag_{os.getpid()}_{self._groups}"
        self._group = self._call("dcgmGroupCreate", self._system.GetGroupWithGpuIds, name, list(self._uuids))
        self._instances = self._hierarchy()
        for entity in self._instances:
            self._call("dcgmGroupAddEntity", self._group.AddEntity, _ENTITY_INSTANCE, entity)

    def _hierarchy(self) -> dict[int, tuple[str, int]]:
        """Entity to UUID of the card and NVML's number of the MIG instance on it; empty where DCGM cannot tell."""
        try:
            agent = importlib.import_module("dcgm_agent")
            listed = self._call(
                "dcgmGetGpuInstanceHierarchy", agent.dcgmGetGpuInstanceHierarchy, self._handle.handle
            )
        except (ImportError, DriverError) as error:
            self._absent["mig"] = str(error)
            return {}
        self._absent.pop("mig", None)
        entries = [listed.entityList[position] for position in range(listed.count)]
        return {
            one.entity.entityId: (_text(one.info.gpuUuid), int(one.info.nvmlInstanceId))
            for one in entries
            if one.entity.entityGroupId == _ENTITY_INSTANCE
        }

    def _watch(self, interval: float) -> None:
        """Ask the host engine to keep these fields; profiling apart, since a GPU may not have it."""
        self._interval, self._watched = interval, []
        every = max(1, int(interval * 1e6))
        for name, numbers in (("device", DEVICE), ("profiling", PROFILING)):
            try:
                group = f"gpudiag_{name}_{os.getpid()}_{every}"
                fields = self._call("dcgmFieldGroupCreate", self._pydcgm.DcgmFieldGroup, self._handle, group, list(numbers))  # fmt: skip
                self._call("dcgmWatchFields", self._group.samples.WatchFields, fields, every, 10.0 * interval, _KEPT_SAMPLES)  # fmt: skip
            except DriverError as error:
                self._absent[name] = str(error)
            else:
                self._watched.append(fields)
        if not self._watched:
            raise DriverError(0, "dcgmWatchFields", "; ".join(self._absent.values()))

    def _uuid(self, gpu: int) -> str:
        attributes = self._call("dcgmGetDeviceAttributes", self._system.discovery.GetGpuAttributes, gpu)
        return _text(attributes.identifiers.uuid)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._progress.call(name)
        self._calls += 1
        try:
            return function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - the bindings' own class is known only once they are imported
            raise DriverError(
                int(getattr(error, "value", 0) or 0), name, f"{error}" or type(error).__name__
            ) from None
        finally:
            self._progress.call("")


def library_path() -> str:
    """The mapped libdcgm, version in its name, or an empty text."""
    try:
        with open("/proc/self/maps") as maps:
            return next((line.split()[-1] for line in maps if "libdcgm.so" in line), "")
    except OSError:
        return ""


def _bindings(folders: Sequence[str]) -> Any:
    found = next((folder for folder in folders if os.path.exists(os.path.join(folder, "pydcgm.py"))), None)
    if found is None:
        raise DriverError(
            NO_BINDINGS, "import pydcgm", f"DCGM's Python bindings are in none of {', '.join(folders)}"
        )
    sys.path.insert(0, found)
    try:
        return importlib.import_module("pydcgm")
    except Exception as error:  # noqa: BLE001 - they load libdcgm while being imported
        raise DriverError(NO_BINDINGS, "import pydcgm", f"{found}: {type(error).__name__}: {error}") from None


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _values(latest: Any, kind: int, since: float) -> Iterator[tuple[int, int, float]]:
    """Entity, field number and value of what is neither blank nor older than `since` (UNIX seconds)."""
    for gpu, fields in latest.values.get(kind, {}).items():
        for number, series in fields.items():
            newest = series[-1]
            if not newest.isBlank and isinstance(newest.value, (int, float)) and newest.ts / 1e6 >= since:
                yield gpu, number, float(newest.value)
