"""Marks of the training process sharpen the phases, live as afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.rules.marks import MarkFollower
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Source

SHARE = Source("n1", "job:local/42/1")
START_S = 1_700_000_000


def mark(at: float, name: str, ordinal: int = 0) -> Event:
    return Event(SHARE, round((START_S + at) * 1000), "mark", ordinal=ordinal, detail={"name": name})


def inside(marks: Sequence[Event], phase: str, seconds: int = 100) -> list[int]:
    return np.flatnonzero(MarkFollower().advance(marks, START_S, seconds)[phase]).tolist()


def test_seconds_between_start_and_end_are_in_the_phase() -> None:
    assert inside([mark(10.2, "eval_start"), mark(14.4, "eval_end")], "eval") == [10, 11, 12, 13]
    assert inside([mark(10.7, "eval_start"), mark(14.6, "eval_end")], "eval") == [11, 12, 13, 14]


def test_a_checkpoint_of_a_blink_is_none() -> None:
    assert inside([mark(10.1, "checkpoint_start"), mark(10.3, "checkpoint_end")], "checkpoint") == []


def test_training_again_ends_an_evaluation() -> None:
    assert inside([mark(3, "eval_start"), mark(5, "train_start")], "eval") == [3, 4]


def test_a_process_that_says_that_it_trains_does_from_then_on() -> None:
    assert inside([mark(96.6, "train_start")], "train") == [97, 98, 99]
    follower = MarkFollower()
    follower.advance([mark(3, "train_start")], START_S, 100)
    assert follower.advance([], START_S + 100, 5)["train"].all()


def test_an_end_without_a_start_and_other_names_mean_nothing() -> None:
    marks = [
        mark(3, "eval_end"),
        mark(5, "epoch_start"),
        mark(6, "lunch"),
        Event(SHARE, START_S * 1000, "mark"),
    ]
    assert inside(marks, "eval") == []
    assert inside(marks, "checkpoint") == []


def test_a_process_that_never_says_that_it_is_done_is_not_believed_for_ever() -> None:
    found = inside([mark(10, "checkpoint_start")], "checkpoint", seconds=9000)
    assert (found[0], found[-1]) == (10, 10 + 3600 - 1)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 199, allow_nan=False),
            st.sampled_from(["eval_start", "eval_end", "checkpoint_start", "checkpoint_end", "train_start"]),
        ),
        max_size=20,
    ),
    st.lists(st.integers(1, 60), max_size=8),
)
def test_marks_mean_the_same_however_time_is_cut(said: list[tuple[float, str]], cuts: list[int]) -> None:
    marks = [mark(at, name, number) for number, (at, name) in enumerate(said)]
    whole, follower = MarkFollower().advance(marks, START_S, 200), MarkFollower()
    parts, at = [], 0
    for length in [*cuts, 200]:
        length = min(length, 200 - at)
        parts.append(follower.advance(marks, START_S + at, length))
        at += length
    for phase, expected in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[phase] for part in parts]), expected)
