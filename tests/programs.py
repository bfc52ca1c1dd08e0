"""Finding the real programs that integration tests start."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/sbin", "/sbin", "/usr/local/sbin")


def require(name: str) -> str:
    """Path of a program. Missing: the test is skipped with the reason, or fails when GPUDIAG_CI is set."""
    found = shutil.which(name) or next(
        (str(path) for place in _PLACES for path in sorted(Path("/").glob(f"{place[1:]}/{name}"))), None
    )
    if found:
        return found
    return missing(f"{name} is not installed")


def missing(reason: str) -> str:
    """Skip for this reason on a person's machine, fail in CI."""
    if os.environ.get("GPUDIAG_CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A TCP port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
