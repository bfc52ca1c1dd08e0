"""Texts that a database would refuse become texts that it takes; all others stay as they are."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gpudiag.storage.storable import storable

_VALUES = st.recursive(
    st.text() | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(_VALUES)
def test_whatever_comes_out_is_unicode_without_nuls_and_stays(value: object) -> None:
    made = storable(value)
    json.dumps(made, ensure_ascii=False).encode("utf-8")
    assert "\\u0000" not in json.dumps(made).replace("\\\\", "")
    assert storable(made) == made


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert storable(text) == text


def test_surrogates_and_nuls_are_shown_as_strange() -> None:
    assert storable({"a\ud800": ["\0b", ("c",)]}) == {"a\ufffd\ufffd\ufffd": ["\ufffdb", ("c",)]}
