"""`gpudiag jobs`: filters, times, and the worst first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Gpudiag

from gpudiag.cli.jobs import Row, chosen, moment
from gpudiag.errors import InputError
from gpudiag.storage.frozen import FrozenReport
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Source

START = 1_772_528_400_000
HOUR = 3_600_000


def job(id: str, hour: int, **fields: str) -> Job:
    start = START + hour * HOUR
    return Job(f"local/{id}/{start // 1000}", id, start, start + 2 * HOUR, **fields)  # type: ignore[arg-type]


@pytest.fixture
def stored(gpudiag: Gpudiag, tmp_path: Path) -> Gpudiag:
    store = open_store(f"sqlite:///{tmp_path}/gpudiag.db", node="node01")
    jobs = (
        job("1", 0, user="ana", state="completed"),
        job("2", 3, user="bo", state="failed", name="sweep"),
        job("3", 6, user="ana", state="completed"),
    )
    for one in jobs:
        store.put_job(one)
        gpus = [Source(f"node0{one.id}", f"GPU-{index}") for index in range(4)]
        store.put_allocations(Allocation(one.key, gpu, one.start_ms, one.end_ms, "hook") for gpu in gpus)
    store.close()
    return gpudiag


def ids(stored: Gpudiag, *arguments: str) -> list[str]:
    return [one["id"] for one in json.loads(stored("jobs", "--json", *arguments).out)["jobs"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["3", "2", "1"]),
        (["--user", "ana"], ["3", "1"]),
        (["--state", "failed"], ["2"]),
        (["--node", "node01"], ["1"]),
        (["--since", "2026-03-03T13:00:00+00:00"], ["3", "2"]),
        (["--until", "2026-03-03T11:00:00+00:00"], ["1"]),
        (["--limit", "2"], ["3", "2"]),
        (["--user", "nobody"], []),
    ],
)
def test_filters(stored: Gpudiag, arguments: list[str], expected: list[str]) -> None:
    assert ids(stored, *arguments) == expected


def test_a_pipe_gets_one_job_per_line_with_tabs(stored: Gpudiag) -> None:
    lines = [line.split("\t") for line in stored("jobs").out.splitlines()]
    assert lines[0] == ["job", "name", "user", "state", "start", "length", "nodes", "GPUs", "GPU-h"]
    assert lines[2] == [
        "2",
        "sweep",
        "bo",
        "failed",
        "2026-03-03T12:00:00+00:00",
        "2 h",
        "node02",
        "4",
        "8.0",
    ]


def test_hours_nobody_diagnosed_are_null_not_zero(stored: Gpudiag) -> None:
    assert json.loads(stored("jobs", "--json").out)["jobs"][0]["lost_gpu_hours"] is None


def test_the_worst_jobs_are_diagnosed(gpudiag: Gpudiag, demo_database: str) -> None:
    document = json.loads(gpudiag("jobs", "--worst", "--json", "--db", demo_database).out)
    (worst,) = document["jobs"]
    assert worst["id"] == "42"
    assert 2.0 < worst["lost_gpu_hours"] < 12.0
    assert worst["cause"] == "input_cpu"
    assert worst["severity"] == "critical"


@pytest.fixture
def frozen(stored: Gpudiag, tmp_path: Path) -> Gpudiag:
    """Job 2 has a report that was frozen before its samples went."""
    store = open_store(f"sqlite:///{tmp_path}/gpudiag.db", node="node01")
    document = {
        "coverage": {"ratio": 0.9},
        "waterfall": {
            "buckets": [
                {"cause": "train", "gpu_hours": 5.0, "ratio": 0.625},
                {"cause": "tail", "gpu_hours": 1.0, "ratio": 0.125},
                {"cause": "idle", "gpu_hours": 2.0, "ratio": 0.25},
            ]
        },
        "findings": [{"severity": "warning"}, {"severity": "critical"}, {"severity": "info"}],
    }
    key = f"local/2/{(START + 3 * HOUR) // 1000}"
    store.put_report(FrozenReport(key, 1, START, "63 % did useful work", 3.0, document))
    store.close()
    return stored


@pytest.mark.parametrize("arguments", [[], ["--worst"]])
def test_a_frozen_report_says_what_was_lost_also_when_no_sample_is_left(
    frozen: Gpudiag, arguments: list[str]
) -> None:
    jobs = {one["id"]: one for one in json.loads(frozen("jobs", "--json", *arguments).out)["jobs"]}
    known = ("lost_gpu_hours", "cause", "severity", "verdict", "diagnosed")
    assert [jobs["2"][name] for name in known] == [
        3.0,
        "idle",
        "critical",
        "63 % did useful work",
        "when frozen",
    ]
    assert jobs["1"]["diagnosed"] == ("now" if arguments else None)


def test_the_list_leaves_what_nobody_diagnosed_open(frozen: Gpudiag) -> None:
    lines = [line.split("\t")[9:] for line in frozen("jobs").out.splitlines()]
    assert lines == [
        ["lost", "share", "largest loss", "severity"],
        ["-", "-", "-", "-"],
        ["3.00", "38 %", "idle", "critical"],
        ["-", "-", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("cause", "lost", "severity", "expected"),
    [
        ("", None, None, ["a", "b", "c"]),
        ("idle", None, None, ["a"]),
        ("", 2.0, None, ["a", "b"]),
        ("", None, "warning", ["a", "b"]),
        ("", None, "critical", ["a"]),
    ],
)
def test_filters_on_what_a_diagnosis_says(
    cause: str, lost: float | None, severity: str | None, expected: list[str]
) -> None:
    rows = [
        Row(job("a", 0), (), 1, 4.0, 3.0, "idle", "critical"),
        Row(job("b", 0), (), 1, 4.0, 2.0, "tail", "warning"),
        Row(job("c", 0), (), 1, 4.0, 0.0, None, None),
    ]
    assert [row.job.id for row in chosen(rows, cause, lost, severity)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", START - 24 * HOUR),
        ("90m ago", START - HOUR * 3 // 2),
        ("7d", START - 7 * 24 * HOUR),
        ("2026-03-03T09:00:00Z", START),
        ("2026-03-03T10:00:00+01:00", START),
        ("", None),
        (None, None),
    ],
)
def test_times_people_write(text: str | None, expected: int | None) -> None:
    assert moment(text, START) == expected


@pytest.mark.parametrize("text", ["yesterday", "5 parsecs", "2026-13-01"])
def test_a_time_nobody_can_read_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="is no time: expected"):
        moment(text, START)
