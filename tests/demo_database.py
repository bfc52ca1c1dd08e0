"""The database of the demo, made once for all tests that read a whole job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpudiag.cli.demo import simulate

CPU_SECONDS: dict[str, float] = {}


@pytest.fixture(scope="session")
def demo_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a SQLite database that the demo's simulation left. Read only, please.

    `CPU_SECONDS[url]` is what making it took.
    """
    path: Path = tmp_path_factory.mktemp("demo") / "demo.db"
    url = f"sqlite:///{path}"
    started = time.process_time()
    simulate(url)
    CPU_SECONDS[url] = time.process_time() - started
    return url
