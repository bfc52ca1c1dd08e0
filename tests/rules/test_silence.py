"""A job that nobody ended: its report ends where its samples do, not today."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.rules.samples import JobSamples
from gpudiag.rules.silence import SILENT_MS, told_until
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.sqlstore import SqlStore

START_MS = 1_700_000_000_000
GPU = Source("n1", "GPU-a")
JOB = Job("c/1/1", "1", START_MS, None, state="running")
YEAR_MS = 365 * SILENT_MS


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_store(f"sqlite:///{tmp_path}/x.db", node="n1")
    store.put_allocations([Allocation(JOB.key, GPU, START_MS, None, "hook")])
    store.append([Frame(GPU, START_MS + 1000 * i, {"power_watts": 300.0}) for i in range(600)])
    yield store
    store.close()


def until(store: SqlStore, now_ms: int, job: Job = JOB) -> int:
    return told_until(store, job, store.allocations(job.key), now_ms)


def test_a_node_that_went_away_a_year_ago_does_not_stretch_its_job(stored: SqlStore) -> None:
    end_ms = until(stored, START_MS + YEAR_MS)
    assert 600_000 <= end_ms - START_MS <= 600_000 + SILENT_MS
    samples = JobSamples.read(stored, JOB, START_MS + YEAR_MS)
    assert samples.silent
    assert samples.seconds <= 86_400 + 600


def test_a_job_that_is_measured_runs_until_now(stored: SqlStore) -> None:
    now_ms = START_MS + YEAR_MS
    stored.append([Frame(GPU, now_ms - SILENT_MS + 5000, {"power_watts": 300.0})])
    assert until(stored, now_ms) == now_ms


def test_a_short_outage_is_part_of_the_job(stored: SqlStore) -> None:
    now_ms = START_MS + SILENT_MS
    assert until(stored, now_ms) == now_ms
    assert not JobSamples.read(stored, JOB, now_ms).silent


def test_what_other_devices_measured_does_not_count(stored: SqlStore) -> None:
    now_ms = START_MS + YEAR_MS
    stored.append([Frame(Source("n1", "GPU-b"), now_ms - 1000, {"power_watts": 300.0})])
    assert until(stored, now_ms) <= START_MS + 600_000 + SILENT_MS


def test_a_job_that_ended_ends_when_it_did(stored: SqlStore) -> None:
    ended = Job(JOB.key, "1", START_MS, START_MS + 10 * YEAR_MS)
    assert until(stored, START_MS, ended) == ended.end_ms
