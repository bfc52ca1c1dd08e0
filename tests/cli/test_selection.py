"""Which job is meant by what a person types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.cli.selection import listing, select, select_job
from gpudiag.errors import NotFoundError
from gpudiag.storage.job import Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.store import Reader

DAY = 86_400_000
START = 1_772_528_400_000


def job(
    id: str, day: int = 0, *, raw_id: str = "", name: str = "", user: str = "ana", cluster: str = "local"
) -> Job:
    start = START + day * DAY
    return Job(
        f"{cluster}/{raw_id or id}/{start // 1000}", id, start, start + DAY // 24, cluster, raw_id, name, user
    )


JOBS = (
    job("42", 0),
    job("42", 3),  # requeued, or the number came round again
    job("50_1", 1, raw_id="51"),
    job("50_7", 1, raw_id="50"),
    job("60+0", 2, raw_id="60"),
    job("60+1", 2, raw_id="61"),
    job("s8FXKabc", 4),
    job("77", 5, name="sft-7b"),
    job("78", 6, name="sft-7b", user="bo"),
)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_store(url, node="node01")
    for one in JOBS:
        store.put_job(one)
    store.close()
    found = open_reader(url)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("50_7", "50_7"),
        ("51", "50_1"),
        ("60+1", "60+1"),
        ("s8FXKabc", "s8FXKabc"),
        ("77.0", "77"),
        ("77.batch", "77"),
        ("50_7.extern", "50_7"),
        ("  77 ", "77"),
        (f"local/77/{(START + 5 * DAY) // 1000}", "77"),
    ],
)
def test_every_form_of_an_id_finds_its_job(reader: Reader, wanted: str, expected: str) -> None:
    assert select_job(reader, wanted).id == expected


def test_the_latest_of_several_runs_is_picked_and_all_are_known(reader: Reader) -> None:
    selection = select(reader, "42")
    assert (selection.run, len(selection.runs)) == (2, 2)
    assert selection.job == JOBS[1]
    assert listing(selection.runs).count("--run") == 2


def test_a_run_is_picked_by_its_number(reader: Reader) -> None:
    assert select_job(reader, "42", 1) == JOBS[0]


def test_a_name_means_the_latest_job_called_so(reader: Reader) -> None:
    selection = select(reader, "sft-7b")
    assert selection.job.id == "78"
    assert [one.id for one in selection.runs] == ["77", "78"]


def test_a_run_that_never_was_is_not_found_and_lists_those_that_were(reader: Reader) -> None:
    with pytest.raises(NotFoundError, match="runs 1 to 2, not 3"):
        select(reader, "42", 3)


@pytest.mark.parametrize("wanted", ["50", "60"])
def test_an_array_is_never_guessed(reader: Reader, wanted: str) -> None:
    """One task of an array has the array's number as its own: `50` alone is ambiguous."""
    with pytest.raises(NotFoundError, match=r"name one of its parts: (50_1, 50_7|60\+0, 60\+1)"):
        select(reader, wanted)


@pytest.mark.parametrize("wanted", ["43", "", "42_1", "%", "4", "sft"])
def test_no_such_job_names_what_there_is(reader: Reader, wanted: str) -> None:
    with pytest.raises(NotFoundError, match=r"no job .*the latest are: 78, 77"):
        select(reader, wanted)
