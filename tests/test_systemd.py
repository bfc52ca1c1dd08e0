"""The unit file, judged by systemd's own tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from programs import require

UNITS = Path(__file__).resolve().parents[1] / "systemd"
UNIT = "gpudiag-agent.service"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The unit with a command that exists here: verify would complain about a missing program."""
    text = (UNITS / UNIT).read_text().replace("/usr/bin/gpudiag", "/bin/true")
    (tmp_path / UNIT).write_text(text)
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [require("systemd-analyze"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.integration
def test_verify_has_nothing_to_say(folder: Path) -> None:
    done = analyze("verify", str(folder / UNIT))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.integration
def test_the_daily_pruning_is_a_sound_unit_too(tmp_path: Path) -> None:
    for name in ("gpudiag-prune.service", "gpudiag-prune.timer"):
        (tmp_path / name).write_text((UNITS / name).read_text().replace("/usr/bin/gpudiag", "/bin/true"))
    for name in ("gpudiag-prune.service", "gpudiag-prune.timer"):
        done = analyze("verify", str(tmp_path / name))
        assert (done.returncode, done.stderr) == (0, "")
    done = analyze(
        "security", "--no-pager", "--offline=yes", "--threshold=25", str(tmp_path / "gpudiag-prune.service")
    )
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.integration
def test_exposure_is_at_most_2_5(folder: Path) -> None:
    done = analyze("security", "--no-pager", "--offline=yes", "--threshold=25", str(folder / UNIT))
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.integration
@pytest.mark.parametrize("drop_in", sorted(UNITS.glob("*.d/*.conf")), ids=lambda path: path.name)
def test_drop_ins_fit_the_unit(folder: Path, drop_in: Path) -> None:
    (folder / f"{UNIT}.d").mkdir()
    (folder / f"{UNIT}.d" / drop_in.name).write_text(drop_in.read_text())
    done = analyze("verify", str(folder / UNIT))
    assert (done.returncode, done.stderr) == (0, "")
    assert analyze("security", "--offline=yes", "--threshold=40", str(folder / UNIT)).returncode == 0
