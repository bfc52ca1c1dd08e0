"""Several processes that share the nodes of a job say what one would."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpudiag.errors import StoreError
from gpudiag.rules.crew import ProcessCrew
from gpudiag.rules.diagnosis import diagnose
from gpudiag.rules.loader import builtin
from gpudiag.rules.model import Diagnosis
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.sample import Frame, Source

START_MS = 1_700_000_000_000
SECONDS = 1800
KEY = "local/42/1700000000"
GPUS = [Source(f"node{node}", f"GPU-{node}-{number}") for node in range(5) for number in range(2)]


def row(gpu: Source, second: int) -> dict[str, float]:
    """The last node's GPUs wait for input a third of the time, which holds up nobody else; one of node1 runs hot."""
    waits = gpu.node == "node4" and second % 30 < 10
    hot = gpu == GPUS[2] and second > 900
    active = 0.0 if second < 60 or waits else 0.9 - 0.1 * hot + 0.02 * (second % 3)
    return {
        "sm_active_ratio": active, "graphics_active_ratio": active, "gpu_util_ratio": float(active > 0), "tensor_active_ratio": 0.5 * active,
        "memory_used_bytes": 5e10, "power_watts": 100 + 500 * active, "processes": 1.0, "sm_clock_hertz": 1.2e9 if hot else 1.9e9,
        "clock_event_reasons": 0x40 * hot,
    }  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('crew') / 'x.db'}"
    store = open_store(url, node="node0")
    store.put_job(Job(KEY, "42", START_MS, START_MS + 1000 * SECONDS, state="completed"))
    store.put_devices([Device(gpu, START_MS, model="H100", memory_total_bytes=80e9) for gpu in GPUS])
    store.put_allocations([Allocation(KEY, gpu, START_MS, None, "hook") for gpu in GPUS])
    store.append([Frame(gpu, START_MS + 1000 * s, row(gpu, s)) for s in range(SECONDS) for gpu in GPUS])
    store.close()
    return url


@pytest.fixture
def crews() -> Iterator[list[ProcessCrew]]:
    made: list[ProcessCrew] = []
    yield made
    for crew in made:
        crew.close()
    assert not multiprocessing.active_children()


def diagnosis(url: str, crew: ProcessCrew | None = None) -> Diagnosis:
    reader = open_reader(url)
    try:
        (job,) = reader.jobs()
        more = {} if crew is None else {"crew": crew}
        return diagnose(reader, job, builtin(), now_ms=0, **more)  # type: ignore[arg-type]
    finally:
        reader.close()


def test_three_processes_find_what_one_finds(url: str, crews: list[ProcessCrew]) -> None:
    told: list[int] = []
    crews.append(ProcessCrew(partial(open_reader, url), 3, lambda: told.append(1), least_gpu_hours=0))
    alone = diagnosis(url)
    assert {finding.cause for finding in alone.findings} >= {"throttle"}
    assert diagnosis(url, crews[0]) == alone
    assert len(multiprocessing.active_children()) == 2
    assert len(told) == 2 * 6  # observed and accounted for, the GPUs of three of the five nodes
    assert diagnosis(url, crews[0]) == alone  # the same processes take the next job


def test_a_process_that_dies_costs_time_only(url: str, crews: list[ProcessCrew]) -> None:
    crews.append(ProcessCrew(partial(os._exit, 1), 3, least_gpu_hours=0))  # type: ignore[arg-type]
    assert diagnosis(url, crews[0]) == diagnosis(url)


def test_where_no_process_can_begin_this_one_does_everything(
    url: str, crews: list[ProcessCrew], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", refused)
    crews.append(ProcessCrew(partial(open_reader, url), 3, least_gpu_hours=0))
    assert diagnosis(url, crews[0]) == diagnosis(url)


def test_an_error_of_the_database_is_raised_here(url: str, crews: list[ProcessCrew], tmp_path: Path) -> None:
    crews.append(ProcessCrew(partial(open_reader, f"sqlite:///{tmp_path}/none.db"), 2, least_gpu_hours=0))
    with pytest.raises(StoreError, match=r"no database at .*none\.db"):
        diagnosis(url, crews[0])


def test_a_small_job_is_not_shared(url: str, crews: list[ProcessCrew]) -> None:
    crews.append(ProcessCrew(partial(open_reader, url), 4))
    diagnosis(url, crews[0])
    assert not multiprocessing.active_children()
