"""`gpudiag report` as a person or a script meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Gpudiag
from diagnoses import healthy, slow

from gpudiag.cli.report import exit_code
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Source

START = 1_772_528_400_000


@pytest.fixture
def demo(gpudiag: Gpudiag, demo_database: str, monkeypatch: pytest.MonkeyPatch) -> Gpudiag:
    monkeypatch.setenv("GPUDIAG_DB", demo_database)
    return gpudiag


def test_the_verdict_comes_before_everything_but_the_head(demo: Gpudiag) -> None:
    result = demo("report", "--job", "42")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("Job 42 ")
    first_empty = lines.index("")
    assert first_empty <= 6
    assert "did useful work" in lines[first_empty + 1]


def test_json_sums_to_the_whole_allocation(demo: Gpudiag) -> None:
    document = json.loads(demo("report", "--job", "42", "--json").out)
    assert document["waterfall"]["total_gpu_hours"] == pytest.approx(32.0, rel=1e-3)
    assert sum(bucket["ratio"] for bucket in document["waterfall"]["buckets"]) == pytest.approx(1.0, abs=1e-3)
    assert document["coverage"]["ratio"] == pytest.approx(1.0, abs=1e-3)
    assert (document["coverage"]["devices_allocated"], document["coverage"]["devices_measured"]) == (8, 8)
    assert (document["coverage"]["gaps"], document["coverage"]["damaged"]) == ([], [])
    assert document["job"]["state"] == "failed"


@pytest.mark.parametrize("option", [["--db"], []])
def test_the_database_comes_from_the_option_or_the_environment(
    gpudiag: Gpudiag, demo_database: str, option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*option, demo_database] if option else []
    if not option:
        monkeypatch.setenv("GPUDIAG_DB", demo_database)
    assert gpudiag("report", "--job", "42", *arguments).code == 0


def test_html_goes_to_its_file_and_says_so(demo: Gpudiag, tmp_path: Path) -> None:
    path = tmp_path / "job42.html"
    result = demo("report", "--job", "42", "--html", path)
    assert (result.code, result.out) == (0, "")
    assert f"wrote {path}" in result.err
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_file_that_cannot_be_written_is_one_clear_error(demo: Gpudiag, tmp_path: Path) -> None:
    result = demo("report", "--job", "42", "--html", tmp_path / "no" / "such" / "folder.html")
    assert result.code == 1
    assert result.err.startswith("gpudiag: cannot write ")
    assert len(result.err.splitlines()) == 1


def test_chinese_by_option_and_by_locale(demo: Gpudiag, monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo("report", "--job", "42", "--lang", "zh").out.startswith("作业 42")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert demo("report", "--job", "42").out.startswith("作业 42")
    assert demo("report", "--job", "42", "--lang", "en").out.startswith("Job 42")


def test_an_unknown_language_is_a_usage_error(demo: Gpudiag) -> None:
    result = demo("report", "--job", "42", "--lang", "xx")
    assert (result.code, result.err.strip()) == (2, "gpudiag: unknown language 'xx': expected one of en, zh")


# ---- exit codes


@pytest.mark.parametrize(("severity", "code"), [(None, 0), ("info", 3), ("warning", 3), ("critical", 3)])
def test_findings_fail_only_when_asked(severity: str | None, code: int) -> None:
    assert exit_code(slow(), severity) == code
    assert exit_code(healthy(), severity) == 0


def test_fail_on_reaches_the_shell(demo: Gpudiag) -> None:
    assert demo("report", "--job", "42", "--fail-on", "warning").code == 3


def test_no_such_job_is_4_and_names_what_there_is(demo: Gpudiag) -> None:
    result = demo("report", "--job", "41")
    assert result.code == 4
    assert "no job '41' in this database; the latest are: 42" in result.err


def test_a_job_nobody_measured_is_4_and_points_to_doctor(gpudiag: Gpudiag, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/gpudiag.db", node="node01")
    job = Job(f"local/7/{START // 1000}", "7", START, START + 3_600_000)
    store.put_job(job)
    store.put_allocations([Allocation(job.key, Source("node01", "GPU-0"), START, START + 3_600_000, "hook")])
    store.close()
    result = gpudiag("report", "--job", "7")
    assert result.code == 4
    assert (
        "job 7 is known, with 1 GPUs, but no sample of them is stored; `gpudiag doctor --job 7`" in result.err
    )


def test_no_database_is_5(gpudiag: Gpudiag, tmp_path: Path) -> None:
    result = gpudiag("report", "--job", "42", "--db", f"sqlite:///{tmp_path}/none.db")
    assert result.code == 5
    assert len(result.err.splitlines()) == 1


def test_a_file_that_is_no_database_is_5_and_stays_as_it_is(gpudiag: Gpudiag, tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear all,\n" * 1000, encoding="utf-8")
    assert gpudiag("report", "--job", "42", "--db", f"sqlite:///{path}").code == 5
    assert path.read_text(encoding="utf-8") == "Dear all,\n" * 1000


def test_no_job_named_is_a_usage_error(gpudiag: Gpudiag) -> None:
    assert gpudiag("report").code == 2


# ---- several runs


def test_several_runs_are_listed_and_the_latest_is_taken(gpudiag: Gpudiag, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/gpudiag.db", node="node01")
    for day in (0, 1):
        start = START + day * 86_400_000
        store.put_job(Job(f"local/7/{start // 1000}", "7", start, start + 60_000, state="completed"))
    store.close()
    result = gpudiag("report", "--job", "7")
    assert "2 runs answer to '7'; this is run 2, the latest:" in result.err
    assert "--run 1  2026-03-03T09:00:00+00:00  completed" in result.err
