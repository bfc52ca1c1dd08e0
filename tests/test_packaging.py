"""The wheel and the source archive hold everything that git tracks in the four packages."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "rules", "storage", "cli")


def tracked(*folders: str) -> set[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listing.stdout.split("\0") if name}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is tracked, as it is in the working tree now: links kept, nothing generated."""
    folder = tmp_path_factory.mktemp("clone")
    for name in tracked():
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():
            target.write_bytes(source.read_bytes())
    return folder


@pytest.fixture(scope="module")
def built(clone: Path) -> Path:
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(clone / "out"), str(clone)], check=True)
    return clone / "out"


def test_the_wheel_is_complete(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = {name for name in tracked(*PACKAGES) if f"gpudiag/{name}" not in names}
    assert not missing
    assert {"gpudiag/py.typed", "gpudiag/errors.py", "gpudiag/__main__.py"} <= names


def test_the_source_archive_is_complete(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        names = {name.split("/", 1)[-1] for name in source.getnames()}
    assert not {name for name in tracked(*PACKAGES) if f"src/gpudiag/{name}" not in names}


def test_the_installed_wheel_runs(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    shown = subprocess.run(
        [sys.executable, "-m", "gpudiag", "--version"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith("gpudiag, version 0.")
