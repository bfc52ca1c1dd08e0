"""Running a command as a person does, in this process: exit code, stdout, stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpudiag.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Gpudiag = Callable[..., Outcome]


@pytest.fixture
def gpudiag(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Outcome]]:
    """`gpudiag("report", "--job", "42")`, with a database of its own and times in UTC."""
    monkeypatch.setenv("GPUDIAG_DB", f"sqlite:///{tmp_path}/gpudiag.db")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    yield run
    monkeypatch.undo()
    time.tzset()
