from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.sampler import Sampler
from gpudiag.agent.service import Agent, Changes
from gpudiag.errors import InputError, StoreError
from gpudiag.storage.sample import Source
from gpudiag.storage.store import StoredFinding

NODE = Source("n1", "node")


class Handle:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class FixedJudge:
    """A judge that has nothing to say."""

    open: tuple[StoredFinding, ...] = ()

    def observe(self, *_: Any) -> tuple[()]:
        return ()


@pytest.fixture
def made(clock: ManualClock, memory_store: Any, scripted: Any) -> dict[str, Any]:
    recorder = Recorder(memory_store.open, "n1", clock)
    collector = scripted("cpu", NODE, {"cpu_busy_ratio": 0.5})
    judge = FixedJudge()
    sampler = Sampler([collector], recorder, clock, "n1", judge=judge)
    changes: list[Changes | Exception] = []

    def reread() -> Changes:
        change = changes.pop(0)
        if isinstance(change, Exception):
            raise change
        return change

    agent = Agent(sampler, recorder, clock, 1.0, reread)
    return {"agent": agent, "collector": collector, "judge": judge, "changes": changes}


def test_a_bad_reload_keeps_the_old_rules(made: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    made["changes"].append(InputError("x.yaml:3:1: unknown rule key"))
    made["agent"].reload()
    assert made["agent"].sampler.judge is made["judge"]
    assert "the old configuration and rules stay: x.yaml:3:1" in caplog.text


def test_a_good_reload_takes_rules_and_interval_over(made: dict[str, Any], clock: ManualClock) -> None:
    agent, new = made["agent"], FixedJudge()
    made["changes"].append(Changes(5.0, new))
    agent.cycle()
    agent.reload()
    clock.sleep(5)
    agent.cycle()
    assert agent.sampler.judge is new
    assert (agent.interval, agent.sampler.snapshot.skipped) == (5.0, 0)


OPEN = StoredFinding("util/idle", NODE, 1000, None, "warning", "")


def test_findings_go_on_when_rules_are_reloaded(made: dict[str, Any]) -> None:
    agent = made["agent"]
    made["judge"].open = (OPEN,)
    made["changes"].append(Changes(1.0, FixedJudge()))
    agent.cycle()
    agent.reload()
    agent.cycle()
    assert agent.sampler.snapshot.findings == (OPEN,)


def test_findings_end_when_nothing_is_judged_any_more(
    made: dict[str, Any], clock: ManualClock, memory_store: Any
) -> None:
    agent = made["agent"]
    made["judge"].open = (OPEN,)
    made["changes"].append(Changes(1.0, None))
    agent.cycle()
    agent.reload()
    agent.shutdown()
    assert memory_store.findings == [replace(OPEN, end_ms=clock.now_ms())]


def test_a_cycle_that_breaks_off_is_counted_and_the_next_one_runs(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = made["agent"]
    with monkeypatch.context() as patch:
        patch.setattr(agent.sampler, "_published", lambda *_: 1 / 0)
        agent.cycle()
    agent.cycle()
    assert agent.failed_cycles == 1
    assert agent.sampler.snapshot.ticks == 2
    assert "ZeroDivisionError" in caplog.text


def test_health_follows_the_loop(made: dict[str, Any], clock: ManualClock) -> None:
    agent = made["agent"]
    assert agent.alive().ok
    assert not agent.ready().ok
    agent.cycle()
    assert (agent.alive().ok, agent.ready().ok) == (True, True)
    clock.sleep(11)
    assert (agent.alive().ok, agent.ready().ok) == (False, False)
    assert agent.alive().text == "last tick 11.0 s ago"


def test_not_ready_but_alive_while_the_database_fails(
    made: dict[str, Any], clock: ManualClock, memory_store: Any
) -> None:
    memory_store.broken = StoreError("disk full")
    for _ in range(12):
        made["agent"].cycle()
        clock.sleep(1)
    assert made["agent"].alive().ok
    assert made["agent"].ready().text == "database: disk full"


def test_shutdown_closes_what_is_attached_then_writes(made: dict[str, Any], memory_store: Any) -> None:
    handle = Handle()
    made["agent"].attach(handle)
    made["agent"].cycle()
    made["agent"].shutdown()
    assert (handle.closed, made["collector"].closed, memory_store.closed) == (1, 1, 1)
    assert len(memory_store.frames) == 1
