"""kill -9 at random moments, for real: no acknowledged flush is lost or doubled, and the file stays whole."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.storage.open import open_reader

from .conftest import Feed, seconds  # isort: skip

KILLS = 100 if os.environ.get("GPUDIAG_CI") else 20
WRITER = Path(__file__).parent / "writer.py"


@pytest.mark.integration
def test_kill_9_loses_no_acknowledged_flush(url: str, feed: Feed) -> None:
    result = subprocess.run(
        [sys.executable, str(WRITER), url, str(KILLS)],
        env={**os.environ, "PYTHONPATH": "src"},
        stdout=subprocess.PIPE,
        check=True,
    )
    acknowledged = json.loads(result.stdout)
    assert len(acknowledged) >= KILLS
    last = acknowledged[-1]
    check_file(url)
    reader = open_reader(url)
    end_ms = feed.start_ms + 1000 * (last + 120)
    for source in feed.sources:
        block = reader.read(source, feed.start_ms, end_ms)
        found = seconds(block.times_ms)
        assert len(found) == len(set(found))
        assert set(found) >= {second + i for second in acknowledged for i in range(30)}
        watts = dict(zip(found, block.columns["power_watts"], strict=True))
        assert all(
            watts[second] == feed.frame(second, source).values["power_watts"] for second in found[::37]
        )
    events = [event.code for event in reader.events(feed.start_ms, end_ms)]
    assert len(events) == len(set(events))
    assert set(events) >= set(acknowledged)
    reader.close()


def check_file(url: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    sealed = connection.execute("SELECT count(*), count(DISTINCT t0) FROM chunk").fetchone()
    assert sealed[0] == 2 * sealed[1] > 0  # every window once per source
    connection.close()
