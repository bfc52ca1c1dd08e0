"""The two views that people read with SQL, the same on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from sqlalchemy import text

from gpudiag.storage.frozen import FrozenReport
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.upgrade import upgrade

from .conftest import NODE, START_MS  # isort: skip

GPUS = [Source(NODE, "GPU-0"), Source(NODE, "GPU-1")]
END_MS = START_MS + 600_000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def filled(request: pytest.FixtureRequest) -> Iterator[SqlStore]:
    """Ten minutes of a job on two GPUs: half a minute is missing, the origin changes, and one job has no end."""
    if request.param == "sqlite":
        opened: SqlStore = request.getfixturevalue("store")
    else:
        url = request.getfixturevalue("postgres_url")
        upgrade(url, START_MS)
        opened = open_store(url, node=NODE)
    opened.append([
        Frame(gpu, START_MS + 1000 * second, {"sm_active_ratio": (second // 60) / 10}, {"sm_active_ratio": origin})
        for second in range(600)
        for gpu in GPUS
        if not 60 <= second < 90
        for origin in ["gpm" if second < 540 else "dcgm"]
    ])  # fmt: skip
    opened.append([Frame(Source(NODE, "node"), START_MS, {"cpu_busy_ratio": 0.5})])
    opened.seal(START_MS + WINDOW_MS)
    job = Job("c/42/1", "42", START_MS, END_MS, "c", "", "train", "ann", "failed", 1)
    opened.put_job(job)
    opened.put_job(Job("c/43/1", "43", START_MS + 5))
    opened.put_allocations([Allocation(job.key, gpu, START_MS, END_MS, "cgroup") for gpu in GPUS])
    opened.put_report(FrozenReport(job.key, 1, END_MS, "0.1 GPU-hours lost", 0.1, {}))
    yield opened
    if request.param == "postgres":
        opened.close()


def query(store: SqlStore, sql: str) -> list[dict[str, object]]:
    with store.database.reading() as connection:
        return [dict(row) for row in connection.execute(text(sql)).mappings()]


def test_gpu_minute_has_a_row_per_minute_device_and_metric(filled: SqlStore) -> None:
    rows = query(
        filled,
        "SELECT time, unix_seconds, node, origin, mean, min, max, count FROM gpu_minute "
        "WHERE metric = 'sm_active_ratio' AND device = 'GPU-0' ORDER BY unix_seconds",
    )
    assert len(rows) == 10
    second = rows[1]
    moment = second.pop("time")
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    assert moment == datetime.fromtimestamp(START_MS / 1000 + 60, timezone.utc)
    assert second == {
        "unix_seconds": START_MS // 1000 + 60, "node": NODE, "origin": "gpm", "mean": pytest.approx(0.1), "min": 0.1, "max": 0.1,
        "count": 30,
    }  # fmt: skip
    assert rows[9]["origin"] == "dcgm"


def test_gpu_minute_shows_hosts_too(filled: SqlStore) -> None:
    rows = query(filled, "SELECT mean FROM gpu_minute WHERE metric = 'cpu_busy_ratio'")
    assert [row["mean"] for row in rows] == [0.5]


def test_job_summary_is_one_row_per_job(filled: SqlStore) -> None:
    rows = query(filled, "SELECT * FROM job_summary ORDER BY job_id")
    assert [row["job_id"] for row in rows] == ["42", "43"]
    job = rows[0]
    del job["start_time"], job["end_time"]
    mean = job.pop("sm_active_ratio")
    assert job == {
        "job_key": "c/42/1", "job_id": "42", "cluster": "c", "user_name": "ann", "name": "train", "state": "failed",
        "exit_code": 1, "nodes": 1, "gpus": 2, "gpu_hours": pytest.approx(2 * 600 / 3600),
        "verdict": "0.1 GPU-hours lost", "lost_gpu_hours": 0.1,
    }  # fmt: skip
    gpm = [(second // 60) / 10 for second in range(540) if not 60 <= second < 90]
    assert mean == pytest.approx(sum(gpm) / len(gpm))  # the origin that measured most, not a mean of two
    assert rows[1]["gpus"] is rows[1]["sm_active_ratio"] is rows[1]["verdict"] is None


def test_pandas_style_reading_needs_no_knowledge_of_chunks(filled: SqlStore) -> None:
    rows = query(
        filled,
        "SELECT job_id, avg(mean) AS mean FROM gpu_minute JOIN allocation ON allocation.job_key = 'c/42/1' "
        "JOIN source ON source.id = allocation.source_id AND source.device = gpu_minute.device "
        "JOIN job_summary ON job_summary.job_key = allocation.job_key "
        "WHERE metric = 'sm_active_ratio' AND origin = 'gpm' GROUP BY job_id",
    )
    assert rows == [{"job_id": "42", "mean": pytest.approx(0.4)}]
