"""The command as a whole: what --help says and how fast, exit codes, and that no mistake ends in a traceback."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from command_line import Gpudiag

from gpudiag import __version__
from gpudiag.cli import main as program
from gpudiag.errors import (
    CorruptStoreError,
    GpudiagError,
    InputError,
    LocatedError,
    NotFoundError,
    Problem,
    SchemaError,
    StoreBusyError,
    UnavailableError,
)

HEAVY = {"numpy", "sqlalchemy", "rich", "alembic", "psutil", "pynvml", "yaml", "prometheus_client", "psycopg"}


def test_help_lists_every_command(gpudiag: Gpudiag) -> None:
    out = gpudiag("--help").out
    assert all(f"  {name} " in out for name in program.COMMANDS)


def test_version(gpudiag: Gpudiag) -> None:
    assert __version__ in gpudiag("--version").out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gpudiag.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(ran.stderr))
    assert not loaded & HEAVY


def test_help_is_there_within_a_fifth_of_a_second() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gpudiag", "--help"], capture_output=True, check=True)
        return time.perf_counter() - started

    # the quickest counts: a busy machine is no slow command
    assert any(seconds() <= 0.2 for _ in range(20))


@pytest.mark.parametrize("name", sorted(program.COMMANDS))
def test_each_command_has_help(gpudiag: Gpudiag, name: str) -> None:
    outcome = gpudiag(name, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: gpudiag {name}")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GpudiagError("a"), 1),
        (InputError("a"), 2),
        (LocatedError([Problem("rules.yaml", 3, 5, "unknown key", "sevrity: info")]), 2),
        (NotFoundError("a"), 4),
        (UnavailableError("a"), 5),
        (SchemaError("a"), 5),
        (CorruptStoreError("a"), 5),
        (StoreBusyError("a"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(program.cli, "get_command", lambda *_: click.Command("fail", callback=fail))
    with pytest.raises(SystemExit) as exit_:
        program.main(["fail"])
    assert exit_.value.code == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if isinstance(error, GpudiagError):
        assert err == f"gpudiag: {error}\n"


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("report", "--no-such-option"), ("report",), ("--frobnicate",)],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(gpudiag: Gpudiag, arguments: tuple[str, ...]) -> None:
    outcome = gpudiag(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        outcome = subprocess.run(
            [sys.executable, "-m", "gpudiag", "rules", "list"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert outcome.returncode == 1
    assert outcome.stderr.splitlines() == ["gpudiag: [Errno 28] No space left on device"]


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "gpudiag", "estimate", "myths"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    os.close(writing)
    assert "Traceback" not in ran.stderr
