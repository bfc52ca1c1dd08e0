from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.rules.packed import nothing, pack

NAN = float("nan")
any_float = st.floats(allow_nan=True, allow_infinity=True, width=64)
decimals = st.one_of(st.just(NAN), st.integers(-(10**9), 10**9).map(lambda n: n / 1000))


def bits(values: np.ndarray) -> list[int]:
    missing = np.isnan(values)
    return [-1 if gone else int(b) for gone, b in zip(missing, values.view(np.int64), strict=True)]


@given(st.one_of(st.lists(any_float, max_size=40), st.lists(decimals, max_size=40)))
def test_every_bit_comes_back(values: list[float]):
    column = np.array(values, dtype=float)
    assert bits(pack(column).values()) == bits(column)


@given(st.lists(decimals, min_size=6, max_size=40))
def test_a_part_is_the_part_of_the_whole(values: list[float]):
    packed = pack(np.array(values))
    np.testing.assert_array_equal(packed.values(2, 5), packed.values()[2:5])


@pytest.mark.parametrize(
    ("column", "each"),
    [([1.0, NAN, 250.0], 1), ([0.25, 0.5, NAN], 1), ([0.123456, 0.9, NAN], 4), ([np.pi, 1.0, 2.0], 8)],
)
def test_sensor_values_take_few_bytes(column: list[float], each: int):
    assert pack(np.array(column)).nbytes == each * len(column)


def test_what_was_not_measured_takes_nothing():
    assert pack(np.full(1000, NAN)).nbytes == 8
    assert np.isnan(nothing(1000)).all()


def test_negative_zero_keeps_its_sign():
    assert np.signbit(pack(np.array([0.0, -0.0, 1.0])).values()).tolist() == [False, True, False]
