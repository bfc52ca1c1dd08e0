"""The `golden` fixture: compares text with a file of the repository, or rewrites it when GPUDIAG_WRITE_GOLDEN is set."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """`golden("tests/golden/x.txt", text)`: the path is relative to the repository."""
    return compare


def compare(name: str, text: str) -> None:
    """Fail with a difference by lines unless the file holds exactly this text."""
    path = ROOT / name
    if os.environ.get("GPUDIAG_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text.splitlines() == expected.splitlines(), f"{name} differs; `make golden` rewrites it"
