"""Which job, pod or container a cgroup path belongs to. Pure text: no file is read here.

Layouts: Slurm cgroup v1 and v2 plugins (with several slurmd on a node, and the SLUID names of 26.05), kubelet with
either cgroup driver, docker and podman. The job's own cgroup is where the path is cut: above steps and containers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["slurm", "sluid", "kubernetes", "container", "run"]

SLURM_ROOT = r"(?:slurm(?:_[^/]+)?|(?:[^/]+_)?slurmstepd\.scope)"
SLUID = r"s[0-9A-HJKMNP-TV-Z]{13}"
_UUID = r"[0-9a-f]{8}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{12}"
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "slurm",
        re.compile(
            rf"(?P<own>/(?:.*/)?{SLURM_ROOT}/(?:uid_(?P<uid>\d+)/)?job_(?P<id>\d+))(?:/step_(?P<part>[^/]+))?(?:/|$)"
        ),
    ),
    (
        "sluid",
        re.compile(
            rf"(?P<own>/(?:.*/)?{SLURM_ROOT}/(?:uid_(?P<uid>\d+)/)?(?P<id>{SLUID}))(?:/step_(?P<part>[^/]+))?(?:/|$)"
        ),
    ),
    (
        "kubernetes",
        re.compile(
            rf"(?P<own>/(?:.*/)?kubepods[^/]*/(?:[^/]+/)*?(?:[^/]*-)?pod(?P<id>{_UUID})(?:\.slice)?)"
            r"(?:/(?:[^/]*[-:])?(?P<part>[0-9a-f]{64})(?:\.scope)?)?(?:/|$)"
        ),
    ),
    (
        "container",
        re.compile(r"(?P<own>/(?:.*/)?(?:docker-|libpod-|docker/|libpod/|)(?P<id>[0-9a-f]{64})(?:\.scope)?)(?P<part>)(?:/|$)"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class CgroupIdentity:
    """What a cgroup path says: kind and id, and the job's own cgroup per controller (`""` is the unified tree).

    `part` is the Slurm step or the container of a pod. A SLUID names a job without telling its number.
    """

    kind: Kind
    id: str
    part: str = ""
    uid: int | None = None
    controllers: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The job's own cgroup: in the unified tree, else the one that counts memory, else any."""
        for controller in ("", "memory", "freezer", "cpuset", "devices"):
            if controller in self.controllers:
                return self.controllers[controller]
        return next(iter(self.controllers.values()), "")


def identify_path(path: str) -> tuple[CgroupIdentity, str] | None:
    """Identity and own cgroup of one path; None when it belongs to no job."""
    for kind, pattern in _PATTERNS:
        match = pattern.match(path)
        if match:
            uid = match.groupdict().get("uid")
            name = match["id"].replace("_", "-") if kind == "kubernetes" else match["id"]
            return CgroupIdentity(kind, name, match["part"] or "", int(uid) if uid else None), match["own"]
    return None


def identify(text: str) -> CgroupIdentity | None:
    """Read the lines of /proc/PID/cgroup: schedulers come before pods, pods before containers."""
    best: CgroupIdentity | None = None
    found: list[tuple[CgroupIdentity, str, str]] = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        identity = identify_path(path) if number.isdigit() else None
        if identity is None:
            continue
        found.append((identity[0], controllers, identity[1]))
        if best is None or _rank(identity[0]) < _rank(best):
            best = identity[0]
    if best is None:
        return None
    own = {
        controller: path
        for identity, controllers, path in found
        if (identity.kind, identity.id) == (best.kind, best.id)
        for controller in controllers.split(",")
    }
    part = next((one.part for one, _, _ in found if one.id == best.id and one.part), "")
    return CgroupIdentity(best.kind, best.id, part, best.uid, own)


def _rank(identity: CgroupIdentity) -> int:
    return [kind for kind, _ in _PATTERNS].index(identity.kind)
