"""Shell completion: the scripts, and what they get when they ask."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command_line import Gpudiag
from programs import require


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(gpudiag: Gpudiag, shell: str) -> None:
    outcome = gpudiag("completion", shell)
    assert outcome.code == 0
    assert "_GPUDIAG_COMPLETE" in outcome.out


def test_zsh_finds_its_mark_on_the_first_line(gpudiag: Gpudiag) -> None:
    assert gpudiag("completion", "zsh").out.startswith("#compdef gpudiag")


def test_an_unknown_shell_is_a_usage_error(gpudiag: Gpudiag) -> None:
    assert gpudiag("completion", "cmd.exe").code == 2


def _complete(words: str, position: int) -> list[str]:
    environ = {
        **os.environ,
        "COMP_WORDS": words,
        "COMP_CWORD": str(position),
        "_GPUDIAG_COMPLETE": "bash_complete",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "gpudiag"], env=environ, capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    return [line.split(",")[1] for line in ran.stdout.splitlines()]


def test_commands_are_completed_without_importing_them() -> None:
    assert _complete("gpudiag co", 1) == ["compare", "completion"]
    assert "--version" in _complete("gpudiag --", 1)


def test_options_and_values_are_completed() -> None:
    assert _complete("gpudiag import --time", 2) == ["--timezone"]
    assert _complete("gpudiag completion ", 2) == ["bash", "zsh", "fish"]


def test_bash_takes_the_script(gpudiag: Gpudiag) -> None:
    script = gpudiag("completion", "bash").out
    ran = subprocess.run(
        [require("bash"), "-c", f"{script}\ncomplete -p gpudiag"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, "_gpudiag_completion" in ran.stdout) == (0, True), ran.stderr
