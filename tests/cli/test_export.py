"""`gpudiag export` and `gpudiag import` of the same trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpudiag.cli.export import command as export
from gpudiag.cli.import_ import command as import_
from gpudiag.errors import InputError, NotFoundError
from gpudiag.rules.samples import JobSamples
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.sample import Frame, Source

CSV = "time,node,device,sm_active_ratio\n" + "".join(
    f"{1764504000 + i},n1,GPU-a,0.{i}\n" for i in range(1, 9)
)


def run(command: object, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)  # type: ignore[arg-type]
    return result.output


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_exported_job_is_imported_with_its_key(tmp_path: Path, suffix: str) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    (tmp_path / "in.csv").write_text(CSV)
    run(import_, str(tmp_path / "in.csv"), "--job", "42", "--db", first)
    out = tmp_path / f"out.{suffix}"
    said = run(export, "--job", "42", "--db", first, "--output", str(out))
    assert said.startswith(f"8 rows of job 42 in {out}")
    assert "8 samples of 1 GPU" in run(import_, str(out), "--db", second)
    assert "already stored" in run(import_, str(out), "--db", second)
    one, two = open_reader(first), open_reader(second)
    assert one.jobs() == two.jobs()
    source = Source("n1", "GPU-a")
    assert list(two.read(source, 0, 2**42).columns["sm_active_ratio"]) == [i / 10 for i in range(1, 9)]
    one.close()
    two.close()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_samples_before_the_job_that_hold_into_it_come_back(tmp_path: Path, suffix: str) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    source, start_ms = Source("n1", "GPU-a"), 1_764_504_000_000
    job = Job("c/42/1764504000", "42", start_ms, start_ms + 60_000, state="completed")
    store = open_store(first, node="n1")
    store.append([Frame(source, start_ms - 501 + 2000 * i, {"sm_active_ratio": 0.5}) for i in range(-20, 31)])
    store.put_allocations([Allocation(job.key, source, start_ms, job.end_ms, "hook")])
    store.put_job(job)
    store.close()
    out = tmp_path / f"out.{suffix}"
    assert run(export, "--job", "42", "--db", first, "--output", str(out)).startswith("33 rows")
    run(import_, str(out), "--db", second)
    seconds = []
    for url in (first, second):
        reader = open_reader(url)
        samples = JobSamples.read(reader, reader.jobs()[0], 2**42)
        seconds.append(samples.series(source, "sm_active_ratio").tolist())
        reader.close()
    assert seconds == [[0.5] * 60, [0.5] * 60]


def test_the_files_are_named_after_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text(CSV)
    run(import_, "in.csv", "--job", "42", "--db", "sqlite:///a.db")
    run(export, "--job", "42", "--db", "sqlite:///a.db", "--format", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "job-42.jsonl").read_text().splitlines()]
    assert rows[0] == {"time": 1764504001.0, "node": "n1", "device": "GPU-a", "sm_active_ratio": 0.1}
    assert json.loads((tmp_path / "job-42.json").read_text())["job"]["id"] == "42"


def test_a_job_without_samples_is_not_exported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    store = open_store(url, node="n1")
    store.put_job(Job("c/1/0", "1", 1000, 2000))
    store.close()
    with pytest.raises(NotFoundError, match="job 1 has no samples"):
        run(export, "--job", "1", "--db", url, "--output", str(tmp_path / "x.csv"))


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    store = open_store(url, node="n1")
    store.put_job(Job("c/1/0", "1", 1000, 2000))
    store.close()
    with pytest.raises(InputError, match=r"\.csv, \.jsonl or \.parquet"):
        run(export, "--job", "1", "--db", url, "--output", str(tmp_path / "x.txt"))
