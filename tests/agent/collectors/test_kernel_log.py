"""The kernel log as events: from its device or from journald, each exactly once across restarts and crashes."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_host import FakeHost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.collectors.journal import JournalReader, JournalRecord, parse_entry
from gpudiag.agent.collectors.kernel_log import RETRY_SECONDS, STATE_FILE, KernelLogCollector
from gpudiag.agent.collectors.kmsg import KernelRecord, KmsgReader, parse_record
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import NODE, Source

XID = "NVRM: Xid (PCI:0000:9b:00): {}, pid=7, name=python, text"
GPU = Source("n1", "GPU-509665ad")
Key = tuple[Source, int, str, int, int]


@dataclass
class Kernel:
    """The log device of one boot: a ring of records that every opener reads from its start."""

    clock: ManualClock
    records: list[bytes] = field(default_factory=list)
    oldest: int = 0

    def say(self, text: str, seconds: float | None = None) -> None:
        at = self.clock.monotonic() if seconds is None else seconds
        escaped = text.replace("\n", "\\x0a")
        self.records.append(f"4,{len(self.records)},{round(at * 1e6)},-;{escaped}\n SUBSYSTEM=pci\n".encode())

    def open(self, path: str) -> KmsgReader:
        position = [self.oldest]

        def read(descriptor: int, size: int) -> bytes:
            if position[0] < self.oldest:
                position[0] = self.oldest
                raise BrokenPipeError
            if position[0] == len(self.records):
                raise BlockingIOError
            position[0] += 1
            return self.records[position[0] - 1][:size]

        return KmsgReader(os.devnull, read)


@dataclass
class Agent:
    """Collectors one after the other on one machine, and a store that ignores what it has."""

    host: FakeHost
    kernel: Kernel
    stored: dict[Key, Event] = field(default_factory=dict)
    repeated: int = 0
    collector: KernelLogCollector | None = None

    @property
    def state(self) -> Path:
        return self.host.base / "state"

    def start(self) -> None:
        self.state.mkdir(exist_ok=True)
        self.collector = KernelLogCollector(
            self.host.root, "n1", self.host.clock, self.state, open_kmsg=self.kernel.open
        )

    def tick(self, seconds: float = 1.0, store: bool = True) -> list[Event]:
        """One reading; `store` False is a crash before the events were written."""
        assert self.collector is not None
        self.host.clock.sleep(seconds)
        events = list(self.collector.collect(self.host.clock.now_ms()))
        for event in events if store else []:
            key = (event.source, event.time_ms, event.kind, event.code, event.ordinal)
            self.repeated += key in self.stored
            self.stored[key] = event
        return events

    def kinds(self) -> list[str]:
        return [event.kind for event in sorted(self.stored.values(), key=lambda one: one.time_ms)]


@pytest.fixture
def agent(host: FakeHost) -> Agent:
    host.write("proc/sys/kernel/random/boot_id", "boot-1\n")
    host.write(
        "proc/driver/nvidia/gpus/0000:9b:00.0/information",
        "Model: \t H100\nGPU UUID: \t GPU-509665ad\nDevice Minor: 0\n",
    )
    made = Agent(host, Kernel(host.clock))
    made.start()
    return made


def test_a_record_of_the_device_is_read() -> None:
    record = parse_record(b"6,339,5140900,-;NET: Registered\\x0aprotocol\n SUBSYSTEM=x\n")
    assert record == KernelRecord(339, 5.1409, "NET: Registered\nprotocol")


def test_a_record_may_have_further_fields_before_its_text() -> None:
    assert parse_record(b"6,1,2,-,caller=T1;text;more\n") == KernelRecord(1, 2e-6, "text;more")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    parse_record(data)
    parse_entry(data)


def test_an_xid_becomes_an_event_of_its_gpu(agent: Agent) -> None:
    agent.kernel.say(XID.format(79))
    written_ms = agent.host.clock.now_ms()
    [event] = agent.tick()
    assert (event.source, event.kind, event.code, event.time_ms) == (GPU, "xid", 79, written_ms)
    assert event.detail["pci_bus_id"] == "0000:9b:00"
    assert event.detail["pid"] == 7


def test_lines_from_before_the_start_keep_their_own_time(agent: Agent) -> None:
    agent.kernel.say(XID.format(48), seconds=agent.host.clock.monotonic() - 1000)
    [event] = agent.tick()
    assert agent.host.clock.now_ms() - event.time_ms == 1001 * 1000


def test_an_unknown_address_is_an_event_of_the_node(agent: Agent) -> None:
    agent.kernel.say(XID.format(79).replace("9b", "aa"))
    [event] = agent.tick()
    assert event.source == Source("n1", NODE)
    assert event.detail["pci_bus_id"] == "0000:aa:00"


def test_the_address_of_a_gpu_is_known_after_it_is_gone(agent: Agent) -> None:
    assert agent.collector is not None
    agent.collector.learn_devices([Device(Source("n1", "GPU-7"), 0, pci_bus_id="00000000:AA:00.0")])
    agent.tick()
    agent.host.remove("proc/driver")
    agent.start()
    agent.kernel.say(XID.format(79).replace("9b", "aa"))
    agent.kernel.say(XID.format(79))
    assert [event.source.device for event in agent.tick()] == ["GPU-7", "GPU-509665ad"]


def test_nothing_new_is_no_event(agent: Agent) -> None:
    agent.kernel.say(XID.format(79))
    assert len(agent.tick()) == 1
    assert agent.tick() == []


def test_equal_lines_within_a_minute_are_one_event_and_a_count(agent: Agent) -> None:
    for _ in range(17):
        agent.kernel.say(XID.format(13))
    assert len(agent.tick()) == 1
    agent.kernel.say(XID.format(13))
    assert agent.tick() == []
    [repeats] = agent.tick(seconds=60)
    assert (repeats.kind, repeats.code, repeats.detail["count"]) == ("xid_repeats", 13, 17)
    agent.kernel.say(XID.format(13))
    assert [event.kind for event in agent.tick()] == ["xid"]


def test_a_restart_reads_nothing_twice(agent: Agent) -> None:
    agent.kernel.say(XID.format(48))
    agent.tick()
    for _ in range(200):
        agent.tick()
    agent.start()
    agent.kernel.say(XID.format(79))
    assert [event.code for event in agent.tick()] == [79]


def test_a_crash_before_the_store_wrote_loses_nothing(agent: Agent) -> None:
    agent.kernel.say(XID.format(79))
    agent.tick(store=False)
    agent.start()
    agent.tick(seconds=3)
    assert agent.kinds() == ["xid"]


def test_a_crash_after_the_store_wrote_stores_nothing_twice(agent: Agent) -> None:
    agent.kernel.say(XID.format(79))
    agent.tick()
    agent.host.clock.step(0.25)  # the wall clock is set, the boot is the same
    agent.start()
    agent.tick(seconds=3)
    assert (agent.kinds(), agent.repeated) == (["xid"], 1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_happens_when_each_xid_is_stored_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Random lines, ticks, restarts and crashes; distinct Xids so that none is a repetition."""
    host = FakeHost(tmp_path_factory.mktemp("host"), ManualClock(1_767_225_600_000))
    host.write("proc/sys/kernel/random/boot_id", "boot-1\n")
    agent = Agent(host, Kernel(host.clock))
    agent.start()
    said = 0
    steps = st.sampled_from(["say", "say", "tick", "tick", "crash", "restart", "long"])
    for step in data.draw(st.lists(steps, max_size=40)):
        if step == "say":
            said += 1
            agent.kernel.say(XID.format(1000 + said))
        elif step == "tick":
            agent.tick(seconds=data.draw(st.sampled_from([0.5, 1.0, 7.0])))
        elif step == "long":
            agent.tick()
            agent.tick(seconds=70)
        elif step == "crash":
            agent.tick(store=False)
            agent.start()
        else:
            agent.start()
    agent.tick()
    codes = sorted(event.code for event in agent.stored.values() if event.kind == "xid")
    assert codes == [1001 + number for number in range(said)]


def test_a_reboot_starts_anew(agent: Agent) -> None:
    for _ in range(5):
        agent.kernel.say(XID.format(48))
    agent.tick()
    agent.tick(seconds=70)
    agent.host.write("proc/sys/kernel/random/boot_id", "boot-2\n")
    agent.kernel = Kernel(agent.host.clock)
    agent.start()
    agent.kernel.say(XID.format(79))
    assert [event.code for event in agent.tick()] == [79]


def test_records_that_were_overwritten_are_an_event_not_a_silence(agent: Agent) -> None:
    agent.kernel.say("usb 1-1: new device")
    agent.tick()
    for _ in range(10):
        agent.kernel.say("usb 1-1: new device")
    agent.kernel.oldest = 9
    agent.kernel.say(XID.format(79))
    assert [event.kind for event in agent.tick()] == ["kernel_log_overrun", "xid"]


def test_a_kernel_clock_that_has_drifted_does_not_date_events_wrongly(agent: Agent) -> None:
    agent.tick()
    agent.kernel.say(XID.format(48), seconds=agent.host.clock.monotonic() - 86)
    [event] = agent.tick()
    assert event.time_ms == agent.host.clock.now_ms()
    agent.kernel.say(XID.format(79), seconds=agent.host.clock.monotonic() - 86)
    [event] = agent.tick()
    assert abs(event.time_ms - agent.host.clock.now_ms()) <= 1000


def test_an_oom_kill_names_its_job(agent: Agent) -> None:
    agent.kernel.say(
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/system.slice/slurmstepd.scope/job_42,"
        "task_memcg=/system.slice/slurmstepd.scope/job_42/step_0,task=python,pid=9,uid=0"
    )
    agent.kernel.say("Memory cgroup out of memory: Killed process 9 (python) total-vm:1kB, anon-rss:1kB")
    [event] = agent.tick()
    assert (event.source, event.kind) == (Source("n1", NODE), "oom_kill")
    assert (event.detail["job"], event.detail["process"]) == ("42", "python")


def test_kills_of_one_millisecond_are_told_apart(agent: Agent) -> None:
    for pid in (7, 8):
        agent.kernel.say(f"Out of memory: Killed process {pid} (python) total-vm:1kB")
    assert [event.ordinal for event in agent.tick()] == [0, 1]


def test_a_flood_is_read_in_pieces(agent: Agent) -> None:
    for _ in range(12_000):
        agent.kernel.say("noise")
    agent.kernel.say(XID.format(79))
    assert [len(agent.tick()) for _ in range(3)] == [0, 0, 1]


def test_a_damaged_state_file_is_as_good_as_none(agent: Agent) -> None:
    agent.kernel.say(XID.format(79))
    agent.tick()
    (agent.state / STATE_FILE).write_text('{"boot_id": 3')
    agent.start()
    assert len(agent.tick()) == 1


def test_a_state_directory_that_cannot_be_written_does_not_stop_the_events(host: FakeHost) -> None:
    kernel = Kernel(host.clock)
    collector = KernelLogCollector(host.root, "n1", host.clock, host.base / "missing", open_kmsg=kernel.open)
    kernel.say(XID.format(79))
    assert len(list(collector.collect(host.clock.now_ms()))) == 1


# -- journald ------------------------------------------------------------------------------------------------------

JOURNALCTL = """#!{python}
import json, sys, time
entries = json.load(open({entries!r}))
after = [one.partition("=")[2] for one in sys.argv if one.startswith("--after-cursor=")]
assert "_TRANSPORT=kernel" in sys.argv and "--output=json" in sys.argv
if after:
    entries = [one for one in entries if int(one["__CURSOR"]) > int(after[0])]
for one in entries:
    print(json.dumps(one), flush=True)
time.sleep({lasts})
"""


def refused(path: str) -> KmsgReader:
    raise PermissionError(1, "Operation not permitted")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Callable[..., Callable[[str], JournalReader]]]:
    """Makes a journalctl with entries; what it starts is ended."""
    opened: list[JournalReader] = []

    def make(*entries: dict[str, object], lasts: float = 60) -> Callable[[str], JournalReader]:
        (tmp_path / "entries.json").write_text(json.dumps(entries))
        program = tmp_path / "journalctl"
        program.write_text(
            JOURNALCTL.format(python=sys.executable, entries=str(tmp_path / "entries.json"), lasts=lasts)
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

        def open_journal(cursor: str) -> JournalReader:
            opened.append(JournalReader(cursor, str(program)))
            return opened[-1]

        return open_journal

    yield make
    for reader in opened:
        reader.close()


def entry(cursor: int, message: object) -> dict[str, object]:
    return {
        "__CURSOR": str(cursor),
        "__REALTIME_TIMESTAMP": str(1_767_225_000_000_000 + cursor),
        "MESSAGE": message,
    }


def read_until_event(collector: KernelLogCollector, clock: ManualClock) -> list[Event]:
    for _ in range(200):
        events = list(collector.collect(clock.now_ms()))
        if events:
            return events
        time.sleep(0.05)
    return []


def test_the_journal_is_read_where_the_device_may_not_be(
    host: FakeHost, journal: Callable[..., Callable[[str], JournalReader]]
) -> None:
    opener = journal(entry(1, "noise"), entry(2, XID.format(79)))
    collector = KernelLogCollector(
        host.root, "n1", host.clock, host.base, open_kmsg=refused, open_journal=opener
    )
    [event] = read_until_event(collector, host.clock)
    assert (event.kind, event.code, event.time_ms) == ("xid", 79, 1_767_225_000_000)
    collector.close()


def test_the_journal_is_taken_up_after_its_cursor(
    host: FakeHost, journal: Callable[..., Callable[[str], JournalReader]]
) -> None:
    host.write("proc/sys/kernel/random/boot_id", "boot-1\n")

    def start(opener: Callable[[str], JournalReader]) -> KernelLogCollector:
        return KernelLogCollector(
            host.root, "n1", host.clock, host.base, open_kmsg=refused, open_journal=opener
        )

    first = start(journal(entry(1, XID.format(48))))
    assert len(read_until_event(first, host.clock)) == 1
    for _ in range(2):
        host.clock.sleep(61)
        list(first.collect(host.clock.now_ms()))
    first.close()
    second = start(journal(entry(1, XID.format(48)), entry(2, XID.format(79))))
    assert [event.code for event in read_until_event(second, host.clock)] == [79]
    second.close()


def test_a_journal_that_may_not_be_read_is_asked_again_later(
    host: FakeHost, journal: Callable[..., Callable[[str], JournalReader]]
) -> None:
    collector = KernelLogCollector(
        host.root, "n1", host.clock, host.base, open_kmsg=refused, open_journal=journal(lasts=0)
    )
    with pytest.raises(NothingToCollect, match="systemd-journal"):
        read_until_event(collector, host.clock)
    host.clock.sleep(RETRY_SECONDS)
    list(collector.collect(host.clock.now_ms()))
    collector.close()


def test_a_host_with_neither_says_why(host: FakeHost) -> None:
    def missing(cursor: str) -> JournalReader:
        raise FileNotFoundError(2, "No such file or directory")

    collector = KernelLogCollector(host.root, "n1", host.clock, None, open_kmsg=refused, open_journal=missing)
    with pytest.raises(
        NothingToCollect, match=r"/dev/kmsg: Operation not permitted; journalctl: No such file"
    ):
        list(collector.collect(host.clock.now_ms()))


def test_messages_that_are_no_text_come_as_numbers() -> None:
    record = parse_entry(json.dumps(entry(1, [104, 105, 255])).encode())
    assert record == JournalRecord("1", 1_767_225_000_000, "hi\ufffd")


def test_this_machines_own_log_can_be_read_or_says_why_not(tmp_path: Path) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000, time.monotonic())
    collector = KernelLogCollector(HostRoot("/"), "here", clock, tmp_path)
    try:
        events = list(collector.collect(clock.now_ms()))
    except NothingToCollect as reason:
        pytest.skip(str(reason))
    assert all(event.source.node == "here" for event in events)
    collector.close()
