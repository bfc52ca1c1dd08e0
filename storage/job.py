"""Jobs, the devices they were given and what happened to them. All times are UNIX milliseconds, UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpudiag.storage.sample import Source

Json = Any


@dataclass(frozen=True)
class Job:
    """One run of one job. `key` is unique for ever: `cluster/raw id/start seconds`.

    `id` is what a person types (`42`, `42_7`, `42+1`, a name); `raw_id` the scheduler's own number when it
    differs. `state` is `running`, `completed`, `failed`, `cancelled`, `timeout`, `oom` or `unknown`.
    """

    key: str
    id: str
    start_ms: int
    end_ms: int | None = None
    cluster: str = "local"
    raw_id: str = ""
    name: str = ""
    user: str = ""
    state: str = "unknown"
    exit_code: int | None = None
    restart: int = 0
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Allocation:
    """A device belonged to a job during an interval: where that is known from, and how surely (0..1)."""

    job_key: str
    source: Source
    start_ms: int
    end_ms: int | None
    known_from: str
    confidence: float = 1.0


@dataclass(frozen=True)
class Device:
    """What a GPU or MIG instance is, valid from `since_ms`; `None` is unknown."""

    source: Source
    since_ms: int
    index: int | None = None
    minor: int | None = None
    pci_bus_id: str = ""
    model: str = ""
    driver: str = ""
    memory_total_bytes: float | None = None
    power_limit_watts: float | None = None
    max_sm_clock_hertz: float | None = None
    max_memory_clock_hertz: float | None = None
    max_pcie_link_generation: int | None = None
    max_pcie_link_width: int | None = None
    nvlink_count: int | None = None
    compute_capability: str = ""
    parent_uuid: str = ""
    mig_profile: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened once (an Xid, an OOM kill, a driver hang), not a level.

    `kind` groups (`xid`, `oom_kill`, `driver_hung`, `clock_jump`, ...), `code` is the number inside the kind,
    `ordinal` tells apart equal events of one millisecond.
    """

    source: Source
    time_ms: int
    kind: str
    code: int = 0
    ordinal: int = 0
    detail: Mapping[str, Json] = field(default_factory=dict)
