from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.collectors.counters import Counters


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_reading_gives_no_rate() -> None:
    assert Counters(Time()).advance({"a": 1.0}) is None


def test_a_rate_is_growth_over_elapsed_time() -> None:
    time = Time()
    counters = Counters(time)
    counters.advance({"a": 100.0})
    time.now = 2.0
    change = counters.advance({"a": 150.0})
    assert change is not None
    assert change.rate("a") == 25.0


def test_a_counter_that_went_backwards_is_absent_for_one_reading() -> None:
    time = Time()
    counters = Counters(time)
    counters.advance({"a": 100.0, "b": 1.0})
    time.now = 1.0
    change = counters.advance({"a": 3.0, "b": 2.0})
    assert change is not None
    assert dict(change.amounts) == {"b": 1.0}
    time.now = 2.0
    change = counters.advance({"a": 4.0, "b": 2.0})
    assert change is not None
    assert dict(change.amounts) == {"a": 1.0, "b": 0.0}


def test_a_counter_that_appears_later_is_absent_at_first() -> None:
    time = Time()
    counters = Counters(time)
    counters.advance({})
    time.now = 1.0
    change = counters.advance({"a": 7.0})
    assert change is not None
    assert change.rate("a") is None


def test_no_time_passed_means_no_rate_and_keeps_the_earlier_reading() -> None:
    time = Time()
    counters = Counters(time)
    counters.advance({"a": 0.0})
    assert counters.advance({"a": 10.0}) is None
    time.now = 1.0
    change = counters.advance({"a": 20.0})
    assert change is not None
    assert change.rate("a") == 20.0


def test_a_sum_over_counters_leaves_out_the_one_that_was_reset() -> None:
    time = Time()
    counters = Counters(time)
    counters.advance({"sda/read": 10.0, "sdb/read": 10.0})
    time.now = 1.0
    change = counters.advance({"sda/read": 15.0, "sdb/read": 0.0})
    assert change is not None
    assert change.total("/read") == 5.0
    assert change.total("/write") is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**12)), min_size=2, max_size=50))
def test_growth_is_never_negative_and_resets_lose_only_their_own_step(steps: list[tuple[bool, int]]) -> None:
    time = Time()
    counters = Counters(time)
    level, before, seen, expected = 0, None, 0.0, 0
    for reset, growth in steps:
        level = growth if reset else level + growth
        if before is not None and level >= before:
            expected += level - before
        change = counters.advance({"c": float(level)})
        if change is not None and change.amount("c") is not None:
            amount = change.amount("c")
            assert amount is not None
            assert amount >= 0
            seen += amount
        before = level
        time.now += 1.0
    assert seen == pytest.approx(expected)
