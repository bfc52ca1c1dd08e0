from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from gpudiag.cli.main import cli

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated; "
    "3.03 GiB free; 1.24 GiB reserved in total by PyTorch)"
)


def test_json_names_every_number_and_leaves_absent_ones_null() -> None:
    shown = CliRunner().invoke(
        cli,
        ["oom", "-", "--json"],
        input=f"epoch 1\n{MESSAGE}\nslurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n",
    )
    first, second = json.loads(shown.output)["messages"]
    assert (first["kind"], first["device"], first["text_line"]) == ("fragmentation", 0, 2)
    assert first["reserved_bytes"] == round(1.24 * 2**30)
    assert first["process_bytes"] is None
    assert second["kind"] == "cgroup_oom"
    assert second["requested_bytes"] is None


def test_text_says_kind_numbers_and_advice() -> None:
    shown = CliRunner().invoke(cli, ["oom", "-"], input=f"{MESSAGE}\n" * 2)
    assert shown.exit_code == 0
    assert shown.output.startswith("fragmentation (line 1, GPU 0, 2 times)")
    assert "requested 2.26 GiB" in shown.output
    assert "expandable_segments:True" in shown.output


def test_any_bytes_are_read_and_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    bar = b"".join(b"\r%d%%" % done for done in range(100))
    log.write_bytes(b"\xff\xfe broken\r\n" + bar + b"\n\x00\n" + MESSAGE.encode() + b"\r\n")
    shown = CliRunner().invoke(cli, ["oom", str(log), "--json"])
    [message] = json.loads(shown.output)["messages"]
    assert (message["text_line"], message["requested_bytes"]) == (4, round(2.26 * 2**30))


def test_a_log_without_a_message_is_not_found(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("all is well\n")
    shown = CliRunner().invoke(cli, ["oom", str(log)], standalone_mode=False)
    assert "no out-of-memory message found" in str(shown.exception)
