"""GPUs through NVML: frames, devices, processes and events made of what the probe process reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpudiag import message
from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.gpu_inventory import Inventory
from gpudiag.agent.collectors.gpu_values import Values
from gpudiag.agent.gpu import GpuProcess
from gpudiag.agent.probe.client import ProbeClient
from gpudiag.agent.probe.framing import Message
from gpudiag.agent.probe.keeper import HANG_AFTER, START_AFTER, Keeper, Pause, Probe
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import NODE, Frame, Source

PATIENCE = 0.5  # of the interval: how long a tick waits for an answer at most
STALE = 3.0  # intervals: an answer that took longer is too old to be stamped with this tick
_LOST_PAUSE = (300.0, 3600.0)  # seconds between fresh starts that may bring a lost GPU back
_LIBRARY_NOT_FOUND = 12
_WORK = ("gpu_util_ratio", "sm_active_ratio", "graphics_active_ratio")
_NOISE = 0.01  # of a counter over a window in which nothing ran


@dataclass(frozen=True)
class NvmlStatus:
    """How the driver and its devices are, for people and /metrics.

    `state` is off, starting, running, late, hung, unavailable or released. `absent[uuid][entry]` is the reason why an
    entry point gives nothing; `lost[uuid]` why a GPU is not read; `events` why Xids are not heard; `slowest` the
    function that took longest in the latest cycle, and its seconds.
    """

    state: str = "off"
    reason: str = ""
    pid: int | None = None
    driver: str = ""
    library: str = ""
    retry_in: float = 0.0
    starts: int = 0
    calls: int = 0
    cycle_seconds: float = 0.0
    slowest: tuple[str, float] = ("", 0.0)
    absent: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    events: str = ""


class NvmlCollector:
    """Samples every GPU and MIG instance of this node.

    `processes` are all that the driver lists; `activity` maps the devices that were read in the latest cycle to whether
    something uses them. `known`: devices of an earlier run, so that one that is missing now is noticed; `open_episode`: kind and code of a
    driver trouble already on record and not over, so that a restart does not record it again.
    """

    name = "nvml"

    def __init__(
        self,
        node: str,
        clock: Clock,
        interval: float = 1.0,
        library: str = "",
        root: Path = Path("/"),
        known: Iterable[Device] = (),
        open_episode: tuple[str, int] | None = None,
        start: Callable[[], Probe] | None = None,
        hang_after: float | None = None,
        start_after: float = START_AFTER,
    ) -> None:
        self._node = node
        self._clock = clock
        self._interval = interval
        self._root = root
        self._keeper = Keeper(
            start or (lambda: ProbeClient(library)),
            clock.monotonic,
            max(3 * interval, HANG_AFTER) if hang_after is None else hang_after,
            start_after,
            open_episode,
        )
        self._lock = threading.Lock()
        self._values = Values(node, interval)
        self._inventory = Inventory(node, known)
        self._fresh_start = FreshStart()
        self._released_until: float | None = None
        self._module = ""
        self._latest: Message = {}
        self._processes: dict[str, tuple[GpuProcess, ...]] = {}
        self.processes: tuple[GpuProcess, ...] = ()
        self.activity: dict[str, bool] = {}
        self.status = NvmlStatus()

    @property
    def rejected(self) -> Mapping[str, int]:
        """How many values of each metric contradicted another and were dropped."""
        return self._values.rejected

    def describes(self, uuid: str) -> bool:
        """Whether this device was seen here."""
        return uuid in self._inventory.devices

    def instance(self, uuid: str, number: int) -> str | None:
        """UUID of the MIG instance that has this number on this GPU."""
        return self._inventory.instances.get((uuid, number))

    def collect(self, now_ms: int) -> Iterator[Frame | Event | Device]:
        """One cycle; raises `NothingToCollect` while released or where there is no driver, `RuntimeError` in trouble."""
        with self._lock:
            found = list(self._cycle(now_ms))
            self.status = self._status()
        yield from found
        if not any(isinstance(one, Frame) for one in found):
            self._explain()

    def release(self, seconds: float) -> bool:
        """Let go of every device for so long; False when the probe is stuck in the driver. Any thread may call."""
        with self._lock:
            self._released_until = self._clock.monotonic() + seconds
            gone = self._keeper.release()
            self.processes = ()
            self.status = self._status()
            return gone

    def resume(self) -> None:
        """Take the driver up again before the time is over. Any thread may call."""
        with self._lock:
            self._released_until = None
            self._keeper.resume()

    def close(self) -> None:
        """End the probe."""
        with self._lock:
            self._keeper.close()

    def _cycle(self, now_ms: int) -> Iterator[Frame | Event | Device]:
        self._look_after()
        self.activity = {}
        starts = self._keeper.starts
        reply = self._keeper.exchange({"op": "sample", "interval": self._interval}, PATIENCE * self._interval)
        if self._keeper.starts != starts:
            self._values.clear()
        for incident in self._keeper.incidents():
            if not self._ordinary(incident.code):
                detail = {**incident.detail, "module": self._module_version()}
                yield Event(Source(self._node, NODE), now_ms, incident.kind, incident.code, 0, detail)
        if reply is not None:
            yield from self._take(reply, now_ms)
        elif self._keeper.state in ("unavailable", "released"):
            self.processes = ()

    def _take(self, reply: Message, now_ms: int) -> Iterator[Frame | Event | Device]:
        self._latest = {**self._latest, **reply}
        inventory = self._inventory
        if "inventory" in reply:
            yield from inventory.update(reply["inventory"], now_ms)
            self._values.keep(inventory.devices)
        yield from inventory.losses(reply["lost"], now_ms)
        yield from _events(self._node, reply["events"], now_ms)
        self._fresh_start.wanted(bool(inventory.missing), self._clock.monotonic())
        readings = reply["gpus"] if self._keeper.waited <= STALE * self._interval else ()
        for reading in readings:
            frame = self._values.frame(reading, now_ms, inventory.devices.get(reading["uuid"]))
            self._note_activity(reading, frame.values)
            if frame.values:
                yield frame
                yield from inventory.limited(reading["uuid"], frame.values.get("power_limit_watts"), now_ms)
        self._list_processes(reply["gpus"])

    def _note_activity(self, reading: Message, values: Mapping[str, float]) -> None:
        """Whether something uses a device; nothing is said of one that tells its processes or its work not at all."""
        work = [values[name] for name in _WORK if name in values]
        if reading["processes"] or any(one > _NOISE for one in work):
            self.activity[reading["uuid"]] = True
        elif reading["processes"] is not None and work:
            self.activity[reading["uuid"]] = False

    def _list_processes(self, readings: Iterable[Message]) -> None:
        """By device; one whose driver does not tell this time keeps its list, one with MIG instances repeats theirs."""
        known, sliced = self._processes, self._inventory.sliced()
        self._processes = {
            reading["uuid"]: tuple(
                GpuProcess(reading["uuid"], pid, used) for pid, used in reading["processes"]
            )
            if reading["processes"] is not None
            else known.get(reading["uuid"], ())
            for reading in readings
            if reading["uuid"] not in sliced
        }
        self.processes = tuple(one for those in self._processes.values() for one in those)

    def _look_after(self) -> None:
        """Resume, retry and start over when it is time to."""
        now = self._clock.monotonic()
        if self._released_until is not None and now >= self._released_until:
            self._released_until = None
            self._keeper.resume()
        if self._keeper.state == "running" and self._fresh_start.due(now):
            self._keeper.restart()
        if self._keeper.state == "unavailable":
            module = self._module_version()
            if module != self._module:
                self._keeper.retry_now()  # the kernel module was loaded or replaced
            self._module = module

    def _ordinary(self, code: int) -> bool:
        """A host that never had a GPU has no trouble with its driver."""
        without_gpus = not self._inventory.devices and not self._module_version()
        return code == _LIBRARY_NOT_FOUND and without_gpus

    def _explain(self) -> None:
        """Say why there is nothing: quietly where that is in order, as a failure otherwise."""
        state, reason = self._keeper.state, self._keeper.reason
        if state in ("released", "starting", "running") or self._ordinary(self._keeper.code):
            raise NothingToCollect(reason or message.Message("no GPU"))
        raise RuntimeError(
            message.Message("driver {state}: {reason}", state=message.Message(state), reason=reason)
        )

    def _module_version(self) -> str:
        """First line that the loaded kernel module says about itself, or nothing."""
        try:
            return (self._root / "proc/driver/nvidia/version").read_text().partition("\n")[0]
        except OSError:
            return ""

    def _status(self) -> NvmlStatus:
        keeper, latest = self._keeper, self._latest
        listed = latest.get("inventory", {})
        return NvmlStatus(
            keeper.state,
            keeper.reason,
            keeper.pid,
            listed.get("driver", ""),
            listed.get("library", ""),
            keeper.retry_in,
            keeper.starts,
            latest.get("calls", 0),
            latest.get("seconds", 0.0),
            tuple(latest.get("slowest", ("", 0.0))),
            latest.get("absent", {}),
            self._inventory.missing,
            listed.get("events", ""),
        )


class FreshStart:
    """When to start a new probe because a lost GPU may be back: a process sees that only after initialising anew."""

    def __init__(self) -> None:
        self._pause = Pause(*_LOST_PAUSE)
        self._at: float | None = None

    def wanted(self, lost: bool, now: float) -> None:
        """Plan one while a GPU is lost, forget it otherwise."""
        if not lost:
            self._pause, self._at = Pause(*_LOST_PAUSE), None
        elif self._at is None:
            self._at = now + self._pause.next()

    def due(self, now: float) -> bool:
        """Whether it is time; the next one is then planned by `wanted`."""
        if self._at is None or now < self._at:
            return False
        self._at = None
        return True


def _events(node: str, told: Iterable[Message], now_ms: int) -> Iterator[Event]:
    """Events of the driver; equal ones of one cycle are kept apart."""
    seen: Counter[tuple[str, str, int]] = Counter()
    for one in told:
        device = one["uuid"] or NODE
        key = (device, one["kind"], one["code"])
        detail = {"known_from": "nvml"} | (
            {"gpu_instance": one["gpu_instance"]} if "gpu_instance" in one else {}
        )
        yield Event(Source(node, device), now_ms, one["kind"], one["code"], seen[key], detail)
        seen[key] += 1
