from __future__ import annotations

import itertools
import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.daemon import Daemon, Wakeup, delay
from gpudiag.agent.notify import Notifier

NOON = 1_767_225_600_000


class Diary(Notifier):
    """Writes down what systemd would be told."""

    def __init__(self, clock: ManualClock, watchdog_seconds: float | None = None) -> None:
        super().__init__({})
        self.watchdog_seconds = watchdog_seconds
        self.lines: list[tuple[float, str]] = []
        self._clock = clock

    def _send(self, message: str) -> None:
        self.lines.append((self._clock.monotonic() - 3600.0, message.split("\n")[0]))

    def times(self, line: str) -> list[float]:
        return [time for time, said in self.lines if said == line]


class Work:
    """A service whose cycles take as long as told."""

    def __init__(self, clock: ManualClock, interval: float = 1.0, lengths: tuple[float, ...] = ()) -> None:
        self.interval = interval
        self.lengths = list(lengths)
        self.cycles: list[int] = []
        self.reloads = 0
        self.stopped = 0
        self._clock = clock

    def cycle(self) -> None:
        self.cycles.append(self._clock.now_ms() - NOON)
        if self.lengths:
            self._clock.sleep(self.lengths.pop(0))

    def reload(self) -> None:
        self.reloads += 1

    def shutdown(self) -> None:
        self.stopped += 1


def run(clock: ManualClock, work: Work, diary: Diary, signals: dict[float, int]) -> None:
    """Run until SIGTERM; `signals` come at these seconds."""
    pending = sorted(signals.items())

    def wait(seconds: float) -> list[int]:
        now = clock.monotonic() - 3600.0
        if pending and pending[0][0] <= now + seconds:
            at, number = pending.pop(0)
            clock.sleep(max(at - now, 0.0))
            return [number]
        clock.sleep(max(seconds, 0.0))
        return []

    Daemon(work, clock, diary, wait).run()


def test_ticks_come_once_per_interval_just_after_its_start() -> None:
    clock = ManualClock(NOON + 300)
    work, diary = Work(clock), Diary(clock)
    run(clock, work, diary, {3.5: signal.SIGTERM})
    assert work.cycles == [1020, 2020, 3020]


def test_late_ticks_are_skipped_and_never_caught_up() -> None:
    clock = ManualClock(NOON)
    work = Work(clock, lengths=(0.1, 3.7, 0.1))
    run(clock, work, Diary(clock), {7.5: signal.SIGTERM})
    assert work.cycles == [20, 1020, 5020, 6020, 7020]


def test_a_wall_clock_set_back_or_forward_changes_nothing_but_the_phase() -> None:
    clock = ManualClock(NOON)
    work = Work(clock)
    work.cycle = lambda: (
        work.cycles.append(round(clock.monotonic() * 1000) - 3_600_000),
        clock.step(-1800.4),
    )  # type: ignore[method-assign, func-returns-value, assignment]
    run(clock, work, Diary(clock), {4.5: signal.SIGTERM})
    gaps = [after - before for before, after in itertools.pairwise(work.cycles)]
    assert all(0 < gap <= 1000 for gap in gaps)


def test_ready_then_stopping_and_one_shutdown() -> None:
    clock = ManualClock(NOON)
    work, diary = Work(clock), Diary(clock)
    run(clock, work, diary, {2.5: signal.SIGTERM})
    assert [line for _, line in diary.lines] == ["READY=1", "STOPPING=1"]
    assert work.stopped == 1


def test_reload_on_hangup_goes_on_sampling() -> None:
    clock = ManualClock(NOON)
    work, diary = Work(clock), Diary(clock)
    run(clock, work, diary, {1.5: signal.SIGHUP, 3.5: signal.SIGINT})
    assert work.reloads == 1
    assert work.cycles == [20, 1020, 2020, 3020]
    assert [line for _, line in diary.lines] == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


def test_watchdog_is_pinged_four_times_per_period() -> None:
    clock = ManualClock(NOON)
    work, diary = Work(clock), Diary(clock, watchdog_seconds=20.0)
    run(clock, work, diary, {21.0: signal.SIGTERM})
    assert diary.times("WATCHDOG=1") == pytest.approx([0.02, 5.02, 10.02, 15.02, 20.02])


def test_watchdog_is_pinged_between_ticks_when_the_interval_is_long() -> None:
    clock = ManualClock(NOON)
    work, diary = Work(clock, interval=60.0), Diary(clock, watchdog_seconds=20.0)
    run(clock, work, diary, {59.0: signal.SIGTERM})
    pings = diary.times("WATCHDOG=1")
    gaps = [after - before for before, after in itertools.pairwise(pings)]
    assert len(pings) >= 10
    assert max(gaps) <= 10


def test_watchdog_is_silent_while_a_cycle_hangs() -> None:
    clock = ManualClock(NOON)
    work, diary = Work(clock, lengths=(0.1, 90.0)), Diary(clock, watchdog_seconds=20.0)
    run(clock, work, diary, {92.5: signal.SIGTERM})
    pings = diary.times("WATCHDOG=1")
    assert not [ping for ping in pings if 1.02 < ping < 91.0]
    assert pings[-1] > 91.0


def test_shutdown_even_when_a_cycle_raises() -> None:
    clock = ManualClock(NOON)
    work = Work(clock)

    def broken() -> None:
        raise RuntimeError("cycle")

    work.cycle = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="cycle"):
        run(clock, work, Diary(clock), {})
    assert work.stopped == 1


def test_a_real_signal_ends_the_wait_early() -> None:
    wakeup = Wakeup()
    before = signal.getsignal(signal.SIGHUP)
    with wakeup.listening():
        os.kill(os.getpid(), signal.SIGHUP)
        started = time.monotonic()
        assert wakeup.wait(30.0) == [signal.SIGHUP]
        assert time.monotonic() - started < 10
        assert wakeup.wait(0.0) == []
    assert signal.getsignal(signal.SIGHUP) is before


@given(st.integers(0, 2**42), st.sampled_from([0.1, 0.25, 1.0, 2.0, 10.0, 60.0]))
def test_delay_always_leads_to_just_after_a_multiple_of_the_interval(now_ms: int, interval: float) -> None:
    wait = delay(now_ms, interval)
    assert 0 < wait <= interval
    offset = (now_ms / 1000 + wait) % interval
    assert offset == pytest.approx(0.02 * interval, abs=0.002)
