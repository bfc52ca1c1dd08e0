"""Rates from counters: any growth comes out, a wrap is crossed, a restart is a gap and never a spike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.collectors.rates import Rates

WRAPS = st.sampled_from([2.0**32, 2.0**48])
STEPS = st.lists(st.integers(0, 10_000_000), min_size=1, max_size=30)


@given(WRAPS, st.integers(0, 2**48 - 1), STEPS)
def test_growth_comes_out_across_wraps(wraps_at: float, start: int, steps: list[int]) -> None:
    rates, total = Rates(), start
    rates.rate("k", total % wraps_at, 0.0, wraps_at, ceiling=1e8)
    for second, step in enumerate(steps, 1):
        total += step
        assert rates.rate("k", total % wraps_at, float(second), wraps_at, ceiling=1e8) == pytest.approx(step)


@given(WRAPS, st.integers(0, 2**48 - 1), st.integers(0, 2**32 - 1))
def test_no_restart_gives_more_than_the_link_can_carry(wraps_at: float, before: int, after: int) -> None:
    rates = Rates()
    rates.rate("k", before % wraps_at, 0.0, wraps_at, ceiling=1e8)
    rate = rates.rate("k", after % wraps_at, 1.0, wraps_at, ceiling=1e8)
    assert rate is None or 0 <= rate <= 1e8


def test_the_first_reading_and_a_standing_clock_give_nothing() -> None:
    rates = Rates()
    assert rates.rate("k", 5.0, 1.0, 2.0**64) is None
    assert rates.rate("k", 9.0, 1.0, 2.0**64) is None


def test_a_counter_that_may_have_wrapped_twice_says_nothing() -> None:
    rates = Rates()
    rates.rate("k", 0.0, 0.0, 2.0**32, ceiling=63e9)
    assert rates.rate("k", 1000.0, 1.0, 2.0**32, ceiling=63e9) is None
    assert rates.rate("k", 2000.0, 1.01, 2.0**32, ceiling=63e9) == pytest.approx(100_000)
