"""The real agent process: systemd's protocol on a real socket, signals, reload, release, a database taken away."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_process import AgentProcess
from fake_nvml.control import FakeNvml

from gpudiag.storage.open import open_reader
from gpudiag.storage.sample import Source

Start = Callable[..., AgentProcess]
pytestmark = pytest.mark.integration


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket systemd would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


def heard(manager: socket.socket, last: bytes) -> list[bytes]:
    """First lines of the messages up to and including `last`."""
    messages: list[bytes] = []
    while not messages or messages[-1] != last:
        messages.append(manager.recv(512).split(b"\n")[0])
    return messages


def node_times(agent: AgentProcess) -> list[int]:
    reader = open_reader(agent.url)
    try:
        block = reader.read(Source("node-a", "node"), 0, 1 << 50, ["cpus"])
        return [int(time_ms) for time_ms in block.times_ms]
    finally:
        reader.close()


def test_ready_watchdog_reload_stopping_as_systemd_hears_them(
    start_agent: Start, manager: socket.socket
) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "2000000"}
    agent = start_agent(environ, sources__nvml="false")
    assert heard(manager, b"WATCHDOG=1") == [b"READY=1", b"WATCHDOG=1"]
    os.kill(agent.pid, signal.SIGHUP)
    assert heard(manager, b"READY=1")[-2] == b"RELOADING=1"
    assert agent.stop() == 0
    assert heard(manager, b"STOPPING=1")[-1] == b"STOPPING=1"


def test_a_frozen_agent_does_not_ping(start_agent: Start, manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1000000"}
    agent = start_agent(environ, sources__nvml="false")
    heard(manager, b"WATCHDOG=1")
    os.kill(agent.pid, signal.SIGSTOP)
    manager.setblocking(False)
    while True:
        try:
            manager.recv(512)
        except BlockingIOError:
            break
    time.sleep(2)
    with pytest.raises(BlockingIOError):
        manager.recv(512)
    os.kill(agent.pid, signal.SIGCONT)
    manager.settimeout(60)
    heard(manager, b"WATCHDOG=1")


def test_termination_writes_every_sample_that_was_taken(start_agent: Start) -> None:
    agent = start_agent(sources__nvml="false", agent__interval="200ms")
    agent.wait_for_ticks(12)
    seen = agent.value("gpudiag_last_tick_timestamp_seconds")
    assert agent.stop() == 0
    times = node_times(agent)
    assert len(times) >= 12
    assert times[-1] >= seen * 1000 - 1
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert all(gap >= 150 for gap in gaps)


def test_only_one_agent_writes_to_a_database(start_agent: Start, tmp_path: Path) -> None:
    first = start_agent(sources__nvml="false")
    first.wait_for_ticks(1)
    second = start_agent(name="second", storage__url=first.url, sources__nvml="false")
    assert second.process.wait(timeout=60) == 5
    assert re.search(r"belongs to another agent \(pid \d+\)", second.log.read_text())
    assert "Traceback" not in second.log.read_text()


def test_a_bad_reload_keeps_rules_and_sampling(start_agent: Start, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    agent = start_agent(sources__nvml="false", rules__paths=str(rules))
    agent.wait_for_ticks(1)
    (rules / "bad.yaml").write_text("gpudiag: 1\nrules:\n  - idd: x\n")
    os.kill(agent.pid, signal.SIGHUP)
    agent.wait_for(lambda: "reload refused" in agent.log.read_text())
    agent.wait_for_ticks(2)
    assert re.search(r"bad\.yaml:3:\d+: ", agent.log.read_text())
    (rules / "bad.yaml").unlink()
    os.kill(agent.pid, signal.SIGHUP)
    agent.wait_for(lambda: "configuration and rules reloaded" in agent.log.read_text())
    assert agent.stop() == 0


def probe_of(agent: AgentProcess) -> int:
    """Pid of the child that talks to the driver."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    (probe,) = [
        pid for pid in children if b"gpudiag.agent.probe" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return int(probe)


def test_release_lets_go_of_every_handle_and_takes_up_again(start_agent: Start, fake_nvml: FakeNvml) -> None:
    agent = start_agent(fake_nvml.environ)
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    probe = probe_of(agent)
    done = agent.command("agent", "release", "--for", "1h")
    assert (done.returncode, done.stderr) == (0, "")
    agent.wait_for(lambda: not Path(f"/proc/{probe}").exists())
    agent.wait_for(lambda: not agent.values("gpudiag_gpu_power_watts"))
    assert agent.values("gpudiag_driver_state")[("state", "released"),] == 1
    assert agent.command("agent", "release", "--resume").returncode == 0
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    mode = stat.S_IMODE((agent.runtime_dir / "control.sock").stat().st_mode)
    assert mode == 0o600


def test_a_wedged_driver_stops_neither_sampling_nor_the_watchdog(
    start_agent: Start, fake_nvml: FakeNvml, manager: socket.socket
) -> None:
    environ = {**fake_nvml.environ, "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "4000000"}
    agent = start_agent(environ)
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    fake_nvml.fail(None, "*", "hang")
    agent.wait_for(lambda: not agent.values("gpudiag_gpu_power_watts"))
    from_ms = time.time_ns() // 1_000_000
    agent.wait_for_ticks(8)
    assert agent.values("gpudiag_driver_state")[("state", "running"),] == 0
    assert agent.get("/healthz")[0] == 200
    heard(manager, b"WATCHDOG=1")
    fake_nvml.heal(None)
    assert agent.stop() == 0
    times = [time_ms for time_ms in node_times(agent) if time_ms >= from_ms]
    assert max(after - before for before, after in itertools.pairwise(times)) <= 2100


def test_release_without_an_agent_is_exit_code_5(tmp_path: Path, start_agent: Start) -> None:
    agent = start_agent(sources__nvml="false")
    agent.wait_for_ticks(1)
    refused = agent.command("agent", "release")
    assert (refused.returncode, "this agent does not read NVML" in refused.stderr) == (1, True)
    agent.stop()
    gone = agent.command("agent", "release")
    assert gone.returncode == 5
    assert "no agent answers at" in gone.stderr
    assert agent.command("agent", "release", "--for", "soon").returncode == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(folder).free == 0
    return filler


def test_a_full_disk_stops_neither_sampling_nor_metrics_and_loses_nothing(
    small_disk: Path, start_agent: Start
) -> None:
    url = f"sqlite:///{small_disk}/agent.db"
    agent = start_agent(
        storage__url=url, sources__nvml="false", agent__interval="100ms", agent__flush="500ms"
    )
    agent.url = url
    agent.wait_for_ticks(5)
    filler = fill(small_disk)
    agent.wait_for(lambda: agent.value("gpudiag_store_up") == 0)
    agent.wait_for_ticks(20)
    assert agent.value("gpudiag_store_waiting_frames") >= 20
    assert agent.values("gpudiag_node_cpus")
    assert (agent.get("/readyz")[0], agent.get("/healthz")[0]) == (503, 200)
    filler.unlink()
    agent.wait_for(lambda: agent.value("gpudiag_store_up") == 1)
    assert agent.value("gpudiag_store_dropped_frames_total") == 0
    assert agent.stop() == 0
    times = node_times(agent)
    assert max(after - before for before, after in itertools.pairwise(times)) < 1000
    reader = open_reader(url)
    kinds = [event.kind for event in reader.events(0, 1 << 50)]
    reader.close()
    assert kinds == ["store_failed", "store_recovered"]
