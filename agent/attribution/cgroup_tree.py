"""The host's control groups: where each controller is mounted, and who is inside. Both versions and the hybrid layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property

from gpudiag.agent.attribution.identity import CgroupIdentity, identify_path
from gpudiag.agent.collectors.host_root import HostRoot

UNIFIED = ""
BASE = "sys/fs/cgroup"
_V1_SCAN = ("freezer", "memory", "cpuset", "devices", "cpuacct")
_DEEPEST = 6


class CgroupTree:
    """Finds cgroups by controller and path as /proc/PID/cgroup writes them; `""` is the unified tree."""

    def __init__(self, root: HostRoot) -> None:
        self._root = root

    @cached_property
    def mounts(self) -> Mapping[str, str]:
        """Directory of each controller, relative to the root."""
        if self._root.exists(f"{BASE}/cgroup.controllers"):
            return {UNIFIED: BASE}
        found = {}
        for name in self._root.names(BASE):
            if self._root.exists(f"{BASE}/{name}/cgroup.controllers"):
                found[UNIFIED] = f"{BASE}/{name}"
            else:
                found.update(dict.fromkeys(name.split(","), f"{BASE}/{name}"))
        return found

    def folder(self, identity: CgroupIdentity, controller: str) -> str | None:
        """The job's directory under a controller; None when it has none or we cannot see it."""
        mount, path = self.mounts.get(controller), identity.controllers.get(controller)
        # a path that leaves our cgroup namespace starts with /.. and cannot be reached
        if mount is None or not path or path.startswith("/.."):
            return None
        folder = mount + path
        return folder if self._root.exists(folder) else None

    def home(self, identity: CgroupIdentity) -> str | None:
        """The directory that shows best whether the job lives."""
        for controller in (UNIFIED, *_V1_SCAN):
            folder = self.folder(identity, controller)
            if folder is not None:
                return folder
        return None

    def populated(self, identity: CgroupIdentity) -> bool:
        """Whether a process is left inside; a directory that somebody forgot to remove is no job."""
        folder = self.home(identity)
        if folder is None:
            return False
        for line in (self._root.read_if_there(f"{folder}/cgroup.events") or "").splitlines():
            if line.startswith("populated "):
                return line.endswith("1")
        return next(self._pids(folder), None) is not None

    def inode(self, identity: CgroupIdentity) -> int:
        """Tells apart two directories of one name, one after the other; 0 when it is gone."""
        folder = self.home(identity)
        try:
            return os.stat(self._root.path(folder)).st_ino if folder else 0
        except OSError:
            return 0

    def pids(self, identity: CgroupIdentity) -> list[int]:
        """Processes of the job, steps and tasks included."""
        folder = self.home(identity)
        return [] if folder is None else sorted(set(self._pids(folder)))

    def children(self, folder: str) -> Iterator[str]:
        """The directory and those below it, to a limited depth."""
        yield from self._walk(folder, _DEEPEST)

    def _walk(self, folder: str, depth: int) -> Iterator[str]:
        yield folder
        if depth:
            try:
                with os.scandir(self._root.path(folder)) as entries:
                    names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            except OSError:
                return
            for name in names:
                yield from self._walk(f"{folder}/{name}", depth - 1)

    def _pids(self, folder: str) -> Iterator[int]:
        for inside in self.children(folder):
            for word in (self._root.read_if_there(f"{inside}/cgroup.procs") or "").split():
                if word.isdigit() and word != "0":  # 0: a process outside of our pid namespace
                    yield int(word)


class SlurmCgroups:
    """Finds the cgroups of all Slurm jobs of the node; the roots are looked for rarely, the jobs each time."""

    def __init__(self, root: HostRoot, tree: CgroupTree) -> None:
        self._root, self._tree = root, tree
        self.roots: tuple[tuple[str, str], ...] = ()

    def discover(self) -> None:
        """Look for Slurm's own directories: one per slurmd, or one per user below each."""
        self.roots = tuple(dict.fromkeys(self._unified_roots() + self._v1_roots()))

    def scan(self) -> list[CgroupIdentity]:
        """Every job directory that is there, populated or not."""
        found: dict[tuple[str, str], CgroupIdentity] = {}
        for mount, slurm in self.roots:
            for path in self._job_paths(mount, slurm):
                match = identify_path(path)
                if match is None or match[0].kind not in ("slurm", "sluid"):
                    continue
                identity = match[0]
                controllers = {
                    controller: path
                    for controller, at in self._tree.mounts.items()
                    if self._root.exists(at + path)
                }
                known = found.get((identity.kind, identity.id))
                merged = {**controllers, **(known.controllers if known else {})}
                found[identity.kind, identity.id] = CgroupIdentity(
                    identity.kind, identity.id, "", identity.uid, merged
                )
        return list(found.values())

    def _unified_roots(self) -> list[tuple[str, str]]:
        mount = self._tree.mounts.get(UNIFIED)
        if mount is None:
            return []
        return [
            (mount, f"{slice_}/{name}")
            for slice_ in ("", "/system.slice")
            for name in self._root.names(mount + slice_)
            if name.endswith("slurmstepd.scope")
        ]

    def _v1_roots(self) -> list[tuple[str, str]]:
        for controller in _V1_SCAN:
            mount = self._tree.mounts.get(controller)
            names = [] if mount is None else self._root.names(mount)
            slurm = [f"/{name}" for name in names if name == "slurm" or name.startswith("slurm_")]
            if mount is not None and slurm:
                return [(mount, path) for path in slurm]
        return []

    def _job_paths(self, mount: str, slurm: str) -> Iterator[str]:
        for name in self._root.names(mount + slurm):
            if name.startswith("uid_"):
                yield from (f"{slurm}/{name}/{job}" for job in self._root.names(f"{mount}{slurm}/{name}"))
            else:
                yield f"{slurm}/{name}"
