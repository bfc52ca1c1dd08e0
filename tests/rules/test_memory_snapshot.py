"""A memory snapshot is read as data, never as code, and says what is stuck and who pins it."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import InputError
from gpudiag.rules.memory_snapshot import Segment, fragmentation, parse, pins

MIB = 2**20


def block(size: int, state: str = "inactive", line: int = 0) -> dict[str, Any]:
    frames = [
        {"filename": "/venv/torch/nn/modules/linear.py", "line": 1, "name": "forward"},
        {"filename": "train.py", "line": line, "name": "step"},
    ]
    return {"size": size, "requested_size": size, "state": state, "frames": frames if line else []}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    total = sum(part["size"] for part in blocks)
    return {"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "blocks": list(blocks), **more}  # fmt: skip


def loaded(content: object) -> tuple[Segment, ...]:
    return parse(io.BytesIO(pickle.dumps(content)))


def test_free_bytes_of_a_segment_in_use_are_stuck_and_of_an_empty_one_are_not() -> None:
    segments = loaded({"segments": [
        segment(0, block(2 * MIB, "active_allocated", 7), block(18 * MIB)),
        segment(64 * MIB, block(20 * MIB)),
    ]})  # fmt: skip
    (row,) = fragmentation(segments)
    assert (row.reserved, row.allocated, row.inactive_split) == (40 * MIB, 2 * MIB, 18 * MIB)
    assert row.largest_free == 20 * MIB
    assert row.ratio == pytest.approx(0.45)


def test_pools_and_streams_are_told_apart() -> None:
    segments = loaded({"segments": [
        segment(0, block(MIB, "active_allocated")),
        segment(2 * MIB, block(MIB, "active_allocated"), stream=3),
        segment(4 * MIB, block(MIB, "active_allocated"), segment_pool_id=(0, 1)),
    ]})  # fmt: skip
    assert {(row.pool, row.stream) for row in fragmentation(segments)} == {
        ("large", 0), ("large", 3), ("large private 0.1", 0),
    }  # fmt: skip


def test_the_line_of_the_program_that_pins_a_segment_is_named() -> None:
    segments = loaded({"segments": [
        segment(0, block(MIB, "active_allocated", 7), block(18 * MIB), block(MIB, "active_allocated", 9)),
        segment(64 * MIB, block(20 * MIB, "active_allocated", 11)),
    ]})  # fmt: skip
    assert [(pin.where, pin.held, pin.pinned) for pin in pins(segments)] == [
        ("train.py:7 step", MIB, 9 * MIB),
        ("train.py:9 step", MIB, 9 * MIB),
    ]


def test_blocks_of_a_snapshot_before_addresses_and_frames_were_told() -> None:
    frames = [{"filename": "train.py", "line": 3, "name": "step"}]
    old = [{"filename": "train.py", "line": 9, "name": "warm_up"}]
    (only,) = loaded({"segments": [{
        "device": 0, "address": 4096, "total_size": 3 * MIB, "allocated_size": MIB, "active_size": MIB, "stream": 0, "segment_type": "small",
        "blocks": [
            {"size": MIB, "state": "active_allocated", "history": [{"addr": 4096, "real_size": 10, "frames": frames}, {"addr": 4096, "frames": old}]},
            {"size": 2 * MIB, "state": "inactive"},
        ]}], "device_traces": []})  # fmt: skip
    assert [(block.address, block.used, block.where) for block in only.blocks] == [
        (4096, True, "train.py:3 step"), (4096 + MIB, False, ""),
    ]  # fmt: skip


def test_a_list_of_segments_is_what_memory_snapshot_returns() -> None:
    assert [one.size for one in loaded([segment(0, block(MIB))])] == [MIB]


def test_fields_that_later_versions_added_are_passed_over() -> None:
    raw = segment(
        0,
        block(MIB, "active_awaiting_free", 7),
        requested_size=5,
        is_expandable=False,
        frames=[],
        registration_counter=-1,
        whatever=[None],
    )
    (one,) = loaded({"segments": [raw], "device_traces": [[{"action": "oom"}]], "allocator_settings": {"roundup": {"1": 0}},
                     "external_annotations": [], "user_metadata": "step 5", "pool_to_segments": {}})  # fmt: skip
    assert one.used == MIB


def test_a_fresh_process_has_an_empty_snapshot() -> None:
    assert loaded({"segments": [], "device_traces": [[]]}) == ()
    assert fragmentation(()) == [] == pins(())


def test_devices_are_told_apart_and_ordered() -> None:
    segments = loaded(
        {
            "segments": [
                segment(0, block(MIB), device=3),
                segment(64 * MIB, block(MIB), device=1),
                segment(0, block(MIB), device=1),
            ]
        }
    )
    assert [(one.device, one.address) for one in segments] == [(1, 0), (1, 64 * MIB), (3, 0)]
    assert {row.device for row in fragmentation(segments)} == {1, 3}


def test_whole_free_pages_of_an_expandable_segment_are_not_stuck() -> None:
    # large pages are 20 MiB: the free 50 MiB hold the second and the third one, and 10 MiB of the first
    (row,) = fragmentation(loaded({"segments": [
        segment(0, block(10 * MIB, "active_allocated"), block(50 * MIB), block(20 * MIB, "active_allocated"), is_expandable=True),
    ]}))  # fmt: skip
    assert (row.pool, row.inactive_split, row.largest_free) == ("large expandable", 10 * MIB, 50 * MIB)


def test_private_pools_of_expandable_segments_say_both() -> None:
    (one,) = loaded({"segments": [segment(0, block(MIB), is_expandable=True, segment_pool_id=[0, 2])]})
    assert one.pool == "large private 0.2 expandable"


GARBLED = [
    {"address": "4096"}, {"address": None}, {"address": 2**70}, {"address": 1.5}, {"address": True}, {"total_size": "x"}, {"blocks": 3}, {"blocks": [3]},
    {"blocks": [{}]}, {"blocks": [{"size": 1, "state": None}]}, {"blocks": [{"size": -(2**80), "state": "inactive"}]}, {"segment_pool_id": 5},
    {"segment_pool_id": (1, 2, 3)}, {"segment_pool_id": ("a", 0)}, {"stream": "default"}, {"blocks": [{"size": 1, "state": "inactive", "frames": 7}]},
    {"blocks": [{"size": 1, "state": "inactive", "frames": [7]}]}, {"blocks": [{"size": 1, "state": "inactive", "history": [7]}]},
]  # fmt: skip


@pytest.mark.parametrize("garbled", GARBLED)
def test_a_garbled_segment_is_named(garbled: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^not a memory snapshot: a segment lacks or garbles"):
        loaded({"segments": [{**segment(0, block(MIB)), **garbled}]})


def test_long_names_are_cut() -> None:
    frames = [{"filename": "x" * 10**6, "line": 1, "name": "y" * 10**6}]
    (one,) = loaded({"segments": [segment(0, {"size": 1, "state": "inactive", "frames": frames})]})
    assert len(one.blocks[0].where) < 3000


def test_a_small_file_that_names_the_same_block_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.rules.memory_snapshot.BLOCKS_MOST", 5000)
    many = [segment(0, *[block(1)] * 1000)] * 10**6
    with pytest.raises(InputError, match="more than 5000 blocks"):
        loaded({"segments": many})


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("true",))


def test_code_in_a_snapshot_is_refused() -> None:
    with pytest.raises(InputError, match=r"^refused: .*system"):
        loaded({"segments": [Evil()]})


@pytest.mark.parametrize("content", [[], {}, {"segments": 3}, {"segments": [{}]}, {"segments": [3]}, "text"])
def test_other_data_is_no_snapshot(content: object) -> None:
    with pytest.raises(InputError, match=r"^not a memory snapshot"):
        loaded(content)


@given(st.binary(max_size=200))
def test_random_bytes_give_one_clear_error(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^(not a memory snapshot|refused)"):
        parse(io.BytesIO(content))


@given(st.lists(st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=5), max_size=8))
def test_allocated_free_and_stuck_bytes_add_up(shapes: list[list[tuple[int, bool]]]) -> None:
    raw = [
        segment(
            1000 * i, *(block(size, "active_allocated" if used else "inactive", 1) for size, used in shape)
        )
        for i, shape in enumerate(shapes)
    ]
    segments = loaded({"segments": raw})
    rows = fragmentation(segments)
    empty = sum(s.size for s in segments if not s.used)
    assert (
        sum(row.reserved for row in rows) == sum(row.allocated + row.inactive_split for row in rows) + empty
    )
    assert sum(pin.pinned for pin in pins(segments)) == pytest.approx(
        sum(row.inactive_split for row in rows), abs=1
    )
