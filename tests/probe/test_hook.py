"""The start-up hook: no change to the program, no error in it, no delay, and the right numbers sent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from probe_listener import Launch, Listener


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


def test_the_program_sees_its_own_peaks_although_they_are_reset(
    launch: Launch, listener: Listener, fake_torch: Path
) -> None:
    code = """
import time, torch
time.sleep(2.5)
print(torch.memory.resets >= 1, torch.cuda.memory_stats()["allocated_bytes.all.peak"])
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.memory_stats()["allocated_bytes.all.peak"])
"""
    process = launch(sys.executable, code, listener.path, fake_torch)
    first = listener.receive(lambda message: bool(message["devices"]))["devices"][0]
    assert first == {
        "index": 0, "uuid": "GPU-1111-22", "allocated_bytes": 700, "reserved_bytes": 900,
        "inactive_split_bytes": 50, "alloc_retries": 2, "ooms": 0, "allocator": 0,
    }  # fmt: skip
    second = listener.receive(lambda message: bool(message["devices"]))["devices"][0]
    assert second["allocated_bytes"] == 300
    assert finish(process).split() == ["True", "700", "300"]


def test_cuda_that_the_program_did_not_initialise_is_left_alone(
    launch: Launch, listener: Listener, fake_torch: Path
) -> None:
    code = "import torch, time\ntorch.cuda.initialized = False\ntime.sleep(1.5)\nprint(torch.memory.resets)"
    assert finish(launch(sys.executable, code, listener.path, fake_torch)).strip() == "0"


def test_a_program_without_an_agent_or_torch_runs_as_always(launch: Launch, tmp_path: Path) -> None:
    began = time.monotonic()
    process = launch(
        sys.executable, "import sys\nprint('done', 'torch' in sys.modules)", tmp_path / "nobody.sock"
    )
    assert finish(process).split() == ["done", "False"]
    assert time.monotonic() - began < 10


def test_torch_with_nothing_to_listen_to_is_survived(
    launch: Launch, listener: Listener, tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/torch.py").write_text("version = 1\n")
    code = "import torch\nprint(torch.version, type(torch.__loader__).__name__)"
    shown = finish(launch(sys.executable, code, listener.path, tmp_path / "bare"))
    assert shown.split() == ["1", "SourceFileLoader"]


def test_the_sitecustomize_that_was_there_still_runs(
    launch: Launch, listener: Listener, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 'ran'\n")
    assert finish(launch(sys.executable, "print(theirs)", listener.path, tmp_path / "site")).strip() == "ran"


def test_the_exit_code_and_a_crash_are_the_programs_own(
    launch: Launch, listener: Listener, fake_torch: Path
) -> None:
    process = launch(sys.executable, "import torch\nraise SystemExit(7)", listener.path, fake_torch)
    process.communicate(timeout=60)
    assert process.returncode == 7
    process = launch(sys.executable, "import os, torch\nos.kill(os.getpid(), 9)", listener.path, fake_torch)
    process.communicate(timeout=60)
    assert process.returncode == -9


def test_an_agent_that_restarts_is_found_again(launch: Launch, tmp_path: Path, fake_torch: Path) -> None:
    path = tmp_path / "probe.sock"
    first = Listener(path)
    process = launch(sys.executable, "import torch, time\ntime.sleep(60)", path, fake_torch)
    first.receive(lambda message: bool(message["devices"]))
    first.channel.close()
    path.unlink()
    second = Listener(path)
    assert second.receive(lambda message: bool(message["devices"]))["pid"] == process.pid
    second.channel.close()


def test_what_was_marked_before_an_agent_listened_is_told_to_it(
    launch: Launch, tmp_path: Path, fake_torch: Path
) -> None:
    code = "import gpudiag_probe, sys, time\ngpudiag_probe.mark('train_start')\nprint('said', flush=True)\ntime.sleep(60)"
    process = launch(sys.executable, code, tmp_path / "late.sock", fake_torch)
    assert process.stdout is not None
    assert process.stdout.readline() == "said\n"
    time.sleep(1.5)  # its first message finds nobody
    listener = Listener(tmp_path / "late.sock")
    try:
        message = listener.receive(lambda m: bool(m["marks"]))
    finally:
        listener.channel.close()
        process.kill()
    assert [name for name, _ in message["marks"]] == ["train_start"]
