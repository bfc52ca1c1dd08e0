"""`gpudiag job start|end`, as a Prolog and an Epilog call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

PROLOG = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_GPUS": "0,1",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SLURM_CLUSTER_NAME": "c1",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_NODELIST": "n[1-2]",
}


def call(tmp_path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpudiag", "job", *arguments, "--runtime-dir", str(tmp_path / "run")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def hooks(tmp_path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((tmp_path / "run" / "jobs.d").iterdir())]


def test_a_prolog_says_which_devices_the_job_has(tmp_path: Path) -> None:
    assert call(tmp_path, "start", **PROLOG).returncode == 0
    [hook] = hooks(tmp_path)
    assert (hook["kind"], hook["raw_id"], hook["cluster"], hook["user"]) == ("slurm", "42", "c1", "ada")
    assert hook["devices"] == ["minor:0", "minor:1"]
    assert (hook["start_exact"], hook["end_ms"]) == (False, None)


def test_the_start_that_slurm_tells_is_the_same_on_all_nodes(tmp_path: Path) -> None:
    call(tmp_path, "start", **PROLOG, SLURM_JOB_START_TIME="1767225600")
    [hook] = hooks(tmp_path)
    assert (hook["start_exact"], hook["start_ms"]) == (True, 1_767_225_600_000)


def test_uuids_are_taken_before_numbers(tmp_path: Path) -> None:
    call(tmp_path, "start", **{**PROLOG, "CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b"})
    assert hooks(tmp_path)[0]["devices"] == ["GPU-a", "MIG-b"]


def test_a_job_without_gpus_says_that_nothing_is_known(tmp_path: Path) -> None:
    call(tmp_path, "start", SLURM_JOB_ID="42")
    assert hooks(tmp_path)[0]["devices"] is None


@pytest.mark.parametrize(
    ("environ", "code", "state"),
    [
        ({"SLURM_JOB_EXIT_CODE2": "0:0"}, 0, "completed"),
        ({"SLURM_JOB_EXIT_CODE2": "1:0"}, 1, "failed"),
        ({"SLURM_JOB_EXIT_CODE2": "0:9"}, 137, "failed"),
        ({"SLURM_JOB_EXIT_CODE": "256"}, 1, "failed"),
        ({"SLURM_JOB_EXIT_CODE": "9"}, 137, "failed"),
        ({}, None, ""),
    ],
)
def test_an_epilog_ends_the_run_that_is_open(
    tmp_path: Path, environ: dict[str, str], code: int | None, state: str
) -> None:
    call(tmp_path, "start", **PROLOG)
    start_ms = hooks(tmp_path)[0]["start_ms"]
    assert call(tmp_path, "end", **PROLOG, **environ).returncode == 0
    [hook] = hooks(tmp_path)
    assert hook["start_ms"] == start_ms
    assert hook["end_ms"] >= start_ms
    assert (hook["exit_code"], hook["state"]) == (code, state)


def test_a_requeued_job_gets_a_second_file(tmp_path: Path) -> None:
    call(tmp_path, "start", **PROLOG)
    call(tmp_path, "end", **PROLOG)
    call(tmp_path, "start", **PROLOG)
    first, second = hooks(tmp_path)
    assert first["end_ms"] is not None
    assert second["end_ms"] is None


def test_an_end_without_a_start_says_so(tmp_path: Path) -> None:
    call(tmp_path, "end", **PROLOG)
    assert hooks(tmp_path)[0]["meta"]["start_unknown"] is True


def test_a_failing_hook_does_not_fail_the_prolog(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a directory should be")
    done = call(tmp_path, "start", **PROLOG)
    assert done.returncode == 0
    assert "cannot write the hook file" in done.stderr
    strict = call(tmp_path, "start", "--strict", **PROLOG)
    assert strict.returncode == 1
    assert "Traceback" not in strict.stderr


def test_a_call_without_a_job_is_an_error(tmp_path: Path) -> None:
    done = call(tmp_path, "start")
    assert done.returncode == 2
    assert "no job" in done.stderr


def test_a_prolog_loads_little_since_a_job_waits_for_it(tmp_path: Path) -> None:
    done = call(tmp_path, "start", **PROLOG, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "gpudiag.agent.hook_files" in loaded
    heavy = (
        "sqlalchemy",
        "numpy",
        "yaml",
        "pynvml",
        "psutil",
        "prometheus_client",
        "asyncio",
        "urllib.request",
        "email",
    )
    assert [name for name in heavy if name in loaded] == []


def test_the_scheduler_is_never_called(tmp_path: Path) -> None:
    trap = tmp_path / "bin"
    trap.mkdir()
    for name in ("scontrol", "squeue", "sacct"):
        (trap / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
        (trap / name).chmod(0o755)
    call(tmp_path, "start", **PROLOG, PATH=f"{trap}:{os.environ['PATH']}")
    call(tmp_path, "end", **PROLOG, PATH=f"{trap}:{os.environ['PATH']}")
    assert len(hooks(tmp_path)) == 1
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("code", "counted", "state", "kept"),
    [
        ("0:0", "1", "cancelled", None),
        ("0:0", "0", "completed", 0),
        ("3:0", "1", "failed", 3),
        ("0:0", "", "completed", 0),
    ],
)
def test_a_run_that_slurm_took_off_to_start_it_again_has_not_completed(
    tmp_path: Path, code: str, counted: str, state: str, kept: int | None
) -> None:
    call(tmp_path, "start", **PROLOG, SLURM_JOB_RESTART_COUNT="0")
    call(tmp_path, "end", **PROLOG, SLURM_JOB_RESTART_COUNT=counted, SLURM_JOB_EXIT_CODE2=code)
    [hook] = hooks(tmp_path)
    assert (hook["state"], hook["exit_code"], hook["restart"]) == (state, kept, 0)
    assert (hook["meta"].get("scheduler_state") == "REQUEUED") is (counted == "1")
