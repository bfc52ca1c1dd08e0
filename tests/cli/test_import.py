"""`gpudiag import`: what is stored, what is refused, and that nothing stored is touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Gpudiag

from gpudiag.cli.import_ import _about_lines
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import JobFilter, Reader

LOG = """\
timestamp, index, uuid, name, utilization.gpu [%], memory.used [MiB]
2025/06/13 00:27:52.195, 0, GPU-0000000a-0000-0000-0000-000000000000, NVIDIA A100, 50 %, 512 MiB
2025/06/13 00:27:52.197, 1, GPU-0000000b-0000-0000-0000-000000000000, NVIDIA A100, 60 %, 512 MiB
2025/06/13 00:27:53.195, 0, GPU-0000000a-0000-0000-0000-000000000000, NVIDIA A100, 70 %, 512 MiB
2025/06/13 00:27:53.197, 1, GPU-0000000b-0000-0000-0000-000000000000, NVIDIA A100, [N/A], 512 MiB
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.csv"
    path.write_text(LOG)
    return path


@pytest.fixture
def reading() -> Iterator[Callable[[], Reader]]:
    """Open the database that the commands use; closed at the end of the test."""
    opened = []

    def reader() -> Reader:
        opened.append(open_reader(os.environ["GPUDIAG_DB"]))
        return opened[-1]

    yield reader
    for one in opened:
        one.close()


def test_a_log_becomes_one_job_over_all_its_gpus(
    gpudiag: Gpudiag, log: Path, reading: Callable[[], Reader]
) -> None:
    outcome = gpudiag("import", log, "--job", "7", "--timezone", "UTC", "--user", "ada")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "job 7: 4 samples of 2 GPUs, 2025-06-13T00:27:52+00:00 to 2025-06-13T00:27:54+00:00",
        "next: gpudiag report --job 7",
    ]
    reader = reading()
    (job,) = reader.jobs(JobFilter(id="7"))
    assert (job.user, job.end_ms - job.start_ms) == ("ada", 2002)
    allocations = reader.allocations(job.key)
    assert [allocation.source.device[:12] for allocation in allocations] == ["GPU-0000000a", "GPU-0000000b"]
    block = reader.read(allocations[1].source, job.start_ms, job.end_ms)
    assert block.times_ms.tolist() == [1749774472197, 1749774473197]
    assert [str(value) for value in block.columns["gpu_util_ratio"]] == ["0.6", "nan"]


def test_the_same_log_again_changes_nothing(
    gpudiag: Gpudiag, log: Path, reading: Callable[[], Reader]
) -> None:
    gpudiag("import", log, "--job", "7")
    outcome = gpudiag("import", log, "--job", "7")
    assert (outcome.code, "already stored" in outcome.out) == (0, True)
    assert len(reading().jobs()) == 1


def test_a_second_job_over_the_same_samples_is_stored_and_says_so(
    gpudiag: Gpudiag, log: Path, reading: Callable[[], Reader]
) -> None:
    gpudiag("import", log, "--job", "7", "--node", "n1")
    outcome = gpudiag("import", log, "--job", "8", "--node", "n1")
    assert (outcome.code, "already stored" in outcome.out) == (0, False)
    assert "4 of them were stored before" in outcome.out
    assert {job.id for job in reading().jobs()} == {"7", "8"}


def test_a_log_that_contradicts_stored_samples_of_the_same_device_stores_nothing(
    gpudiag: Gpudiag, log: Path, reading: Callable[[], Reader]
) -> None:
    gpudiag("import", log, "--job", "7", "--node", "n1")
    log.write_text(LOG.replace("70 %", "0 %"))
    outcome = gpudiag("import", log, "--job", "8", "--node", "n1")
    assert (outcome.code, "another gpu_util_ratio" in outcome.err) == (2, True)
    assert [job.id for job in reading().jobs()] == ["7"]


def test_another_log_for_the_same_run_is_refused_and_nothing_is_lost(
    gpudiag: Gpudiag, log: Path, reading: Callable[[], Reader]
) -> None:
    gpudiag("import", log, "--job", "7")
    log.write_text(LOG.replace("50 %", "10 %"))
    outcome = gpudiag("import", log, "--job", "7")
    assert outcome.code == 2
    assert "Use another --job" in outcome.err
    reader = reading()
    (job,) = reader.jobs()
    source = reader.allocations(job.key)[0].source
    assert reader.read(source, job.start_ms, job.end_ms).columns["gpu_util_ratio"][0] == 0.5


def test_an_interrupted_import_can_be_repeated(
    gpudiag: Gpudiag, log: Path, reading: Callable[[], Reader]
) -> None:
    device = Source("log-7", "GPU-0000000a-0000-0000-0000-000000000000")
    store = open_store(os.environ["GPUDIAG_DB"], node="log-7")
    store.append([Frame(device, 1749774472195, {"gpu_util_ratio": 0.5}, {"gpu_util_ratio": "nvml"})])
    store.close()
    assert json.loads(gpudiag("import", log, "--job", "7", "--timezone", "UTC", "--json").out) == {
        "schema_version": 1,
        "job": {
            "id": "7",
            "key": "import/7/1749774472",
            "start": "2025-06-13T00:27:52+00:00",
            "end": "2025-06-13T00:27:54+00:00",
        },
        "devices": 2,
        "samples": 4,
        "samples_added": 3,
        "notes": [],
    }
    assert len(reading().read(device, 0, 2**60)) == 2


def test_a_mistake_stores_nothing(gpudiag: Gpudiag, log: Path) -> None:
    log.write_text(LOG + "2025/06/13 00:27:54.195, 0, nonsense\n")
    outcome = gpudiag("import", log, "--job", "7")
    assert outcome.code == 2
    assert f"{log}:6:1: expected 6 cells as in the header, found 3" in outcome.err
    assert not Path(os.environ["GPUDIAG_DB"].removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("job", ["", " ", "a/b", "a\nb", " 7"])
def test_a_job_needs_an_id(gpudiag: Gpudiag, log: Path, job: str) -> None:
    outcome = gpudiag("import", log, "--job", job)
    assert (outcome.code, "--job 42" in outcome.err) == (2, True)


def test_an_unknown_time_zone_is_a_usage_error(gpudiag: Gpudiag, log: Path) -> None:
    outcome = gpudiag("import", log, "--job", "7", "--timezone", "Mars/Olympus")
    assert (outcome.code, "Europe/Berlin" in outcome.err) == (2, True)


def test_a_missing_file_is_named(gpudiag: Gpudiag, tmp_path: Path) -> None:
    outcome = gpudiag("import", tmp_path / "none.csv", "--job", "7")
    assert (outcome.code, "none.csv: No such file" in outcome.err) == (2, True)


def test_unknown_columns_are_mentioned(gpudiag: Gpudiag, log: Path) -> None:
    log.write_text("timestamp, fan.speed [%], utilization.gpu [%]\n2025/06/13 00:27:54.195, 5 %, 6 %\n")
    assert "no use for: fan.speed" in gpudiag("import", log, "--job", "7").out


def test_the_number_of_lines_is_guessed_well_enough_for_a_bar(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(LOG + (LOG.splitlines()[1] + "\n") * 20_000)
    assert 0.95 < _about_lines(path) / 20_005 < 1.05
    assert _about_lines(tmp_path / "none.csv") == 0


TRACE = """\
time,node,device,sm_active_ratio,power_watts,cpu_busy_ratio
1749774472,node01,GPU-0000000a-0000-0000-0000-000000000000,0.5,300,
1749774472,node01,node,,,0.25
1749774473,node01,GPU-0000000a-0000-0000-0000-000000000000,0.75,,
"""


def test_a_trace_is_read_too_with_its_host(
    gpudiag: Gpudiag, tmp_path: Path, reading: Callable[[], Reader]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    outcome = gpudiag("import", path, "--job", "9")
    assert outcome.code == 0, outcome.err
    assert " of 1 GPU, " in outcome.out  # the host is none
    reader = reading()
    (job,) = reader.jobs()
    assert job.meta["imported_from"] == ["trace.csv"]
    assert len(reader.read(Source("node01", "node"), 0, 2**60)) == 1
    assert "already stored" in gpudiag("import", path, "--job", "9").out


def test_a_job_that_was_exported_is_imported_elsewhere_as_it_was(
    gpudiag: Gpudiag,
    tmp_path: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    reading: Callable[[], Reader],
) -> None:
    gpudiag("import", log, "--job", "7")
    (before,) = reading().jobs()
    assert gpudiag("export", "--job", "7", "--output", tmp_path / "out.csv").code == 0
    monkeypatch.setenv("GPUDIAG_DB", f"sqlite:///{tmp_path}/other.db")
    assert gpudiag("import", tmp_path / "out.csv").code == 0
    reader = reading()
    (after,) = reader.jobs()
    assert (after.key, after.start_ms, after.end_ms) == (before.key, before.start_ms, before.end_ms)
    assert len(reader.allocations(after.key)) == 2


def test_a_job_that_was_exported_changes_nothing_where_it_is_from(
    gpudiag: Gpudiag, tmp_path: Path, log: Path, reading: Callable[[], Reader]
) -> None:
    source = Source("node01", "GPU-0000000a-0000-0000-0000-000000000000")
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    store.append([Frame(source, 1749774472000, {"gpu_util_ratio": 0.5}, {"gpu_util_ratio": "nvml"})])
    job = Job("local/42/1749774472", "42", 1749774472000, 1749774482000, state="completed")
    store.put_allocations([Allocation(job.key, source, job.start_ms, job.end_ms, "hook")])
    store.put_job(job)
    store.close()
    gpudiag("export", "--job", "42", "--output", tmp_path / "out.csv")
    outcome = gpudiag("import", tmp_path / "out.csv")
    assert (outcome.code, "already stored" in outcome.out) == (0, True), outcome.err
    assert reading().jobs() == [job]


def test_traces_come_one_at_a_time(gpudiag: Gpudiag, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    assert gpudiag("import", path, path, "--job", "9").code == 2


def test_a_log_of_somebody_else_is_diagnosed_and_what_it_lacks_is_named(gpudiag: Gpudiag) -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "nvidia-smi-csv" / "v100s-1s-miris.csv"
    if not path.exists():
        pytest.skip("the captured nvidia-smi log is not here")
    assert gpudiag("import", path, "--job", "7", "--timezone", "UTC").code == 0
    outcome = gpudiag("report", "--job", "7", "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["coverage"]["ratio"] > 0.95
    assert report["devices"][0]["model"] == "Tesla V100S-PCIE-32GB"
    assert sum(bucket["ratio"] for bucket in report["waterfall"]["buckets"]) == pytest.approx(1, abs=0.001)
    reasons = {entry["rule"]: entry["reason"] for entry in report["rules"]["not_evaluated"]}
    assert "clock_event_reasons" in reasons["clocks/thermal-throttle"]
    assert "not evaluated" in gpudiag("report", "--job", "7").out


def test_a_password_is_not_printed_with_the_next_command(tmp_path: Path) -> None:
    from gpudiag.cli.import_ import Recording, _text
    from gpudiag.cli.messages import ENGLISH

    job = Job("import/a b/1", "a b", 1000, 2000)
    text = _text(Recording(job, (), (), (), (), 0), 0, "postgresql://u:hunter2@h/db", ENGLISH)
    assert text.endswith("next: gpudiag report --job 'a b' --db 'postgresql://u:***@h/db'")
