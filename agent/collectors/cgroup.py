"""What a job's control group says about its CPU, memory, I/O and pressure; cgroup v1 and v2 (kernel cgroup-v2.rst)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpudiag.agent.attribution.cgroup_tree import UNIFIED, CgroupTree
from gpudiag.agent.attribution.hostlist import expand_numbers
from gpudiag.agent.attribution.identity import CgroupIdentity
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.collectors.pressure import parse_pressure

_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 for "no limit"
_RESOURCES = ("cpu", "io", "memory")


@dataclass
class CgroupUsage:
    """One reading. Counters: `cpu_seconds periods throttled read write`, stalls as `cpu.some` in microseconds."""

    counters: dict[str, float] = field(default_factory=dict)
    working_set: float | None = None
    anon: float | None = None
    file: float | None = None
    shmem: float | None = None
    oom_kills: float | None = None


@dataclass(frozen=True)
class CgroupLimits:
    """What bounds the job: CPUs by set and quota, bytes by the tightest limit above it; None where nothing does."""

    cpus: float | None
    memory: float | None
    quota_folder: str | None


def parse_flat(text: str | None) -> dict[str, int]:
    """`name number` lines, as in cpu.stat, memory.stat and memory.events."""
    found = {}
    for line in (text or "").splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            found[name] = int(number)
    return found


def parse_cpu_list(text: str) -> set[int]:
    """`0-3,8` as numbers; empty for an empty or odd list."""
    try:
        return {int(number) for number in expand_numbers(text.strip())} if text.strip() else set()
    except ValueError:
        return set()


def parse_io_stat(text: str, counted: Iterable[str] | None = None) -> tuple[float, float]:
    """Bytes read and written, summed over devices `major:minor`; only over `counted` ones when given."""
    read = written = 0.0
    for line in text.splitlines():
        device, _, rest = line.partition(" ")
        if counted is not None and device not in counted:
            continue
        fields_ = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        read += float(fields_.get("rbytes", 0))
        written += float(fields_.get("wbytes", 0))
    return read, written


class CgroupReader:
    """Reads the cgroup of one job; both versions answer in the same terms."""

    def __init__(self, root: HostRoot, tree: CgroupTree, identity: CgroupIdentity) -> None:
        self._root, self._tree, self._identity = root, tree, identity
        self._physical: dict[str, bool] = {}

    def usage(self, limits: CgroupLimits) -> CgroupUsage:
        """What the job used so far and holds now; what the kernel does not count is absent."""
        usage = CgroupUsage()
        unified = self._tree.folder(self._identity, UNIFIED)
        if unified is not None and self._root.exists(f"{unified}/cgroup.procs"):
            self._read_v2(unified, limits, usage)
        self._read_v1(usage)
        return usage

    def limits(self) -> CgroupLimits:
        """Look up the ancestors; costs a few dozen reads, so not each tick."""
        sets = [len(cpus) for cpus in self._cpu_sets() if cpus]
        quotas = list(self._quotas())
        limits = [*self._memory_limits()]
        cpus = [*map(float, sets), *(cpus for cpus, _ in quotas)]
        return CgroupLimits(
            min(cpus, default=None),
            min(limits, default=None),
            quotas[0][1] if quotas else None,
        )

    def _read_v2(self, folder: str, limits: CgroupLimits, usage: CgroupUsage) -> None:
        cpu = parse_flat(self._root.read_if_there(f"{folder}/cpu.stat"))
        if "usage_usec" in cpu:
            usage.counters["cpu_seconds"] = cpu["usage_usec"] / 1e6
        self._count_throttling(limits.quota_folder, usage)
        for resource in _RESOURCES:
            text = self._root.read_if_there(f"{folder}/{resource}.pressure")
            if text is not None:
                usage.counters.update(parse_pressure(resource, text))
        io = self._root.read_if_there(f"{folder}/io.stat")
        if io is not None:
            usage.counters["read"], usage.counters["write"] = parse_io_stat(io, self._physical_devices(io))
        self._memory_v2(folder, usage)

    def _memory_v2(self, folder: str, usage: CgroupUsage) -> None:
        current = self._number(f"{folder}/memory.current")
        stat = parse_flat(self._root.read_if_there(f"{folder}/memory.stat"))
        if current is None or not stat:
            return
        reclaimable = stat.get("inactive_file", 0) + stat.get("slab_reclaimable", 0)
        usage.working_set = max(0.0, current - reclaimable)
        usage.anon, usage.file, usage.shmem = (stat.get(name) for name in ("anon", "file", "shmem"))
        usage.oom_kills = parse_flat(self._root.read_if_there(f"{folder}/memory.events")).get("oom_kill")

    def _read_v1(self, usage: CgroupUsage) -> None:
        cpuacct = self._v1("cpuacct")
        nanoseconds = None if cpuacct is None else self._number(f"{cpuacct}/cpuacct.usage")
        if nanoseconds is not None:
            usage.counters["cpu_seconds"] = nanoseconds / 1e9
        self._count_throttling(self._v1("cpu"), usage)
        blkio = self._v1("blkio")
        if blkio is not None and "read" not in usage.counters:
            text = self._root.read_if_there(f"{blkio}/blkio.throttle.io_service_bytes_recursive")
            usage.counters.update(_parse_blkio(text or ""))
        self._memory_v1(usage)

    def _memory_v1(self, usage: CgroupUsage) -> None:
        folder = self._v1("memory")
        current = None if folder is None else self._number(f"{folder}/memory.usage_in_bytes")
        if folder is None or current is None:
            return
        stat = parse_flat(self._root.read_if_there(f"{folder}/memory.stat"))
        usage.working_set = max(0.0, current - stat.get("total_inactive_file", 0))
        names = ("total_rss", "total_cache", "total_shmem")
        usage.anon, usage.file, usage.shmem = (stat.get(name) for name in names)
        kills = [
            parse_flat(self._root.read_if_there(f"{inside}/memory.oom_control")).get("oom_kill")
            for inside in self._tree.children(folder)
        ]
        known = [count for count in kills if count is not None]
        usage.oom_kills = sum(known) if known else None

    def _count_throttling(self, folder: str | None, usage: CgroupUsage) -> None:
        stat = {} if folder is None else parse_flat(self._root.read_if_there(f"{folder}/cpu.stat"))
        if "nr_periods" in stat:
            usage.counters["periods"] = stat["nr_periods"]
            usage.counters["throttled"] = stat.get("nr_throttled", 0)

    def _cpu_sets(self) -> Iterator[set[int]]:
        for controller, names in (
            (UNIFIED, ("cpuset.cpus.effective",)),
            ("cpuset", ("cpuset.effective_cpus", "cpuset.cpus")),
        ):
            for folder in self._upwards(controller):
                text = self._root.first(f"{folder}/{name}" for name in names)
                if text is not None and text.strip():
                    yield parse_cpu_list(text)
                    break
        yield parse_cpu_list(self._root.read_if_there("sys/devices/system/cpu/online") or "")

    def _quotas(self) -> Iterator[tuple[float, str]]:
        for folder in self._upwards(UNIFIED):
            words = (self._root.read_if_there(f"{folder}/cpu.max") or "").split()
            if len(words) == 2 and words[0].isdigit() and float(words[1]):
                yield float(words[0]) / float(words[1]), folder
        for folder in self._upwards("cpu"):
            quota, period = (self._number(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
            if quota is not None and quota > 0 and period:
                yield quota / period, folder

    def _memory_limits(self) -> Iterator[float]:
        for folder in self._upwards(UNIFIED):
            limit = self._number(f"{folder}/memory.max")
            if limit is not None:
                yield limit
        for folder in self._upwards("memory"):
            limit = self._number(f"{folder}/memory.limit_in_bytes")
            if limit is not None and limit < _UNLIMITED:
                yield limit

    def _upwards(self, controller: str) -> Iterator[str]:
        """The job's directory, then its ancestors up to the mount."""
        mount, path = self._tree.mounts.get(controller), self._identity.controllers.get(controller)
        if mount is None or path is None or path.startswith("/.."):
            return
        path = path.rstrip("/")
        while True:
            yield mount + path
            if not path:
                return
            path = path.rpartition("/")[0]

    def _v1(self, controller: str) -> str | None:
        return self._tree.folder(self._identity, controller)

    def _number(self, relative: str) -> float | None:
        text = (self._root.read_if_there(relative) or "").strip()
        return float(text) if text.lstrip("-").isdigit() else None

    def _physical_devices(self, io_stat: str) -> list[str] | None:
        """Devices that are disks of their own: what goes through a mapped device is counted at the disk, too."""
        devices = [line.partition(" ")[0] for line in io_stat.splitlines()]
        if not self._root.exists("sys/dev/block"):
            return None
        for device in devices:
            if device not in self._physical:
                self._physical[device] = self._root.exists(f"sys/dev/block/{device}/device")
        return [device for device in devices if self._physical[device]]


def enclosing_cgroups(text: str) -> CgroupIdentity:
    """All cgroups of a process from /proc/PID/cgroup, whoever made them: what bounds a job without one of its own."""
    controllers = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        controllers.update(dict.fromkeys(names.split(","), path))
    return CgroupIdentity("run", "", controllers=controllers)


def _parse_blkio(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in ("Read", "Write"):
            key = words[1].lower()
            found[key] = found.get(key, 0.0) + float(words[2])
    return found
