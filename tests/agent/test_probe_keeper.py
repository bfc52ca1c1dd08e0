"""Starting, watching and replacing a probe, with a scripted one and a clock of the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.probe.client import ProbeDiedError, Stuck
from gpudiag.agent.probe.framing import Message
from gpudiag.agent.probe.keeper import Keeper, Pause

OK: Message = {"gpus": []}


@dataclass
class ScriptedProbe:
    """`answer`: what it says to every question, None for silence; `mortal`: whether SIGKILL works."""

    answer: Message | None = field(default_factory=lambda: dict(OK))
    mortal: bool = True
    pid: int = 4711
    dead: bool = False
    asked: int = 0
    kills: int = 0
    patience: list[float] = field(default_factory=list)

    def send(self, message: Message) -> None:
        if self.dead:
            raise ProbeDiedError("broken pipe")
        self.asked += 1

    def receive(self, timeout: float) -> Message | None:
        self.patience.append(timeout)
        if self.dead:
            raise ProbeDiedError("it closed the connection")
        return self.answer

    def stuck(self) -> Stuck:
        return Stuck("nvmlDeviceGetName", "GPU-1", "D", "os_acquire", "4711 (python) D", 4711)

    def operation(self) -> tuple[str, str]:
        return "nvmlDeviceGetName", "GPU-1"

    def kill(self) -> None:
        self.kills += 1
        self.dead = self.dead or self.mortal

    def ended(self) -> bool:
        return self.dead

    def how_it_ended(self) -> str:
        return "signal SIGKILL"

    def close(self, timeout: float = 2.0) -> bool:
        if self.answer is not None:
            self.dead = True
        return self.dead


class Rig:
    """A keeper, the probes it started, and a second per tick."""

    def __init__(
        self, make: Callable[[int], ScriptedProbe], open_episode: tuple[str, int] | None = None
    ) -> None:
        self.clock = ManualClock(0)
        self.probes: list[ScriptedProbe] = []
        self.make = make
        self.keeper = Keeper(self._start, self.clock.monotonic, 30.0, 120.0, open_episode)
        self.told: list[tuple[float, str]] = []

    def _start(self) -> ScriptedProbe:
        self.probes.append(self.make(len(self.probes)))
        return self.probes[-1]

    def tick(self, times: int = 1) -> Message | None:
        reply = None
        for _ in range(times):
            reply = self.keeper.exchange({"op": "sample"}, 0.5)
            self.told += [(self.clock.monotonic() - 3600.0, one.kind) for one in self.keeper.incidents()]
            self.clock.sleep(1.0)
        return reply


def test_an_answer_in_time_is_passed_on() -> None:
    rig = Rig(lambda _: ScriptedProbe())
    assert rig.tick() == OK
    assert (rig.keeper.state, rig.told) == ("running", [])


def test_only_the_first_wait_for_an_answer_takes_time() -> None:
    rig = Rig(lambda _: ScriptedProbe())
    rig.tick()
    rig.probes[0].answer = None
    rig.tick(3)
    assert rig.probes[0].patience == [0.5, 0.5, 0.0, 0.0]
    assert rig.probes[0].asked == 2
    assert rig.keeper.state == "late"


def test_opening_the_driver_may_take_longer_than_a_cycle() -> None:
    rig = Rig(lambda _: ScriptedProbe(answer=None))
    rig.tick(120)
    assert rig.told == []
    rig.tick(2)
    assert rig.told == [(121.0, "driver_hung")]


def test_a_hung_probe_is_killed_once_and_the_next_one_waits_half_a_minute() -> None:
    rig = Rig(lambda number: ScriptedProbe())
    rig.tick()
    rig.probes[0].answer = None
    rig.tick(32)
    assert (rig.probes[0].kills, rig.told) == (1, [(32.0, "driver_hung")])
    rig.tick(30)
    assert len(rig.probes) == 1
    rig.tick(2)
    assert len(rig.probes) == 2
    assert [kind for _, kind in rig.told] == ["driver_hung", "driver_recovered"]


def test_pauses_between_hangs_double_up_to_ten_minutes() -> None:
    rig = Rig(lambda _: ScriptedProbe(answer=None))
    starts: list[float] = []
    for _ in range(4000):
        before = len(rig.probes)
        rig.tick()
        if len(rig.probes) > before:
            starts.append(rig.clock.monotonic())
    between = [round(later - earlier - 122) for earlier, later in itertools.pairwise(starts)]
    assert between[:6] == [30, 60, 120, 240, 480, 600]
    assert [kind for _, kind in rig.told] == ["driver_hung"]


def test_a_probe_that_cannot_be_killed_is_the_only_one_for_ever() -> None:
    rig = Rig(lambda _: ScriptedProbe(answer=None, mortal=False))
    rig.tick(100_000)
    assert len(rig.probes) == 1
    assert rig.probes[0].kills == 1
    assert [kind for _, kind in rig.told] == ["driver_hung"]


def test_a_probe_that_was_stuck_at_release_keeps_others_from_starting() -> None:
    rig = Rig(lambda _: ScriptedProbe(mortal=False))
    rig.tick()
    rig.probes[0].answer = None
    rig.tick()
    assert not rig.keeper.release()
    rig.keeper.resume()
    rig.tick(10)
    assert len(rig.probes) == 1
    assert rig.keeper.reason == "an earlier probe is still stuck in the driver"
    rig.probes[0].dead = True
    assert rig.tick() == OK


def test_a_probe_that_dies_is_told_of_once_and_started_again() -> None:
    rig = Rig(lambda number: ScriptedProbe(dead=number < 3))
    rig.tick(40)
    assert [kind for _, kind in rig.told] == ["driver_crashed", "driver_recovered"]
    assert len(rig.probes) == 4


def test_another_kind_of_trouble_is_told_of_too() -> None:
    fatal = {"fatal": {"code": 9, "operation": "nvmlInitWithFlags", "reason": "driver not loaded"}}
    script = [ScriptedProbe(dead=True), ScriptedProbe(answer=fatal), ScriptedProbe()]
    rig = Rig(lambda number: script[number])
    rig.tick(60)
    assert [kind for _, kind in rig.told] == ["driver_crashed", "driver_unavailable", "driver_recovered"]


def test_a_trouble_on_record_is_not_told_of_again_but_its_end_is() -> None:
    rig = Rig(lambda number: ScriptedProbe(answer=None if number == 0 else dict(OK)), ("driver_hung", 0))
    rig.tick(200)
    assert [kind for _, kind in rig.told] == ["driver_recovered"]


def test_a_probe_that_cannot_be_started_is_tried_again_later() -> None:
    def full(number: int) -> ScriptedProbe:
        raise OSError(24, "Too many open files")

    rig = Rig(full)
    rig.tick(3)
    assert rig.keeper.state == "unavailable"
    assert rig.keeper.reason.endswith("Too many open files")
    assert rig.keeper.retry_in == pytest.approx(2.0)
    rig.make = lambda number: ScriptedProbe()
    rig.tick(3)
    assert rig.keeper.state == "running"


def test_nothing_is_started_while_released() -> None:
    rig = Rig(lambda _: ScriptedProbe())
    rig.tick()
    assert rig.keeper.release()
    assert rig.tick(100) is None
    assert len(rig.probes) == 1
    rig.keeper.resume()
    assert rig.tick() == OK


@pytest.mark.parametrize("tries", [1, 5, 10_000])
def test_a_pause_never_exceeds_its_bound(tries: int) -> None:
    pause = Pause(5.0, 60.0)
    assert [pause.next() for _ in range(tries)][-1] <= 60.0
