"""The whole diagnosis of a job that a store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from gpudiag.rules.diagnosis import diagnose, diagnose_samples
from gpudiag.rules.energy import Cost
from gpudiag.rules.loader import builtin
from gpudiag.rules.memory import MemoryReader
from gpudiag.rules.model import Diagnosis
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Block, Frame, Source
from gpudiag.storage.store import Store

START_MS = 1_700_000_000_000
NODE = "node0"
KEY = "local/42/1700000000"
GPUS = [Source(NODE, f"GPU-{number}") for number in range(3)]
Row = Callable[[int], dict[str, float]]


OPENED: list[Store] = []


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


class Stored:
    """A job with two measured GPUs and one that nobody measured, in a new database."""

    def __init__(self, path: Path, seconds: int, gpu: Row, host: Row | None = None, **job: object) -> None:
        self.url = f"sqlite:///{path / 'x.db'}"
        end_ms = START_MS + seconds * 1000
        self.job = Job(KEY, "42", START_MS, end_ms, state="completed", **job)  # type: ignore[arg-type]
        store = open_store(self.url, node=NODE)
        OPENED.append(store)
        store.put_job(self.job)
        store.put_devices(
            [Device(gpu, START_MS, n, model="H100", memory_total_bytes=80e9) for n, gpu in enumerate(GPUS)]
        )
        store.put_allocations([Allocation(KEY, source, START_MS, end_ms, "hook") for source in GPUS])
        for begin in range(0, seconds, 300):
            store.append(self._frames(range(begin, min(begin + 300, seconds)), gpu, host))
        self.reader = store

    def _frames(self, seconds: range, gpu: Row, host: Row | None) -> list[Frame]:
        frames = []
        for second in seconds:
            time_ms = START_MS + second * 1000 + 500
            frames += [Frame(source, time_ms, gpu(second), {"sm_active_ratio": "gpm"}) for source in GPUS[:2]]
            if host:
                frames.append(Frame(Source(NODE, f"job:{KEY}"), time_ms, host(second)))
        return frames

    def diagnose(self, rules: RuleSet | None = None, **more: object) -> Diagnosis:
        ruleset = builtin() if rules is None else rules
        return diagnose(self.reader, self.job, ruleset, now_ms=0, **more)  # type: ignore[arg-type]


def working(second: int) -> dict[str, float]:
    active = 0.0 if second < 60 else 0.86 + 0.02 * (second % 3)
    return {
        "sm_active_ratio": active, "graphics_active_ratio": min(1.0, active * 1.15), "gpu_util_ratio": float(active > 0),
        "tensor_active_ratio": 0.6 * active, "memory_used_bytes": 5e10, "power_watts": 100 + 500 * active, "processes": 1.0,
    }  # fmt: skip


def stalling(second: int) -> dict[str, float]:
    row = working(second)
    return (
        row
        if second < 60 or second % 30 >= 9
        else {**row, "sm_active_ratio": 0.0, "graphics_active_ratio": 0.0}
    )


def busy_workers(second: int) -> dict[str, float]:
    return {
        "loader_workers": 8, "loader_cpu_ratio": 0.99, "job_cpu_busy_ratio": 0.6, "main_cpu_ratio": 0.4,
        "job_cpus_allowed": 24, "job_pressure_io_some_ratio": 0.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    stored = Stored(tmp_path_factory.mktemp("stalled"), 2400, stalling, busy_workers)
    OPENED.remove(stored.reader)  # it outlives the first test
    yield stored
    stored.reader.close()


def test_the_waterfall_sums_to_the_whole_allocation(stalled: Stored) -> None:
    diagnosis = stalled.diagnose()
    assert diagnosis.total_gpu_hours == pytest.approx(3 * 2400 / 3600)
    assert 100 * sum(bucket.ratio for bucket in diagnosis.waterfall) == pytest.approx(100, abs=0.1)


def test_a_stalled_loader_is_the_first_finding_and_costs_what_the_waterfall_says(stalled: Stored) -> None:
    diagnosis = stalled.diagnose()
    first = diagnosis.findings[0]
    bucket = next(bucket for bucket in diagnosis.waterfall if bucket.cause == "input_cpu")
    assert first.rule == "input/cpu-bound-loader"
    assert first.lost_gpu_hours == pytest.approx(bucket.gpu_hours, rel=0.1)
    assert 0 < first.recoverable_gpu_hours < first.lost_gpu_hours
    assert bucket.ratio == pytest.approx(2 / 3 * 0.3 * 0.95, abs=0.03)
    assert first.sources == (GPUS[0], GPUS[1])


def test_the_symptom_yields_to_its_cause(stalled: Stored) -> None:
    symptoms = [
        f
        for f in stalled.diagnose().findings
        if f.rule in ("util/low-sm-activity", "input/data-loader-stall")
    ]
    assert all(symptom.explained_by == "input/cpu-bound-loader" for symptom in symptoms)


def test_a_device_that_nobody_measured_has_its_row_and_its_hours(stalled: Stored) -> None:
    diagnosis = stalled.diagnose()
    assert diagnosis.coverage.devices_allocated == 3
    assert diagnosis.coverage.devices_measured == 2
    silent = next(device for device in diagnosis.devices if device.source == GPUS[2])
    assert (silent.coverage, silent.statistics, silent.headline) == (0.0, {}, "")
    missing = next(bucket for bucket in diagnosis.waterfall if bucket.cause == "not_measured")
    assert missing.ratio == pytest.approx(1 / 3, abs=0.01)


def test_every_active_rule_is_fired_passed_or_not_evaluated(stalled: Stored) -> None:
    diagnosis = stalled.diagnose()
    said = [
        *{f.rule for f in diagnosis.findings},
        *diagnosis.passed,
        *(n.rule for n in diagnosis.not_evaluated),
    ]
    assert sorted(said) == sorted(rule.id for rule in builtin().active())
    assert all(item.reason for item in diagnosis.not_evaluated)


def test_statistics_are_over_what_was_measured(stalled: Stored) -> None:
    device = stalled.diagnose().devices[0]
    figures = device.statistics["sm_active_ratio"]
    assert (figures.minimum, figures.maximum) == (0.0, 0.9)
    assert figures.p10 <= figures.p50 <= figures.p90
    assert device.origins["sm_active_ratio"] == "gpm"
    assert device.longest_idle is not None
    assert device.longest_idle.seconds == pytest.approx(69, abs=1)
    assert len(device.timeline) == 120


def test_energy_and_money_come_from_samples_and_prices(stalled: Stored) -> None:
    diagnosis = stalled.diagnose(cost=Cost("EUR", gpu_hour=2.0, kilowatt_hour=0.3, pue=1.4))
    extra = diagnosis.extra
    assert any("The job cost 4." in note and "EUR" in note for note in diagnosis.notes)
    used = extra["energy"]["kilowatt_hours"]
    assert used == pytest.approx(2 * (60 * 100 + 2340 * (100 + 500 * 0.88)) / 3.6e6, rel=0.05)
    assert 0 < extra["energy"]["lost_kilowatt_hours"] < used
    assert extra["cost"]["total"] == pytest.approx(2.0 * 2.0 + used * 0.3 * 1.4)


def test_without_a_price_no_money_is_named(stalled: Stored) -> None:
    assert "cost" not in stalled.diagnose().extra


def test_a_verdict_is_withheld_below_half_of_the_allocation(tmp_path: Path) -> None:
    stored = Stored(
        tmp_path, 1200, lambda second: working(second) if second < 600 else {"temperature_celsius": 50.0}
    )
    diagnosis = stored.diagnose(RuleSet({}))
    assert diagnosis.coverage.ratio == pytest.approx(1 / 3, abs=0.01)
    assert diagnosis.verdict.startswith("No verdict: only 33 % of the allocation was measured")
    assert diagnosis.coverage.gaps


def test_a_verdict_is_withheld_below_ten_samples(tmp_path: Path) -> None:
    stored = Stored(tmp_path, 8, working)
    verdict = stored.diagnose(RuleSet({})).verdict
    assert verdict.startswith("No verdict: too few samples, 8 of")


def test_a_log_of_utilisation_alone_says_what_it_lacks(tmp_path: Path) -> None:
    def plain(second: int) -> dict[str, float]:
        return {"gpu_util_ratio": float(second >= 60), "memory_used_bytes": 5e10}

    diagnosis = Stored(tmp_path, 1800, plain).diagnose()
    assert {device.headline for device in diagnosis.devices[:2]} == {"gpu_util_ratio"}
    assert any("SM activity was not measured" in note for note in diagnosis.notes)
    assert any("Nothing was measured on the host" in note for note in diagnosis.notes)
    assert "input/cpu-bound-loader" in {item.rule for item in diagnosis.not_evaluated}


def test_serving_is_no_badly_fed_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    busy = np.repeat(rng.uniform(0.0, 0.4, 400), 10)

    def serving(second: int) -> dict[str, float]:
        active = 0.0 if second < 60 else float(busy[second])
        return {
            "sm_active_ratio": active,
            "gpu_util_ratio": float(active > 0),
            "memory_used_bytes": 7e10,
            "processes": 1.0,
        }

    diagnosis = Stored(tmp_path, 3600, serving, tags=("inference",)).diagnose()
    assert "gaps between requests are no fault" in diagnosis.verdict
    assert [f.rule for f in diagnosis.findings if f.severity != "info"] == []


def test_a_running_job_is_judged_up_to_now(stalled: Stored) -> None:
    running = Job(KEY, "42", START_MS, None, state="running")
    diagnosis = diagnose(stalled.reader, running, RuleSet({}), now_ms=START_MS + 1_200_000)
    assert (diagnosis.end_ms - diagnosis.start_ms) == 1_200_000


@pytest.mark.parametrize(("told", "allocated"), [(8, 8), (2, 3), (None, 3), ("many", 3)])
def test_gpus_that_the_scheduler_gave_and_no_agent_knows_count_as_not_measured(
    tmp_path: Path, told: object, allocated: int
) -> None:
    coverage = Stored(tmp_path, 60, working, meta={"gpus": told}).diagnose(RuleSet({})).coverage
    assert (coverage.devices_measured, coverage.devices_allocated) == (2, allocated)


class CountingReader(MemoryReader):
    """Counts how often columns of each source are read."""

    reads: ClassVar[Counter[Source]] = Counter()

    def read(self, source: Source, start_ms: int, end_ms: int, metrics: Sequence[str] | None = None) -> Block:
        self.reads[source] += metrics != ()
        return super().read(source, start_ms, end_ms, metrics)


def test_a_job_too_large_to_keep_is_partly_read_again_and_said_to_be_the_same() -> None:
    """A node is read once for its activity, rules and figures; peers and accounts read what there was no room for."""
    rng, seconds = np.random.default_rng(0), 7 * 3600
    gpus = [Source(f"node{n}", f"GPU-{n}-{k}") for n in range(12) for k in range(2)]
    times = START_MS + 500 + 1000 * np.arange(seconds, dtype=np.int64)
    levels = {"sm_active_ratio": 0.8, "graphics_active_ratio": 0.95, "gpu_util_ratio": 0.99, "tensor_active_ratio": 0.5,
              "memory_used_bytes": 5e10, "power_watts": 500.0, "sm_clock_hertz": 1.9e9, "pcie_rx_bytes_per_second": 1e9}  # fmt: skip
    blocks = {
        gpu: Block(gpu, times, {name: level * rng.uniform(0.95, 1.0, seconds) for name, level in levels.items()})
        for gpu in gpus
    }  # fmt: skip
    blocks[gpus[5]].columns["tensor_active_ratio"][9000:] *= 0.7
    job = Job(KEY, "42", START_MS, START_MS + 1000 * seconds)
    reader = CountingReader(
        blocks,
        jobs=[job],
        allocations=[Allocation(KEY, gpu, START_MS, None, "hook") for gpu in gpus],
        devices=[Device(gpu, START_MS, model="H100", memory_total_bytes=80e9) for gpu in gpus],
    )
    rules = builtin().active()
    kept = diagnose_samples(JobSamples.read(reader, job, 0), rules)
    assert [reader.reads[gpu] for gpu in gpus] == [1] * 24
    reader.reads = Counter()
    read_again = diagnose_samples(JobSamples.read(reader, job, 0, cache_bytes=40_000_000), rules)
    assert {reader.reads[gpu] for gpu in gpus} == {1, 3}
    assert read_again == kept
    assert {one.source.node for one in kept.devices} == {f"node{n}" for n in range(12)}
