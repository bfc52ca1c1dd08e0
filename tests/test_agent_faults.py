"""The real agent on the fake driver while its machine misbehaves: killed, its database taken away, Postgres gone."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from agent_process import AgentProcess, series
from fake_nvml.control import FakeNvml
from postgres import Cluster

from gpudiag.storage.job import Event
from gpudiag.storage.open import open_reader
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.upgrade import upgrade

Start = Callable[..., AgentProcess]
pytestmark = pytest.mark.integration

KILLS = int(os.environ.get("GPUDIAG_AGENT_KILLS", "5"))
END_MS = 1 << 50
RULES_WORK = (("collector", "rules"),)
PASSWORD = "correct-horse-staple"


def database_of(agent: AgentProcess) -> Path:
    return Path(agent.url.removeprefix("sqlite:///"))


def times(url: str, source: Source, metric: str) -> list[int]:
    with closing(open_reader(url)) as reader:
        return [int(time_ms) for time_ms in reader.read(source, 0, END_MS, [metric]).times_ms]


def events(url: str) -> list[Event]:
    with closing(open_reader(url)) as reader:
        return list(reader.events(0, END_MS))


def first_gpu(url: str) -> Source:
    with closing(open_reader(url)) as reader:
        return next(source for source in reader.sources(0, END_MS) if source.device.startswith("GPU-"))


def children(agent: AgentProcess) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def acknowledged_until_killed(agent: AgentProcess, seconds: float) -> set[int]:
    """Times of the ticks that /metrics named and later called flushed, until a kill -9 after so long."""
    seen: set[int] = set()
    safe: set[int] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = agent.metrics()
        flushed = next(iter(series(text, "gpudiag_store_last_flush_timestamp_seconds").values()), 0.0)
        tick = next(iter(series(text, "gpudiag_last_tick_timestamp_seconds").values()), 0.0)
        seen.add(round(tick * 1000))
        safe |= {time_ms for time_ms in seen if 0 < time_ms <= round(flushed * 1000)}
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait(timeout=60)
    return safe


def test_kill_9_at_random_moments_loses_and_doubles_nothing(start_agent: Start, fake_nvml: FakeNvml) -> None:
    rng = random.Random()
    acknowledged: set[int] = set()
    probes: list[int] = []
    for kill in range(KILLS):
        agent = start_agent(fake_nvml.environ, agent__interval="100ms", agent__flush="300ms")
        if kill % 3 == 2:  # also while it starts
            time.sleep(rng.uniform(0, 1.5))
            probes += children(agent)
            os.kill(agent.pid, signal.SIGKILL)
            agent.process.wait(timeout=60)
            continue
        agent.wait_for_ticks(1)
        probes += children(agent)
        acknowledged |= acknowledged_until_killed(agent, rng.uniform(0.3, 1.5))
    agent = start_agent(fake_nvml.environ, agent__interval="100ms", agent__flush="300ms")
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    assert agent.stop() == 0

    with closing(sqlite3.connect(database_of(agent))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ticks = times(agent.url, Source("node-a", NODE), "cpus")
    assert len(ticks) == len(set(ticks))
    assert len(acknowledged) >= KILLS
    assert acknowledged - set(ticks) == set()
    gpu = times(agent.url, first_gpu(agent.url), "power_watts")
    assert len(gpu) == len(set(gpu)) > 0
    happened = [(event.source, event.time_ms, event.kind, event.code) for event in events(agent.url)]
    assert len(happened) == len(set(happened))
    assert not [kind for _, _, kind, _ in happened if kind == "store_quarantined"]
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in probes) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in probes if Path(f"/proc/{pid}").exists()]


def wait_for_outage(agent: AgentProcess) -> None:
    """The store is down, and everything else works on."""
    agent.wait_for(lambda: agent.value("gpudiag_store_up") == 0)
    agent.wait_for_ticks(5)
    assert len(agent.values("gpudiag_gpu_power_watts")) == 8
    assert agent.values("gpudiag_collector_success")[RULES_WORK] == 1
    assert (agent.get("/healthz")[0], agent.get("/readyz")[0]) == (200, 503)
    assert agent.value("gpudiag_store_waiting_frames") > 0


def sampling_agent(start_agent: Start, fake_nvml: FakeNvml) -> AgentProcess:
    agent = start_agent(fake_nvml.environ, agent__interval="200ms", agent__flush="400ms")
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    agent.wait_for(lambda: agent.value("gpudiag_store_flushes_total") >= 2)
    return agent


def stopped_after_recovery(agent: AgentProcess) -> list[str]:
    """Kinds of the events in the database afterwards."""
    agent.wait_for(lambda: agent.value("gpudiag_store_up") == 1)
    agent.wait_for_ticks(3)
    assert agent.value("gpudiag_store_dropped_frames_total") == 0
    assert agent.stop() == 0
    assert "Traceback" not in agent.log.read_text()
    return [event.kind for event in events(agent.url) if event.kind.startswith("store_")]


@pytest.fixture
def unwritable() -> Iterator[Callable[[Path], None]]:
    """Makes a database unwritable even for root, and for those who have it open."""
    held: list[str] = []

    def hold(database: Path) -> None:
        files = [str(database), f"{database}-wal"]
        done = subprocess.run(["chattr", "+i", *files], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no immutable files here: {done.stderr.decode().strip()}")
        held.extend(files)

    yield hold
    release(held)


def release(files: list[str]) -> None:
    there = [file for file in files if Path(file).exists()]
    if there:
        subprocess.run(["chattr", "-i", *there], check=True)


def test_a_database_made_read_only_while_in_use(
    start_agent: Start, fake_nvml: FakeNvml, unwritable: Callable[[Path], None]
) -> None:
    agent = sampling_agent(start_agent, fake_nvml)
    database = database_of(agent)
    unwritable(database)
    wait_for_outage(agent)
    release([str(database), f"{database}-wal"])
    assert stopped_after_recovery(agent) == ["store_failed", "store_recovered"]
    ticks = times(agent.url, Source("node-a", NODE), "cpus")
    assert max(after - before for before, after in itertools.pairwise(ticks)) < 1500


def test_a_database_replaced_by_garbage_is_set_aside_and_a_new_one_started(
    start_agent: Start, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    agent = sampling_agent(start_agent, fake_nvml)
    garbage = os.urandom(100_000)
    (tmp_path / "garbage").write_bytes(garbage)
    with closing(
        sqlite3.connect(database_of(agent))
    ) as connection:  # else the log alone brings everything back
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.move(tmp_path / "garbage", database_of(agent))
    wait_for_outage(agent)
    kinds = stopped_after_recovery(agent)
    assert sorted(kinds) == ["store_failed", "store_quarantined", "store_recovered"]
    asides = sorted(database_of(agent).parent.glob("agent.db.corrupt-*"))
    assert asides[0].read_bytes() == garbage


def test_a_database_that_was_removed_is_noticed_and_started_anew(
    start_agent: Start, fake_nvml: FakeNvml
) -> None:
    agent = sampling_agent(start_agent, fake_nvml)
    before_ms = time.time_ns() // 1_000_000
    database_of(agent).unlink()
    wait_for_outage(agent)
    assert stopped_after_recovery(agent) == ["store_failed", "store_recovered"]
    ticks = times(agent.url, Source("node-a", NODE), "cpus")
    assert ticks[0] - before_ms < 2000
    assert max(after - before for before, after in itertools.pairwise(ticks)) < 1500


def test_a_mistyped_path_is_refused_and_nobody_elses_file_is_touched(
    start_agent: Start, tmp_path: Path
) -> None:
    for name, content in (("letter", b"not a database" * 99), ("short", b"x")):
        path = tmp_path / name
        path.write_bytes(content)
        agent = start_agent(name=f"for-{name}", storage__url=f"sqlite:///{path}", sources__nvml="false")
        assert agent.process.wait(timeout=60) == 5
        assert agent.log.read_text().count("\n") == 1
        assert f"{path} is not a SQLite database" in agent.log.read_text()
        marker = tmp_path / "started"
        ran = agent.command("run", "--db", f"sqlite:///{path}", "--", "touch", str(marker))
        assert (ran.returncode, ran.stderr.count("\n"), marker.exists()) == (5, 1, False)
        assert [file.name for file in tmp_path.glob(f"{name}*")] == [name]
        assert path.read_bytes() == content


def forwarding_agent(start_agent: Start, fake_nvml: FakeNvml, sink: str, folder: Path) -> AgentProcess:
    (folder / "sink").write_text(sink.replace("gpudiag@", f"gpudiag:{PASSWORD}@") + "\n")
    return start_agent(
        fake_nvml.environ,
        agent__interval="200ms",
        agent__flush="400ms",
        forward__url_file=str(folder / "sink"),
        forward__interval="500ms",
    )


def test_postgres_stopped_and_started_while_the_agent_forwards(
    start_agent: Start, fake_nvml: FakeNvml, postgres: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    upgrade(postgres_url, time.time_ns() // 1_000_000)
    agent = forwarding_agent(start_agent, fake_nvml, postgres_url, tmp_path)
    agent.wait_for(lambda: agent.value("gpudiag_forward_sent_rows_total") > 0)
    postgres.stop(signal.SIGQUIT)
    try:
        agent.wait_for(lambda: agent.value("gpudiag_forward_up") == 0)
        agent.wait_for(lambda: agent.value("gpudiag_forward_lag_seconds") > 4)
        during_ms = time.time_ns() // 1_000_000
        assert agent.value("gpudiag_forward_waiting_rows") > 0
        assert (agent.value("gpudiag_store_up"), agent.get("/readyz")[0]) == (1, 200)
    finally:
        postgres.start()
    agent.wait_for(lambda: agent.value("gpudiag_forward_up") == 1)
    agent.wait_for(lambda: agent.value("gpudiag_forward_lag_seconds") < 2)
    shown = agent.metrics()
    assert agent.stop() == 0

    source = Source("node-a", NODE)
    local, central = (times(url, source, "cpus") for url in (agent.url, postgres_url))
    assert central == local[: len(central)]
    assert central[-1] > during_ms
    gpu = first_gpu(agent.url)
    local, central = (times(url, gpu, "power_watts") for url in (agent.url, postgres_url))
    assert central == local[: len(central)]
    assert central[-1] > during_ms
    kinds = [event.kind for event in events(agent.url) if event.kind.startswith("forward_")]
    assert kinds == ["forward_failed", "forward_recovered"]
    told = agent.log.read_text() + shown + repr(events(agent.url))
    assert "forwarding fails" in told
    assert PASSWORD not in told
