"""What a training loop does becomes sums: steps, their length, waiting; evaluation and checkpoints apart."""

from __future__ import annotations

import pytest

from gpudiag.probe import recorder as module
from gpudiag.probe.recorder import Recorder


class Time:
    def __init__(self) -> None:
        self.now = 0.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(module.time, "perf_counter", lambda: time.now)
    return time


def step(recorder: Recorder, time: Time, wait: float, compute: float) -> None:
    with recorder.waiting():
        time.now += wait
    time.now += compute
    recorder.step()


def test_waiting_is_a_share_of_the_steps(time: Time) -> None:
    recorder = Recorder()
    for _ in range(5):
        step(recorder, time, wait=0.25, compute=0.75)
    taken = recorder.take()
    assert (taken["steps"], taken["timed_steps"]) == (5, 4)
    assert taken["step_seconds"] == pytest.approx(4.0)
    assert taken["wait_seconds"] == pytest.approx(1.0)


def test_sums_begin_again_after_each_message(time: Time) -> None:
    recorder = Recorder()
    step(recorder, time, 0.1, 0.1)
    recorder.take()
    step(recorder, time, 0.0, 0.5)
    taken = recorder.take()
    assert (taken["steps"], taken["timed_steps"], taken["step_seconds"]) == (1, 1, pytest.approx(0.5))


def test_nested_loaders_count_once(time: Time) -> None:
    recorder = Recorder()
    recorder.step()
    with recorder.waiting(), recorder.waiting():
        time.now += 1.0
    recorder.step()
    assert recorder.take()["wait_seconds"] == pytest.approx(1.0)


def test_a_step_with_an_evaluation_is_not_timed(time: Time) -> None:
    recorder = Recorder()
    step(recorder, time, 0.0, 1.0)
    recorder.mark("eval_start")
    step(recorder, time, wait=30.0, compute=60.0)
    step(recorder, time, 0.0, 1.0)
    taken = recorder.take()
    assert taken["steps"] == 3
    assert (taken["timed_steps"], taken["step_seconds"], taken["wait_seconds"]) == (
        1,
        pytest.approx(1.0),
        0.0,
    )
    assert [name for name, _ in taken["marks"]] == ["eval_start", "eval_end"]


def test_a_frozen_part_in_eval_mode_in_every_step_is_training(time: Time) -> None:
    recorder = Recorder()
    for _ in range(10):
        recorder.mark("eval_start")
        step(recorder, time, 0.5, 0.5)
    assert recorder.take()["timed_steps"] >= 6


def test_a_checkpoint_is_not_a_slow_step(time: Time) -> None:
    recorder = Recorder()
    step(recorder, time, 0.0, 1.0)
    recorder.mark("checkpoint_start")
    time.now += 100
    recorder.mark("checkpoint_end")
    step(recorder, time, 0.0, 1.0)
    step(recorder, time, 0.0, 1.0)
    assert recorder.take()["step_seconds"] == pytest.approx(1.0)


def test_marks_are_bounded() -> None:
    recorder = Recorder()
    for number in range(1000):
        recorder.mark(f"phase-{number}")
    assert len(recorder.take()["marks"]) == 64


def test_marks_that_nobody_heard_are_told_again_the_latest_first_of_all() -> None:
    recorder = Recorder()
    recorder.mark("train_start")
    unheard = recorder.take()["marks"]
    recorder.mark("eval_start")
    recorder.keep(unheard)
    assert [name for name, _ in recorder.take()["marks"]] == ["train_start", "eval_start"]
    recorder.mark("eval_end")
    recorder.keep([(f"phase-{number}", 0.0) for number in range(200)])
    names = [name for name, _ in recorder.take()["marks"]]
    assert (len(names), names[0], names[-1]) == (64, "phase-137", "eval_end")


def test_a_checkpoint_is_one_whoever_tells_of_it_and_ends_with_the_next_step_at_the_latest() -> None:
    recorder = Recorder()
    recorder.mark("checkpoint_start")  # by the trainer
    recorder.mark("checkpoint_start")  # by torch.save
    recorder.step()
    assert [name for name, _ in recorder.take()["marks"]] == ["checkpoint_start", "checkpoint_end"]


def test_a_process_that_has_stepped_says_so_in_seconds_without_a_step() -> None:
    recorder = Recorder()
    assert recorder.take()["stepped"] is False
    recorder.step()
    recorder.take()
    assert (recorder.take()["steps"], recorder.take()["stepped"]) == (0, True)


def test_a_wait_is_told_second_by_second_while_it_goes_on(time: Time) -> None:
    recorder = Recorder()
    recorder.step()
    recorder.take()
    told = []
    with recorder.waiting(), recorder.waiting():
        for _ in range(3):
            time.now += 1.0
            taken = recorder.take()
            told.append((taken["now_waited_seconds"], taken["wait_seconds"], taken["steady"]))
        time.now += 0.25
    time.now += 0.75
    recorder.step()
    taken = recorder.take()
    assert told == [(1.0, 0.0, True)] * 3
    assert (taken["now_waited_seconds"], taken["wait_seconds"]) == (0.25, 3.25)
    assert recorder.take()["now_waited_seconds"] == 0.0


def test_an_evaluation_or_a_checkpoint_is_not_steady() -> None:
    recorder = Recorder()
    recorder.step()
    for name in ("eval", "checkpoint"):
        recorder.mark(f"{name}_start")
        assert [recorder.take()["steady"] for _ in range(2)] == [False, False]
        recorder.mark(f"{name}_end")
        assert [recorder.take()["steady"] for _ in range(2)] == [False, True]
