"""Wrote `first_schema.sql` with the program of schema 1: kept to show how, not to be run again."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding

START_MS = 1_764_504_000_000
GPU = Source("node1", "GPU-0")


def main(path: Path) -> None:
    """A sealed window, an unsealed one, and one row of everything else."""
    store = open_store(f"sqlite:///{path}", node="node1", agent=True)
    for first in range(0, 960, 60):
        frames = [
            Frame(GPU, START_MS + 1000 * s, {"sm_active_ratio": s % 10 / 10, "power_watts": 300.0 + s % 7})
            for s in range(first, first + 60, 10)
        ]
        store.append(frames)
    job = Job("c1/42/1764504000", "42", START_MS, START_MS + 900_000, "c1", state="completed", user="ann")
    store.put_job(job)
    store.put_allocations([Allocation(job.key, GPU, START_MS, job.end_ms, "cgroup")])
    store.put_devices([Device(GPU, START_MS, index=0, model="H100")])
    store.put_events([Event(GPU, START_MS + 5, "xid", 79)])
    store.put_findings(
        [StoredFinding("util/hung", GPU, START_MS, START_MS + 9, "critical", job.key, {"a": 1})]
    )
    store.close()
    connection = sqlite3.connect(path)
    version, application = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
    )
    dump = [
        f"PRAGMA user_version={version};",
        f"PRAGMA application_id={application};",
        *connection.iterdump(),
    ]
    Path(__file__).with_suffix(".sql").write_text("\n".join(dump) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
