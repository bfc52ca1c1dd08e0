from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpudiag.cli.main import cli

MIB = 2**20


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    frames = [{"filename": "<b>train</b>.py", "line": 5, "name": "step"}]
    content: dict[str, Any] = {"segments": [{
        "device": 1, "address": 4096, "total_size": 20 * MIB, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "blocks": [
            {"size": 5 * MIB, "state": "active_allocated", "frames": frames},
            {"size": 15 * MIB, "state": "inactive", "frames": []},
        ]}]}  # fmt: skip
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def gpudiag(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], standalone_mode=False)


def test_text_names_the_pool_and_what_pins_it(snapshot: Path) -> None:
    shown = gpudiag("memory", snapshot).output
    assert shown.startswith("reserved 20.00 MiB, allocated 5.00 MiB, stuck in split segments 15.00 MiB (75%)")
    assert "15.00 MiB pinned by 5.00 MiB in 1 blocks: <b>train</b>.py:5 step" in shown


def test_json_has_the_same_numbers(snapshot: Path) -> None:
    document = json.loads(gpudiag("memory", snapshot, "--json").output)
    assert document["inactive_split_bytes"] == 15 * MIB
    assert document["pools"][0]["fragmentation_ratio"] == pytest.approx(0.75)
    assert document["pins"] == [
        {"where": "<b>train</b>.py:5 step", "blocks": 1, "held_bytes": 5 * MIB, "pinned_bytes": 15 * MIB}
    ]


def test_the_page_draws_used_blocks_and_escapes_names(snapshot: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    gpudiag("memory", snapshot, "--html", page)
    text = page.read_text()
    assert "width=250.00" in text
    assert "default-src 'none'" in text
    assert "<b>train" not in text
    assert "<script" not in text


def test_the_picture_tells_what_is_stuck_from_what_can_go_back(tmp_path: Path) -> None:
    def raw(address: int, state: str, **more: Any) -> dict[str, Any]:
        blocks = [
            {"size": 20 * MIB, "state": state, "frames": []},
            {"size": 20 * MIB, "state": "inactive", "frames": []},
        ]
        return {"address": address, "total_size": 40 * MIB, "segment_type": "large", "blocks": blocks, **more}

    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [
        raw(0, "active_allocated"), raw(2**30, "inactive", stream=1), raw(2**31, "active_allocated", is_expandable=True, stream=2),
    ]}))  # fmt: skip
    page = tmp_path / "page.html"
    gpudiag("memory", path, "--html", page)
    text = page.read_text()
    titles = [
        f"GPU 0, {pool}, stream {stream}: 1 segments"
        for pool, stream in (("large", 0), ("large", 1), ("large expandable", 2))
    ]
    pictures = {title: text.partition(title)[2].partition("</svg>")[0] for title in titles}
    drawn = [
        (one.count("class=used"), one.count("class=stuck"), one.count("class=free"))
        for one in pictures.values()
    ]
    assert drawn == [(1, 1, 1), (0, 0, 1), (1, 0, 1)]


def test_of_very_many_segments_the_longest_are_drawn_and_the_rest_counted(tmp_path: Path) -> None:
    segments = [
        {"address": index * 64 * MIB, "total_size": (index + 1) * 1024, "segment_type": "large", "stream": index % 2,
         "blocks": [{"size": (index + 1) * 1024, "state": "active_allocated"}]}
        for index in range(3000)
    ]  # fmt: skip
    path, page = tmp_path / "snapshot.pickle", tmp_path / "page.html"
    path.write_bytes(pickle.dumps({"segments": segments}))
    gpudiag("memory", path, "--html", page)
    text = page.read_text()
    assert text.count("1460 more, not longer, are not drawn.") == 2
    assert "2.93 MiB</text>" in text
    assert len(text) < 60_000


def test_an_empty_snapshot_has_a_page_too(tmp_path: Path) -> None:
    path, page = tmp_path / "snapshot.pickle", tmp_path / "page.html"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    shown = gpudiag("memory", path, "--html", page)
    assert shown.output.startswith("reserved 0 B")
    assert "reserved 0 B" in page.read_text()


def test_code_in_a_snapshot_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert "refused: the snapshot asks for os.system" in str(gpudiag("memory", path).exception)
