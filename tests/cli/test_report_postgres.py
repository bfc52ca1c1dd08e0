"""The same samples give the same report, to the byte, from SQLite and from Postgres."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpudiag.cli.main import cli
from gpudiag.storage.forward import Forwarder
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.open import open_sql_reader, open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding
from gpudiag.storage.upgrade import upgrade

pytestmark = pytest.mark.integration
START = 1_764_504_000


class Clock:
    def now_ms(self) -> int:
        return 1000 * (START + 5000)


def frames_of(node: str, first: int, last: int) -> list[Frame]:
    """Two GPUs that wait for input a quarter of the time, their node and their job's share of it."""
    found = []
    for second in range(first, last):
        time_ms = 1000 * (START + second) + second % 3
        waits = second % 40 < 10
        for index in range(2):
            busy = 0.05 if waits else 0.8 + (second * 7919 + index) % 997 / 1e4
            values = {
                "sm_active_ratio": busy, "gpu_util_ratio": min(1.0, busy * 1.2), "power_watts": 100 + 500 * busy,
                "memory_used_bytes": 2.0**35, "memory_total_bytes": 80 * 2.0**30, "processes": 1.0,
            }  # fmt: skip
            found.append(
                Frame(Source(node, f"GPU-{node}-{index}"), time_ms, values, {"sm_active_ratio": "gpm"})
            )
        found.append(Frame(Source(node, "node"), time_ms, {"cpu_busy_ratio": 0.9 if waits else 0.4}))
        own = {"loader_workers": 4.0, "loader_cpu_ratio": 0.97 if waits else 0.8, "job_cpus_allowed": 16.0}
        found.append(Frame(Source(node, f"job:local/42/{START}"), time_ms, own))
    return found


def filled(tmp_path: Path, node: str) -> str:
    url = f"sqlite:///{tmp_path}/{node}.db"
    store = open_store(url, node=node, agent=True)
    for first in range(0, 2400, 60):
        store.append(frames_of(node, first, first + 60))
    job = Job(f"local/42/{START}", "42", 1000 * START, 1000 * (START + 2400), state="completed", user="ann")
    gpus = [Source(node, f"GPU-{node}-{index}") for index in range(2)]
    store.put_devices([Device(gpu, job.start_ms, index=i, model="H100") for i, gpu in enumerate(gpus)])
    store.put_allocations([Allocation(job.key, gpu, job.start_ms, job.end_ms, "cgroup") for gpu in gpus])
    store.put_events([Event(gpus[0], job.start_ms + 70_000, "xid", 31)])
    store.put_job(job)
    store.close()
    return url


def report(url: str) -> str:
    arguments = ["report", "--job", "42", "--json", "--db", url]
    return CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False).output


def forward(url: str, sink: str, node: str) -> None:
    forwarder = Forwarder(url, sink, node, Clock())
    assert forwarder.round().error == ""
    forwarder.close()


def test_one_nodes_report_is_the_same_to_the_byte(tmp_path: Path, postgres_url: str) -> None:
    upgrade(postgres_url, 1000 * START)
    local = filled(tmp_path, "n1")
    forward(local, postgres_url, "n1")
    expected = report(local)
    assert '"findings"' in expected
    assert report(postgres_url) == expected


def test_a_job_of_two_nodes_is_one_report(tmp_path: Path, postgres_url: str) -> None:
    upgrade(postgres_url, 1000 * START)
    for node in ("n1", "n2"):
        forward(filled(tmp_path, node), postgres_url, node)
    found = json.loads(report(postgres_url))
    assert found["job"]["nodes"] == ["n1", "n2"]
    assert (found["coverage"]["devices_allocated"], found["coverage"]["devices_measured"]) == (4, 4)
    assert found["waterfall"]["total_gpu_hours"] == pytest.approx(4 * 2400 / 3600)


KEYS = (f"local/42/{START}", f"local/42/{START + 1000}", f"local/7/{START + 200}", "c2/a b's/9")


def filled_with_jobs(tmp_path: Path) -> str:
    """A requeued job, one beside it on a shared GPU, one that still runs, and findings that are open."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_store(url, node="n1", agent=True)
    for first in range(0, 2400, 60):
        store.append(frames_of("n1", first, first + 60))
    spans = ((0, 900), (1000, 2400), (200, 1500), (100, None))
    gpus = [Source("n1", f"GPU-n1-{index}") for index in range(2)]
    for number, (key, (first, last)) in enumerate(zip(KEYS, spans, strict=True)):
        end_ms = None if last is None else 1000 * (START + last)
        state = "running" if last is None else "completed"
        name = key.split("/")[1]
        store.put_job(
            Job(
                key,
                name,
                1000 * (START + first),
                end_ms,
                raw_id=name,
                state=state,
                restart=number == 1,
                name="ü",
            )
        )
        own = gpus if number < 2 else gpus[1:]
        store.put_allocations([Allocation(key, gpu, 1000 * (START + first), end_ms, "cgroup") for gpu in own])
        store.put_findings(
            [
                StoredFinding(
                    "util/hung", gpus[0], 1000 * (START + first), end_ms, "critical", key, {"a": [1.5, None]}
                )
            ]
        )
    store.put_devices([Device(gpu, 1000 * START, index=i, model="H100") for i, gpu in enumerate(gpus)])
    store.put_events(
        [Event(gpus[i % 2], 1000 * START + 70_000, "xid", 31, i, {"text": "é\\"}) for i in range(4)]
    )
    store.close()
    return url


def test_every_command_says_the_same_of_many_jobs(tmp_path: Path, postgres_url: str) -> None:
    upgrade(postgres_url, 1000 * START)
    local = filled_with_jobs(tmp_path)
    forward(local, postgres_url, "n1")
    commands = [
        *(("report", "--job", key, "--json") for key in KEYS[:3]),
        ("report", "--job", "42", "--run", "1"),
        ("report", "--job", "7", "--markdown"),
        ("jobs", "--json", "--state", "completed"),
        ("compare", "42", "7", "--json"),
    ]
    for command in commands:
        outputs = [output(command, url) for url in (local, postgres_url)]
        assert outputs[0] == outputs[1], command
        assert len(outputs[0]) > 100
    readers = [open_sql_reader(url) for url in (local, postgres_url)]
    assert readers[0].findings(0, 2**60) == readers[1].findings(0, 2**60)
    assert len(readers[0].findings(0, 2**60)) == 4
    for reader in readers:
        reader.close()


def output(command: tuple[str, ...], url: str) -> str:
    result = CliRunner().invoke(cli, [*command, "--db", url], catch_exceptions=False, standalone_mode=False)
    assert result.exit_code == 0
    return result.output
