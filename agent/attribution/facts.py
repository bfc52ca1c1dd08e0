"""What one place knows about a job. Facts of several places are combined field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Empty and None mean "not known here".

    `start_ms` is the scheduler's own start, the same on every node of the job. `devices` are references as of
    `attribution.devices`; `nodes` is a scheduler's list of hosts.
    """

    raw_id: str = ""
    id: str = ""
    cluster: str = ""
    name: str = ""
    user: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    state: str = ""
    exit_code: int | None = None
    restart: int | None = None
    devices: tuple[str, ...] = ()
    sluid: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def over(self, other: Facts) -> Facts:
        """These facts, completed by `other` where nothing is known here."""
        if other is self or other == NOTHING:
            return self
        if self == NOTHING:
            return other
        missing = {name: getattr(other, name) for name in _NAMES if getattr(self, name) in ("", None, ())}
        return replace(self, **missing, meta={**other.meta, **self.meta})


NOTHING = Facts()
_NAMES = tuple(one.name for one in fields(Facts) if one.name != "meta")


def display_id(raw_id: str, array_job: str = "", task: str = "", het_job: str = "", offset: str = "") -> str:
    """What a person types for a job: `42_7` for an array task, `42+1` for a part of a heterogeneous job."""
    if array_job and task:
        return f"{array_job}_{task}"
    if het_job and offset:
        return f"{het_job}+{offset}"
    return raw_id
