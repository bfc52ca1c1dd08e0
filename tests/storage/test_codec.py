"""Chunks give back every bit, and damage is seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.storage import codec
from gpudiag.storage.codec import DamagedChunk

VALUES = st.one_of(
    st.floats(width=64, allow_nan=False),
    st.floats(0, 1).map(lambda value: round(value, 6)),
    st.integers(-(2**60), 2**60).map(float),
    st.integers(0, 700_000).map(lambda milliwatts: milliwatts / 1000),
    st.just(float("nan")),
    st.just(-0.0),
)
CHUNKS = st.integers(0, 60).flatmap(
    lambda rows: st.tuples(
        st.lists(st.integers(0, 2**45), min_size=rows, max_size=rows, unique=True).map(sorted),
        st.lists(st.lists(VALUES, min_size=rows, max_size=rows), max_size=4),
    )
)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal bit for bit, except that every NaN is the same missing value."""
    gap = np.isnan(one)
    return bool((gap == np.isnan(other)).all() and (one.view(np.int64) == other.view(np.int64))[~gap].all())


@settings(max_examples=150, deadline=None)
@given(CHUNKS)
def test_every_value_comes_back_bit_for_bit(chunk: tuple[list[int], list[list[float]]]) -> None:
    times, columns = np.array(chunk[0], np.int64), np.array(chunk[1]).reshape(len(chunk[1]), len(chunk[0]))
    found_times, found = codec.decode(codec.encode(times, columns), range(len(columns)))
    assert (found_times == times).all()
    assert found.shape == columns.shape
    assert all(same_bits(one, other) for one, other in zip(columns, found, strict=True))


def test_only_the_wanted_columns_are_decoded() -> None:
    times, columns = np.arange(5, dtype=np.int64), np.arange(15.0).reshape(3, 5)
    data = bytearray(codec.encode(times, columns))
    data[-1] ^= 0xFF  # the last column is unreadable now, which nobody notices who does not want it
    assert codec.decode(bytes(data), [1])[1].tolist() == [[5.0, 6.0, 7.0, 8.0, 9.0]]


def test_sensor_like_columns_take_a_fraction_of_a_double() -> None:
    rng = np.random.default_rng(1)
    times = 1_764_504_000_000 + 1000 * np.arange(900) + rng.integers(0, 4, 900)
    ratio = np.round(np.clip(rng.normal(0.9, 0.03, 900), 0, 1), 6)
    power = np.rint(rng.normal(600_000, 20_000, 900)) / 1000
    columns = np.stack([ratio, power, np.full(900, 8.5e10), np.full(900, np.nan)])
    assert len(codec.encode(times, columns)) / columns.size < 1.5


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_are_an_error_or_differ_in_checksum(data: st.DataObject) -> None:
    columns = np.array([[0.1, 0.25, np.nan, 7.0] * 8, [1.0] * 32])
    good = codec.encode(np.arange(32, dtype=np.int64), columns)
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    assert codec.checksum(bytes(bad)) != codec.checksum(good)


@pytest.mark.parametrize("keep", [0, 3, 10, 40])
def test_a_cut_chunk_is_damaged(keep: int) -> None:
    data = codec.encode(np.arange(32, dtype=np.int64), np.random.default_rng(0).random((2, 32)))
    with pytest.raises(DamagedChunk):
        codec.decode(data[:keep], [0, 1])
