"""`gpudiag doctor`: what can be measured here and why not, and why a job has no data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Gpudiag
from fake_nvml.control import FakeNvml

from gpudiag.cli.doctor_job import examine
from gpudiag.cli.doctor_node import newest_sample, why
from gpudiag.storage.catalog import metric
from gpudiag.storage.frozen import FrozenReport
from gpudiag.storage.job import Allocation, Event, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import NODE, Frame, Source

START = 1_749_772_800_000
MINUTE = 60_000
GPU = Source("node01", "GPU-0000000a-0000-0000-0000-000000000000")
HOST = Source("node01", NODE)


@pytest.fixture
def here(gpudiag: Gpudiag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """`doctor --json` on an empty host without agent, as (area, name) -> item."""
    monkeypatch.setenv("GPUDIAG_METRICS__LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("GPUDIAG_AGENT__ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("GPUDIAG_AGENT__RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("GPUDIAG_SOURCES__NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")

    def items(*arguments: str) -> dict[str, Any]:
        outcome = gpudiag("doctor", "--json", *arguments)
        assert outcome.code == 0, outcome.err
        return {f"{item['area']}/{item['name']}": item for item in json.loads(outcome.out)["items"]}

    return items


@pytest.fixture
def with_gpus(fake_nvml: FakeNvml, here: object, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    for name, value in fake_nvml.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUDIAG_SOURCES__NVML_LIBRARY", str(fake_nvml.library))
    return fake_nvml


def test_a_host_without_anything_says_why_for_each(here: Callable[..., dict[str, Any]]) -> None:
    found = here()
    assert found["agent/agent"]["state"] == "missing"
    assert "library not found" in found["driver/driver"]["text"]
    assert found["jobs/cgroups"]["state"] == "problem"
    assert found["store/database"]["state"] == "problem"
    assert "gpu metrics/measured" not in found
    assert "sm_active_ratio" in found["rules/util/batch-can-grow"]["text"]


def test_what_hopper_gives_and_what_it_does_not(
    here: Callable[..., dict[str, Any]], with_gpus: FakeNvml
) -> None:
    found = here()
    assert found["driver/devices"]["text"].startswith("8 devices: NVIDIA H200; driver 580")
    assert "power_watts" in found["gpu metrics/measured"]["text"]
    assert "rules/clocks/thermal-throttle" not in found


def test_a_gpu_without_gpm_has_no_sm_activity_and_the_reason_is_told(
    here: Callable[..., dict[str, Any]], with_gpus: FakeNvml
) -> None:
    for gpu in range(8):
        with_gpus.set(gpu, "gpm_supported", 0)
    with_gpus.fail(3, "nvmlDeviceGetPowerUsage", "no_permission")
    with_gpus.fail(3, "nvmlDeviceGetFieldValues", "no_permission")
    found = here()
    assert "needs GPM (Hopper and newer) or DCGM" in found["gpu metrics/sm_active_ratio"]["text"]
    assert "only on 7 of 8 GPUs" in found["gpu metrics/power_watts"]["text"]
    assert "no permission" in found["gpu metrics/power_watts"]["text"]


def test_the_reason_of_the_driver_is_found_by_entry_point_or_field() -> None:
    power = metric("gpu", "power_watts")
    assert (
        why(power, {"nvmlDeviceGetPowerUsage": "no permission"}) == "nvmlDeviceGetPowerUsage: no permission"
    )
    assert why(power, {"nvmlDeviceGetTemperature": "no permission"}) == "the driver gives no value"
    memory = metric("gpu", "memory_temperature_celsius")
    assert why(memory, {"field 82": "not supported"}).startswith("field 82: not supported (")


def test_a_hook_folder_and_a_database_are_seen(here: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "run" / "jobs.d").mkdir(parents=True)
    (tmp_path / "root" / "sys" / "fs" / "cgroup").mkdir(parents=True)
    (tmp_path / "root" / "sys" / "fs" / "cgroup" / "cgroup.controllers").write_text("cpu memory\n")
    open_store(os.environ["GPUDIAG_DB"], node="node01").close()
    found = here()
    assert found["jobs/hook files"]["state"] == "ok"
    assert found["jobs/cgroups"]["text"] == "version 2"
    assert found["store/database"]["state"] == "ok"
    assert found["store/newest sample"]["state"] == "missing"
    assert found["store/retention"]["text"].startswith("samples 14 days")


def test_samples_of_the_future_are_a_clock_problem(
    here: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUDIAG_AGENT__NODE", "node01")
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    store.append([Frame(HOST, time.time_ns() // 1_000_000 + 600_000, {"cpu_busy_ratio": 0.5})])
    store.close()
    assert "in the future" in here()["store/clock"]["text"]


def test_the_newest_sample_is_found_to_a_second() -> None:
    class Sources:
        def sources(self, start_ms: int, end_ms: int) -> list[Source]:
            return [GPU] if start_ms <= START + 123_456 < end_ms else []

    found = newest_sample(Sources(), "node01", START - 30 * 86_400_000, START + 86_400_000)  # type: ignore[arg-type]
    assert found is not None
    assert abs(found - (START + 123_456)) <= 1000
    assert newest_sample(Sources(), "node02", START, START + MINUTE) is None  # type: ignore[arg-type]


def test_a_broken_rule_file_is_a_problem_and_no_traceback(
    here: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("gpudiag: 1\nrules:\n  - id: [\n")
    monkeypatch.setenv("GPUDIAG_RULES__PATHS", str(tmp_path / "mine.yaml"))
    assert "mine.yaml:" in here()["rules/rule files"]["text"]


Fill = Callable[..., list[str]]


@pytest.fixture
def reasons(tmp_path: Path) -> Fill:
    """What `doctor --job` says about a job of ten minutes on one GPU; samples at these minutes."""

    def told(
        gpu: tuple[float, float] | None,
        host: list[tuple[float, float]],
        *,
        allocated: bool = True,
        minutes: float = 10,
    ) -> list[str]:
        store = open_store(f"sqlite:///{tmp_path}/job.db", node="node01")
        frames = [
            Frame(
                source,
                START + second * 1000,
                {"cpu_busy_ratio" if source == HOST else "sm_active_ratio": 0.5},
            )
            for source, stretches in ((GPU, [gpu] if gpu else []), (HOST, host))
            for first, last in stretches
            for second in range(int(first * 60), int(last * 60))
        ]
        store.append(frames)
        job = Job("local/42/1", "42", START, START + int(minutes * MINUTE), state="completed", user="ada")
        if allocated:
            store.put_allocations([Allocation(job.key, GPU, job.start_ms, job.end_ms, "hook")])
        store.put_events([Event(HOST, START + MINUTE, "clock_jump", detail={"seconds": 3.5})])
        lines = [f"{item.state} {item.name}: {item.text}" for item in examine(store, job, START + 86_400_000)]
        store.close()
        return lines

    return told


def test_a_job_that_was_measured_all_the_time(reasons: Fill) -> None:
    lines = reasons((0, 10), [(0, 10)])
    assert any(line.startswith("ok node01 GPU-") and "100 % of its time measured" in line for line in lines)
    assert "ok node01: sampled all the time, 600 host samples" in lines
    assert any("clock jumped (seconds 3.5)" in line for line in lines)


def test_a_job_without_gpus(reasons: Fill) -> None:
    assert any(
        "no GPU is known to belong to it" in line for line in reasons(None, [(0, 10)], allocated=False)
    )


def test_an_agent_that_was_away_during_the_job(reasons: Fill) -> None:
    lines = reasons(None, [(-20, -10), (20, 30)])
    assert any("no sample" in line for line in lines)
    assert any("the agent did not run then" in line for line in lines)


def test_an_agent_that_came_after_the_job(reasons: Fill) -> None:
    assert any("samples begin after the job" in line for line in reasons(None, [(20, 30)]))


def test_an_agent_that_stopped_before_the_job(reasons: Fill) -> None:
    assert any("samples stop before the job" in line for line in reasons(None, [(-20, -10)]))


def test_a_node_that_this_database_does_not_know(reasons: Fill) -> None:
    assert any("never had samples" in line for line in reasons(None, []))


def test_an_agent_that_was_away_for_a_part(reasons: Fill) -> None:
    lines = reasons((0, 3), [(0, 3), (8, 10)])
    assert any("5 min without samples: the agent was away" in line for line in lines)
    assert any(line.startswith("problem node01 GPU-") and "30 % of its time" in line for line in lines)


def test_a_job_that_was_too_short(reasons: Fill) -> None:
    assert any("too short" in line for line in reasons((0, 0.1), [(0, 0.1)], minutes=0.1))


def test_a_job_whose_samples_were_pruned_still_has_its_report(gpudiag: Gpudiag) -> None:
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    store.put_job(Job("local/42/1", "42", START, START + 10 * MINUTE, state="completed"))
    store.put_report(FrozenReport("local/42/1", 1, START + 86_400_000, "slow", 1.0, {}))
    store.close()
    outcome = gpudiag("doctor", "--job", "42")
    assert "before its samples were pruned" in outcome.out


def test_no_such_job_exits_with_4(gpudiag: Gpudiag) -> None:
    open_store(os.environ["GPUDIAG_DB"], node="node01").close()
    assert gpudiag("doctor", "--job", "42").code == 4


def test_a_job_without_samples_exits_with_4_and_one_with_samples_with_0(gpudiag: Gpudiag) -> None:
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    job = Job("local/42/1", "42", START, START + 10 * MINUTE, state="completed")
    store.put_allocations([Allocation(job.key, GPU, job.start_ms, job.end_ms, "hook")])
    store.put_job(job)
    assert gpudiag("doctor", "--job", "42").code == 4
    store.append([Frame(GPU, START + second * 1000, {"sm_active_ratio": 0.5}) for second in range(600)])
    store.close()
    assert gpudiag("doctor", "--job", "42").code == 0
