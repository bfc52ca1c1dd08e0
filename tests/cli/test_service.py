from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpudiag.cli.service import UNIT, command
from gpudiag.errors import GpudiagError


def service(*arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments)
    if isinstance(result.exception, GpudiagError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_install_writes_unit_drop_in_and_configuration_and_says_why(tmp_path: Path) -> None:
    output = service("install", "--root", str(tmp_path), "--with", "environ").output
    unit = tmp_path / "etc/systemd/system" / UNIT
    assert "ExecStart=/usr/bin/gpudiag agent" in unit.read_text()
    assert "CAP_SYS_PTRACE" in (unit.parent / f"{UNIT}.d/environ.conf").read_text()
    assert (tmp_path / "etc/gpudiag/gpudiag.toml").exists()
    assert f"write {unit}\n    Hardened unit" in output


def test_a_configuration_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    config = tmp_path / "etc/gpudiag/gpudiag.toml"
    config.parent.mkdir(parents=True)
    config.write_text("mine")
    service("install", "--root", str(tmp_path))
    assert config.read_text() == "mine"


def test_dry_run_shows_everything_and_writes_nothing(tmp_path: Path) -> None:
    output = service("install", "--dry-run", "--root", str(tmp_path)).output
    assert "would write" in output
    assert "    | Type=notify" in output
    assert list(tmp_path.iterdir()) == []


def test_uninstall_keeps_data_and_configuration_unless_purged(tmp_path: Path) -> None:
    service("install", "--root", str(tmp_path), "--with", "kernel-log")
    data = tmp_path / "var/lib/gpudiag/gpudiag.db"
    data.parent.mkdir(parents=True)
    data.write_text("samples")
    service("uninstall", "--root", str(tmp_path))
    assert not (tmp_path / "etc/systemd/system" / UNIT).exists()
    assert not (tmp_path / "etc/systemd/system" / f"{UNIT}.d").exists()
    assert data.exists()
    assert (tmp_path / "etc/gpudiag/gpudiag.toml").exists()
    service("uninstall", "--root", str(tmp_path), "--purge")
    assert not data.exists()
    assert not (tmp_path / "etc/gpudiag").exists()


def test_on_a_live_system_user_and_systemctl_are_part_of_it() -> None:
    output = service("install", "--dry-run").output
    assert "would run systemctl daemon-reload" in output
    assert f"would enable and start {UNIT}" in output
    assert f"would enable and start {UNIT}" not in service("install", "--dry-run", "--no-start").output


def test_an_unknown_drop_in_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(GpudiagError, match="drop-ins are environ, kernel-log and forward"):
        service("install", "--root", str(tmp_path), "--with", "nope")


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("in the way")
    with pytest.raises(GpudiagError, match="cannot write"):
        service("install", "--root", str(tmp_path))
