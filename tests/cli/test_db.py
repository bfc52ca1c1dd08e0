"""`gpudiag db`, and reports that outlive their samples."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpudiag.cli.database import database_url
from gpudiag.cli.db import command as db
from gpudiag.cli.db import parse_size
from gpudiag.cli.main import cli
from gpudiag.errors import NotFoundError, SchemaError, StoreError
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.schema import SCHEMA_VERSION

DAY = 86_400
NOW = int(time.time())
START = NOW - 2 * DAY - NOW % 900


def invoke(arguments: Sequence[str], command: object = db) -> Result:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False, standalone_mode=False)  # type: ignore[arg-type]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A job of two GPUs, one of them idle, that ended two days ago."""
    url = f"sqlite:///{tmp_path}/gpudiag.db"
    store = open_store(url, node="n1")
    gpus = [Source("n1", f"GPU-{index}") for index in range(2)]
    for first in range(0, 2700, 300):
        store.append([
            Frame(gpu, 1000 * (START + second), values_of(index, second), {"sm_active_ratio": "gpm"})
            for second in range(first, first + 300)
            for index, gpu in enumerate(gpus)
        ])  # fmt: skip
    job = Job(f"local/42/{START}", "42", 1000 * START, 1000 * (START + 2700), state="completed")
    store.put_devices(
        [Device(gpu, 1000 * START, index=index, model="H100") for index, gpu in enumerate(gpus)]
    )
    store.put_allocations([Allocation(job.key, gpu, job.start_ms, job.end_ms, "cgroup") for gpu in gpus])
    store.put_job(job)
    store.close()
    return url


def values_of(index: int, second: int) -> dict[str, float]:
    busy = 0.0 if index else 0.8 + second * 7919 % 100_003 / 1e6
    return {
        "sm_active_ratio": busy, "gpu_util_ratio": busy, "memory_used_bytes": 2.0**34, "power_watts": 100 + 500 * busy,
        "processes": float(not index),
    }  # fmt: skip


def report(url: str, *arguments: str) -> Result:
    return invoke(["report", "--job", "42", "--db", url, *arguments], cli)


def test_a_report_is_frozen_and_answers_when_the_samples_are_gone(url: str) -> None:
    before = json.loads(report(url, "--json").output)
    said = json.loads(invoke(["prune", "--db", url, "--raw-days", "30", "--json"]).output)
    assert (said["frozen_reports"], said["chunks"]) == (1, 0)
    assert "frozen" not in json.loads(report(url, "--json").output)  # the samples are still there
    said = json.loads(invoke(["prune", "--db", url, "--raw-days", "1", "--json"]).output)
    assert (said["frozen_reports"], said["chunks"]) == (0, 6)
    after = json.loads(report(url, "--json").output)
    versions = after.pop("frozen")["rule_versions"]
    assert versions == after["rules"]["versions"]
    assert set(after["rules"]["passed"]) <= set(versions)
    assert after == before
    text = report(url).output
    assert "The samples of this job are no longer all stored: this is its report as frozen at " in text
    assert before["verdict"] in " ".join(text.split())
    assert report(url, "--markdown").output.startswith("```\n")
    with pytest.raises(NotFoundError, match="charts needs the samples"):
        report(url, "--html", "/dev/null")


def test_a_job_is_frozen_before_its_samples_go_whatever_the_wait(url: str) -> None:
    said = json.loads(
        invoke(["prune", "--db", url, "--raw-days", "1", "--freeze-hours", "9999", "--json"]).output
    )
    assert (said["frozen_reports"], said["chunks"]) == (1, 6)


@pytest.mark.parametrize("measured", [False, True])
def test_a_job_that_nobody_ended_is_frozen_once_it_is_silent(url: str, measured: bool) -> None:
    store = open_store(url, node="n1")
    (job,) = store.jobs()
    gpus = [Source("n1", f"GPU-{index}") for index in range(2)]
    store.put_job(replace(job, end_ms=None, state="running", start_ms=job.start_ms))
    store.put_allocations([Allocation(job.key, gpu, job.start_ms, None, "cgroup") for gpu in gpus])
    if measured:
        store.append([Frame(gpus[0], 1000 * (NOW - 60), {"sm_active_ratio": 0.5})])
    store.close()
    said = json.loads(invoke(["prune", "--db", url, "--raw-days", "0.5", "--json"]).output)
    assert said["frozen_reports"] == int(not measured)
    if not measured:
        assert "as frozen at" in report(url).output


def test_a_frozen_report_still_fails_on_its_findings(url: str) -> None:
    live = report(url, "--fail-on", "info").return_value
    invoke(["prune", "--db", url, "--raw-days", "1"])
    assert report(url, "--fail-on", "info").return_value == live == 3
    assert report(url).return_value == 0


def test_status_says_what_is_stored(url: str) -> None:
    found = json.loads(invoke(["status", "--db", url, "--json"]).output)
    assert found["samples"] == 5400
    assert found["rows"]["job"] == 1
    assert found["schema_version"] == 1
    assert "rows: 6 chunk" in invoke(["status", "--db", url]).output


def test_upgrade_of_a_current_database_says_so(url: str) -> None:
    assert invoke(["upgrade", "--db", url]).output.endswith(f"schema {SCHEMA_VERSION}, as before\n")


def test_upgrade_makes_a_new_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert invoke(["upgrade", "--db", url]).output.endswith(f"schema none -> {SCHEMA_VERSION}\n")
    open_store(url, node="n", agent=True).close()


def test_pruning_twice_does_nothing_the_second_time(url: str) -> None:
    invoke(["prune", "--db", url, "--raw-days", "1"])
    assert invoke(["prune", "--db", url, "--raw-days", "1"]).output == "nothing to do\n"


def test_vacuum_gives_space_back(url: str) -> None:
    invoke(["prune", "--db", url, "--raw-days", "1"])
    freed = int(invoke(["vacuum", "--db", url]).output.split()[0])
    assert freed > 0
    assert invoke(["vacuum", "--db", url, "--full"]).output == "0 B given back\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500", 500), ("2KiB", 2048), ("1.5MiB", 1572864), ("20GiB", 20 * 2**30)],
)
def test_sizes_are_written_with_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.integration
def test_a_person_is_told_what_to_do_about_postgres(postgres_url: str) -> None:
    with pytest.raises(SchemaError, match="no gpudiag schema yet: run `gpudiag db upgrade`"):
        report(postgres_url)
    assert invoke(["upgrade", "--db", postgres_url]).output.endswith(f"schema none -> {SCHEMA_VERSION}\n")
    with pytest.raises(NotFoundError):
        report(postgres_url)
    with pytest.raises(StoreError, match="no such database"):
        report(postgres_url + "x")
    assert invoke(["prune", "--db", postgres_url]).output == "nothing to do\n"
    assert json.loads(invoke(["status", "--db", postgres_url, "--json"]).output)["schema"] == SCHEMA_VERSION
    assert "B given back" in invoke(["vacuum", "--db", postgres_url]).output


def test_a_damaged_chunk_does_not_fail_the_report_and_is_named_in_its_coverage(url: str) -> None:
    whole = json.loads(report(url, "--json").output)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE chunk SET data = zeroblob(length(data)) WHERE seq = 3")
    connection.commit()
    connection.close()
    result = report(url, "--json")
    found = json.loads(result.output)
    assert result.return_value == 0
    assert found["coverage"]["ratio"] == pytest.approx(whole["coverage"]["ratio"] - 1 / 6, abs=0.01)
    damaged = found["coverage"]["damaged"]
    assert len(damaged) == 1
    begin, end = (datetime.fromisoformat(damaged[0][key].replace("Z", "+00:00")) for key in ("start", "end"))
    assert begin.timestamp() == START + 900
    assert (end - begin).total_seconds() == pytest.approx(900, abs=1.1)


@pytest.mark.parametrize("name", ["status", "upgrade", "vacuum"])
def test_the_configured_database_is_meant_when_nobody_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("GPUDIAG_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "unused"))
    configured = f"sqlite:///{tmp_path}/configured.db"
    open_store(configured, node="n1").close()
    (tmp_path / "gpudiag.toml").write_text(f'[storage]\nurl = "{configured}"\n')
    said = invoke([name, "--config", str(tmp_path / "gpudiag.toml")])
    assert said.exit_code == 0
    assert not (tmp_path / "unused").exists()
    if name != "vacuum":
        assert "configured.db" in said.output


def test_the_environment_goes_before_the_configured_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudiag.agent.configfile.DEFAULT_PATH", tmp_path / "gpudiag.toml")
    (tmp_path / "gpudiag.toml").write_text(f'[storage]\nurl = "sqlite:///{tmp_path}/configured.db"\n')
    monkeypatch.setenv("GPUDIAG_DB", f"sqlite:///{tmp_path}/mine.db")
    assert "mine.db" in invoke(["upgrade"]).output
    monkeypatch.delenv("GPUDIAG_DB")
    assert "configured.db" in invoke(["upgrade"]).output


def test_every_command_takes_the_configured_database_when_none_is_named(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUDIAG_DB", raising=False)
    monkeypatch.setenv("GPUDIAG_STORAGE__URL", url)
    assert f"{tmp_path}/gpudiag.db" in invoke(["upgrade"]).output
    assert json.loads(invoke(["status", "--json"]).output)["schema"] == SCHEMA_VERSION
    assert "B given back" in invoke(["vacuum"]).output
    assert "42" in invoke(["jobs"], cli).output


def test_a_configured_file_that_is_closed_to_this_user_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed.db"
    closed.touch()
    config = tmp_path / "gpudiag.toml"
    config.write_text(f'[storage]\nurl = "sqlite:///{closed}"\n')
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    home = {"XDG_DATA_HOME": str(tmp_path)}
    assert database_url(None, home, config) == f"sqlite:///{tmp_path}/gpudiag/gpudiag.db"


def test_a_report_is_frozen_by_the_sites_rules_and_prices(url: str, tmp_path: Path) -> None:
    rules = tmp_path / "site.yaml"
    rules.write_text("gpudiag: 1\noverride:\n  - {id: util/allocated-idle, severity: critical}\n")
    config = tmp_path / "gpudiag.toml"
    config.write_text(f'[rules]\npaths = ["{rules}"]\n[cost]\ngpu_hour = 2.0\n')
    invoke(["prune", "--db", url, "--config", str(config), "--raw-days", "30"])
    invoke(["prune", "--db", url, "--config", str(config), "--raw-days", "1"])
    kept = json.loads(report(url, "--json").output)
    assert "+" in kept["frozen"]["rule_versions"]["util/allocated-idle"]
    assert "+" not in kept["frozen"]["rule_versions"]["util/hung"]
    assert kept["extra"]["cost"]["total"] == pytest.approx(
        3.0, rel=0.01
    )  # two GPUs for three quarters of an hour
