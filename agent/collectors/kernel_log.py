"""Events of the kernel log, each exactly once in the store, across restarts of the agent and of the machine.

What was read is remembered by boot id and sequence (or by journald's cursor). The place trails by a minute: after
a crash the last minute is read again, with the very times it had before, and the store ignores what it has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpudiag.agent.attribution.identity import identify_path
from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.collectors.journal import JournalReader
from gpudiag.agent.collectors.kmsg import KernelRecord, KmsgReader, Overrun
from gpudiag.agent.kernel_lines import KernelFact, KernelLines
from gpudiag.agent.pci_map import PciMap, read_json, write_json
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import NODE, Source

log = logging.getLogger(__name__)
STATE_FILE, PCI_FILE = "kernel-log.json", "pci-map.json"
HOLD_SECONDS = 60.0  # how far the saved place trails behind
SAVE_SECONDS = 60.0
RETRY_SECONDS = 300.0
RECORDS_PER_TICK = 5000
LIVE_SLACK_MS = (
    5000  # the kernel's clock may have drifted so far before a fresh line gets the time of its reading
)
EPISODE_MS = 60_000
_COLLAPSED = ("xid", "sxid", "gsp_error", "gpu_init_failed", "driver_mismatch")


@dataclass
class Episode:
    """Equal reports within a minute: the first is an event, the others are counted."""

    start_ms: int
    last_ms: int
    order: int
    repeats: int = 0


@dataclass(frozen=True)
class Reached:
    """A point of the log that was read: `order` counts what we read since we opened it."""

    at: float
    order: int
    sequence: int
    cursor: str


@dataclass
class Place:
    """How far the log was read, as it is saved. `times` are those given to events after this place."""

    boot_id: str = ""
    sequence: int = -1
    cursor: str = ""
    anchor_ms: float | None = None
    times: dict[int, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> Place:
        body: dict[str, Any] = read_json(path)
        try:
            return cls(
                str(body["boot_id"]),
                int(body["sequence"]),
                str(body["cursor"]),
                None if body["anchor_ms"] is None else float(body["anchor_ms"]),
                {int(key): int(value) for key, value in body["times"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


class KernelLogCollector:
    """Events `xid sxid fallen_off_bus gsp_error gpu_init_failed driver_mismatch oom_kill gpu_library_crash`.

    Also `xid_repeats` with the count of further equal ones within a minute, and `kernel_log_overrun`.
    `state_dir` None keeps nothing across restarts.
    """

    name = "kernel_log"

    def __init__(
        self,
        root: HostRoot,
        node: str,
        clock: Clock,
        state_dir: Path | None = None,
        *,
        open_kmsg: Callable[[str], KmsgReader] = KmsgReader,
        open_journal: Callable[[str], JournalReader] = JournalReader,
    ) -> None:
        self._root, self._node, self._clock = root, node, clock
        self._open_kmsg, self._open_journal = open_kmsg, open_journal
        self._state = None if state_dir is None else state_dir / STATE_FILE
        self.pci = PciMap(None if state_dir is None else state_dir / PCI_FILE)
        self._place = Place.load(self._state)
        self._lines = KernelLines()
        self._reader: KmsgReader | JournalReader | None = None
        self._why_not = ""
        self._retry_at = self._save_at = float("-inf")
        self._reached: deque[Reached] = deque()
        self._newest = Reached(0.0, 0, -1, "")
        self._backlog = True
        self._ordinals: dict[tuple[Source, int, str, int], int] = {}
        self._episodes: dict[str, Episode] = {}

    def learn_devices(self, devices: Iterable[Device]) -> None:
        """Remember where these GPUs are while it is known."""
        self.pci.learn_devices(devices)

    def collect(self, now_ms: int) -> Iterable[Event]:
        reader = self._reader or self._open()
        known = len(self._place.times)
        events = [event for fact in self._read(reader, now_ms) for event in self._events(fact)]
        events += [event for fact in self._lines.settle(now_ms) for event in self._events(fact)]
        events += self._closed_episodes(now_ms)
        self.pci.learn(self._lines.learned)
        self._ordinals = {
            key: count for key, count in self._ordinals.items() if now_ms - key[1] < 2 * EPISODE_MS
        }
        self._advance(must_save=len(self._place.times) != known)
        if isinstance(reader, JournalReader) and reader.ended:
            self.close()
            self._fail("journalctl ended: the journal may not be read (group systemd-journal or adm)")
        return events

    def close(self) -> None:
        """Let go of the log, and save the place."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._save()

    # -- reading -----------------------------------------------------------------------------------------------

    def _open(self) -> KmsgReader | JournalReader:
        now = self._clock.monotonic()
        if now < self._retry_at:
            raise NothingToCollect(self._why_not)
        boot_id = (self._root.read_if_there("proc/sys/kernel/random/boot_id") or "").strip()
        if boot_id != self._place.boot_id:
            self._place = Place(boot_id, cursor=self._place.cursor)
        if self._place.anchor_ms is None:
            self._place.anchor_ms = self._clock.now_ms() - now * 1000
        self._backlog = True
        self.pci.learn_from_driver(self._root)
        try:
            self._reader = self._open_kmsg(self._root.path("dev/kmsg"))
        except OSError as error:
            self._reader = self._fall_back(error)
        return self._reader

    def _fall_back(self, reason: OSError) -> JournalReader:
        try:
            return self._open_journal(self._place.cursor)
        except OSError as error:
            self._fail(f"/dev/kmsg: {reason.strerror}; journalctl: {error.strerror}")
            raise NothingToCollect(self._why_not) from None

    def _fail(self, why: str) -> None:
        self._why_not = why
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS

    def _read(self, reader: KmsgReader | JournalReader, now_ms: int) -> Iterator[KernelFact]:
        if isinstance(reader, JournalReader):
            for entry in reader.records(RECORDS_PER_TICK):
                self._reach(-1, entry.cursor)
                yield from self._lines.feed(entry.text, entry.time_ms)
            return
        count = 0
        for record in reader.records(RECORDS_PER_TICK):
            count += 1
            if isinstance(record, Overrun):
                yield KernelFact("kernel_log_overrun", now_ms)
            elif record.sequence > self._place.sequence:
                self._reach(record.sequence, "")
                yield from self._lines.feed(record.text, self._time_of(record, now_ms))
        self._backlog = self._backlog and count == RECORDS_PER_TICK

    def _reach(self, sequence: int, cursor: str) -> None:
        self._newest = Reached(self._clock.monotonic(), self._newest.order + 1, sequence, cursor)

    def _time_of(self, record: KernelRecord, now_ms: int) -> int:
        """When the line was written. A time once given stays; the kernel's clock drifts and is corrected by fresh lines."""
        known = self._place.times.get(record.sequence)
        if known is not None:
            return known
        assert self._place.anchor_ms is not None
        time_ms = round(self._place.anchor_ms + record.seconds * 1000)
        if not self._backlog and abs(now_ms - time_ms) > LIVE_SLACK_MS:
            self._place.anchor_ms += now_ms - time_ms
            return now_ms
        return min(time_ms, now_ms)

    # -- events ------------------------------------------------------------------------------------------------

    def _events(self, fact: KernelFact) -> Iterator[Event]:
        if fact.kind in _COLLAPSED:
            key = f"{fact.kind}/{fact.code}/{fact.bdf}"
            episode = self._episodes.get(key)
            if episode is not None and fact.time_ms - episode.start_ms < EPISODE_MS:
                episode.repeats += 1
                episode.last_ms = max(episode.last_ms, fact.time_ms)
                return
            if episode is not None:
                yield from self._repeats(key, episode)
            self._episodes[key] = Episode(fact.time_ms, fact.time_ms, self._newest.order)
        if self._newest.sequence >= 0:
            self._place.times[self._newest.sequence] = fact.time_ms
        yield self._event(fact)

    def _event(self, fact: KernelFact) -> Event:
        detail = {**fact.detail, "known_from": "kernel_log"}
        if fact.bdf:
            detail["pci_bus_id"] = fact.bdf
        if fact.kind == "oom_kill":
            detail.update(_job_of(str(fact.detail.get("cgroup", ""))))
        source = self._source(fact)
        key = (source, fact.time_ms, fact.kind, fact.code)
        ordinal = self._ordinals.get(key, 0)
        self._ordinals[key] = ordinal + 1
        return Event(source, fact.time_ms, fact.kind, fact.code, ordinal, detail)

    def _source(self, fact: KernelFact) -> Source:
        uuid = self.pci.uuid(fact.bdf) if fact.bdf and fact.kind != "sxid" else None
        return Source(self._node, uuid or NODE)

    def _closed_episodes(self, now_ms: int) -> list[Event]:
        closed = [key for key, one in self._episodes.items() if now_ms - one.start_ms >= EPISODE_MS]
        return [event for key in closed for event in self._repeats(key, self._episodes.pop(key))]

    def _repeats(self, key: str, episode: Episode) -> Iterator[Event]:
        kind, code, bdf = key.split("/")
        if episode.repeats:
            fact = KernelFact(
                f"{kind}_repeats",
                episode.last_ms,
                int(code),
                bdf,
                {"count": episode.repeats, "since_ms": episode.start_ms},
            )
            yield self._event(fact)

    # -- the place ---------------------------------------------------------------------------------------------

    def _advance(self, must_save: bool) -> None:
        """Move the saved place on, but never into a minute that is still being counted."""
        now = self._clock.monotonic()
        if self._newest.order and (not self._reached or self._reached[-1].order != self._newest.order):
            self._reached.append(self._newest)
        open_since = min((one.order for one in self._episodes.values()), default=self._newest.order + 1)
        passed = None
        while (
            self._reached
            and now - self._reached[0].at >= HOLD_SECONDS
            and self._reached[0].order < open_since
        ):
            passed = self._reached.popleft()
        if passed is not None:
            self._place.sequence, self._place.cursor = passed.sequence, passed.cursor
            times = self._place.times
            self._place.times = {
                sequence: times[sequence] for sequence in times if sequence > passed.sequence
            }
        if must_save or now >= self._save_at:
            self._save()

    def _save(self) -> None:
        self._save_at = self._clock.monotonic() + SAVE_SECONDS
        if self._state is not None:
            write_json(self._state, asdict(self._place))


def _job_of(cgroup: str) -> dict[str, str]:
    found = identify_path(cgroup)
    return {} if found is None else {"job": found[0].id, "job_kind": found[0].kind}
