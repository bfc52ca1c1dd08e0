"""Messages between agent and probe survive any splitting; nonsense is an error, not a wait."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.probe import framing
from gpudiag.agent.probe.framing import Decoder, FramingError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
MESSAGES = st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4)


@given(MESSAGES, st.integers(1, 40))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[framing.Message], size: int
) -> None:
    wire = b"".join(framing.encode(message) for message in messages)
    decoder, seen = Decoder(), []
    for start in range(0, len(wire), size):
        decoder.feed(wire[start : start + size])
        while (message := decoder.next()) is not None:
            seen.append(message)
    assert seen == messages


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_never_travels(value: float) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        framing.encode({"value": value})


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (struct.pack("!I", framing.MAX_BYTES + 1), "a message of"),
        (struct.pack("!I", 3) + b"abc", "no JSON"),
        (struct.pack("!I", 2) + b"\xff\xfe", "no JSON"),
        (struct.pack("!I", 2) + b"[]", "list instead of an object"),
    ],
)
def test_nonsense_is_an_error(wire: bytes, reason: str) -> None:
    decoder = Decoder()
    decoder.feed(wire)
    with pytest.raises(FramingError, match=reason):
        decoder.next()


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_a_framing_error(data: bytes) -> None:
    decoder = Decoder()
    decoder.feed(data)
    try:
        while decoder.next() is not None:
            pass
    except FramingError:
        pass
