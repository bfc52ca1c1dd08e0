"""The Debian package: built from the wheel, installed into a clean tree, upgraded, removed, purged."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from programs import missing, require

ROOT = Path(__file__).parents[1]
SYSTEM_PYTHON = Path("/usr/bin/python3")
DPKG_FORCES = ("--force-depends", "--force-not-root", "--force-script-chrootless")

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the build script makes it."""
    require("dpkg-deb")
    if not SYSTEM_PYTHON.exists():
        missing("no system Python to build for")
    folder = tmp_path_factory.mktemp("debian")
    wheel = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(wheel, check=True, capture_output=True, timeout=200)
    (built,) = folder.glob("*.whl")
    build = [str(ROOT / "deploy/debian/build"), str(SYSTEM_PYTHON), str(built), str(folder)]
    environ = {**os.environ, "PIP": f"{sys.executable} -m pip"}
    done = subprocess.run(build, env=environ, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same content as a later version."""
    folder = tmp_path_factory.mktemp("newer")
    subprocess.run(["dpkg-deb", "-R", str(package), str(folder / "tree")], check=True)
    control = folder / "tree/DEBIAN/control"
    control.write_text(control.read_text().replace("Version: ", "Version: 99."))
    made = folder / "newer.deb"
    subprocess.run(
        ["dpkg-deb", "-Znone", "--root-owner-group", "-b", str(folder / "tree"), str(made)], check=True
    )
    return made


def dpkg(tree: Path, *arguments: str) -> None:
    command = ["dpkg", f"--root={tree}", *DPKG_FORCES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def gpudiag(tree: Path, *arguments: str) -> str:
    command = [str(tree / "usr/lib/gpudiag/bin/python"), "-I", str(tree / "usr/bin/gpudiag"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_install_upgrade_remove_purge(package: Path, newer: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "var/lib/dpkg/updates").mkdir(parents=True)
    (tree / "var/lib/dpkg/info").mkdir()
    for name in ("status", "available"):
        (tree / "var/lib/dpkg" / name).touch()

    dpkg(tree, "--install", str(package))
    assert gpudiag(tree, "--version").startswith("gpudiag, version ")
    config = tree / "etc/gpudiag/gpudiag.toml"
    shown = gpudiag(tree, "agent", "--config", str(config), "--print-config")
    assert 'url = "sqlite:////var/lib/gpudiag/gpudiag.db"' in shown
    unit = (tree / "usr/lib/systemd/system/gpudiag-agent.service").read_text()
    assert unit == (ROOT / "systemd/gpudiag-agent.service").read_text()

    data = tree / "var/lib/gpudiag/gpudiag.db"
    data.parent.mkdir(parents=True)
    data.write_text("samples")
    config.write_text('[agent]\nnode = "mine"\n')
    dpkg(tree, "--install", str(newer))
    assert (data.read_text(), config.read_text()) == ("samples", '[agent]\nnode = "mine"\n')

    dpkg(tree, "--remove", "gpudiag")
    assert not (tree / "usr/bin/gpudiag").exists()
    assert (data.exists(), config.exists()) == (True, True)
    dpkg(tree, "--purge", "gpudiag")
    assert (data.exists(), config.exists()) == (False, False)


POSTINST = """
mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec sh {script} configure {before}
"""


def shim(folder: Path, name: str, lines: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Folder of commands: systemd's write down what they are asked, gpudiag is the real one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("systemctl", "systemd-sysusers"):
        shim(folder, name, f'echo "{name} $*" >>{tmp_path}/asked')
    shim(folder, "runuser", f'echo "as $2: $4 $5 $6" >>{tmp_path}/asked; shift 3; exec "$@"')
    shim(folder, "gpudiag", f'exec {sys.executable} -m gpudiag "$@"')
    return folder


def configure(system: Path, database: Path, before: str) -> subprocess.CompletedProcess[str]:
    """Run the script as dpkg does, in a mount namespace that looks as if systemd ran."""
    script = ROOT / "deploy/debian/postinst"
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GPUDIAG_")},
        "PATH": f"{system}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "GPUDIAG_STORAGE__URL": f"sqlite:///{database}",
    }
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("may not make a mount namespace here")
    command = ["unshare", "--mount", "sh", "-c", POSTINST.format(script=script, before=before)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def schema(database: Path) -> int:
    connection = sqlite3.connect(database)
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    connection.close()
    return version


def test_an_upgrade_stops_the_agent_upgrades_the_schema_and_starts_it_again(
    system: Path, tmp_path: Path
) -> None:
    database = tmp_path / "old.db"
    with sqlite3.connect(database) as connection:
        connection.executescript((ROOT / "tests/storage/data/first_schema.sql").read_text())
    connection.close()
    assert schema(database) == 1
    done = configure(system, database, "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert schema(database) > 1
    assert (tmp_path / "asked").read_text().splitlines() == [
        "systemd-sysusers gpudiag.conf",
        "systemctl daemon-reload",
        "systemctl --quiet is-active gpudiag-agent.service",
        "systemctl stop gpudiag-agent.service",
        "as gpudiag: gpudiag db upgrade",
        "systemctl start gpudiag-agent.service",
    ]


def test_a_schema_that_cannot_be_upgraded_does_not_break_the_installation(
    system: Path, tmp_path: Path
) -> None:
    database = tmp_path / "strange.db"
    database.write_bytes(b"not a database" * 100)
    done = configure(system, database, "0.1")
    assert (done.returncode, "is not upgraded" in done.stderr) == (0, True)
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "systemctl start gpudiag-agent.service"


def test_a_first_installation_enables_the_service_and_touches_no_database(
    system: Path, tmp_path: Path
) -> None:
    assert configure(system, tmp_path / "none.db", "").returncode == 0
    assert (tmp_path / "asked").read_text().splitlines()[-1] == (
        "systemctl enable --now gpudiag-agent.service gpudiag-prune.timer"
    )
    assert not (tmp_path / "none.db").exists()
