from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.rules.memory import MemoryReader
from gpudiag.rules.samples import JobSamples, grid
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Block, Source

START = 1_700_000_000_000
GPUS = tuple(Source("n1", f"GPU-{k}") for k in range(3))
NAN = float("nan")


def seconds(*times: float) -> np.ndarray:
    return (np.array(times) * 1000).astype(np.int64) + START


def on_grid(times: tuple[float, ...], values: list[float], length: int) -> list[float]:
    return list(grid(seconds(*times), np.array(values, dtype=float), START, length))


def job(**changes: object) -> Job:
    return Job(**{"key": "local/42/1", "id": "42", "start_ms": START, "end_ms": START + 10_000, **changes})  # type: ignore[arg-type]


def reader(columns: dict[str, list[float]], *, events: list[Event] | None = None) -> MemoryReader:
    length = len(next(iter(columns.values())))
    times = START + 1000 * np.arange(length, dtype=np.int64) + 300
    blocks = {
        gpu: Block(
            gpu,
            times,
            {name: np.array(values, dtype=float) for name, values in columns.items()},
            {"sm_active_ratio": "gpm"},
        )
        for gpu in GPUS
    }
    allocations = [Allocation("local/42/1", gpu, START, None, "hook") for gpu in GPUS]
    devices = [
        Device(gpu, START, model=model) for gpu, model in zip(GPUS, ("A100", "A100", "H100"), strict=True)
    ]
    return MemoryReader(blocks, jobs=[job()], allocations=allocations, devices=devices, events=events or [])


def test_a_second_holds_the_last_sample_taken_in_it():
    assert on_grid((0.1, 1.1, 1.9), [1, 2, 3], 2) == [1, 3]


def test_a_missing_second_stays_missing():
    assert np.isnan(on_grid((0.2, 1.2, 2.2, 4.2), [1, 2, 3, 4], 5)[3])


def test_jitter_across_a_second_border_leaves_no_hole():
    assert on_grid((0.0, 0.99, 2.01, 3.0), [1, 2, 3, 4], 4) == [2, 2, 3, 4]


def test_a_slower_source_holds_for_its_own_interval():
    values = on_grid((0.0, 10.0, 20.0, 30.0), [1, 2, 3, 4], 45)
    assert values[20:40] == [3] * 10 + [4] * 10
    assert np.isnan(values[40:]).all()


def test_a_gap_in_a_slow_source_is_a_gap():
    values = on_grid((0.0, 10.0, 20.0, 60.0), [1, 2, 3, 4], 70)
    assert values[29] == 3
    assert np.isnan(values[30:60]).all()


@given(
    gaps=st.lists(st.integers(200, 40_000), min_size=4, max_size=40),
    cut=st.integers(1, 3),
)
def test_the_past_of_the_grid_never_changes_when_samples_arrive(gaps: list[int], cut: int):
    times = START + np.cumsum(np.array(gaps, dtype=np.int64))
    values = np.arange(len(times), dtype=float)
    known = int((times[-cut] - START) // 1000)
    whole, part = grid(times, values, START, known), grid(times[:-cut], values[:-cut], START, known)
    np.testing.assert_array_equal(whole, part)


@given(
    times=st.lists(st.integers(0, 60_000), min_size=1, max_size=80, unique=True).map(sorted),
    period=st.just(61),
)
def test_every_sampled_second_has_a_value_of_a_sample(times: list[int], period: int):
    values = grid(START + np.array(times, dtype=np.int64), np.array(times, dtype=float), START, period)
    for second in {time // 1000 for time in times}:
        assert values[second] == max(time for time in times if time // 1000 == second)
    assert set(values[~np.isnan(values)]) <= set(map(float, times))


def test_series_start_with_the_job_and_end_with_it():
    samples = JobSamples.read(reader({"sm_active_ratio": [k / 100 for k in range(20)]}), job(), START)
    assert samples.seconds == 10
    np.testing.assert_allclose(samples.series(GPUS[0], "sm_active_ratio"), np.arange(10) / 100)
    assert samples.origin(GPUS[0], "sm_active_ratio") == "gpm"


def test_a_running_job_ends_now():
    assert JobSamples.read(reader({"power_watts": [1.0] * 20}), job(end_ms=None), START + 4_500).seconds == 5


def test_an_unknown_metric_is_missing_everywhere():
    samples = JobSamples.read(reader({"power_watts": [1.0] * 20}), job(), START)
    assert np.isnan(samples.series(GPUS[0], "sm_active_ratio")).all()


def test_samples_outside_the_allocation_are_not_the_jobs():
    store = reader({"power_watts": [1.0] * 10})
    allocations = [Allocation("local/42/1", GPUS[0], START + 3000, START + 6000, "hook")]
    samples = JobSamples(store, job(), start_ms=START, end_ms=START + 10_000, allocations=allocations)
    assert list(np.flatnonzero(~np.isnan(samples.series(GPUS[0], "power_watts")))) == [3, 4, 5]


def test_peers_are_of_the_same_model():
    samples = JobSamples.read(reader({"power_watts": [1.0] * 10}), job(), START)
    assert samples.peers(GPUS[0]) == (GPUS[1],)
    assert samples.peers(GPUS[2]) == ()


def test_events_of_other_nodes_are_left_out():
    events = [Event(Source(node, "node"), START + 1000, "xid", 79) for node in ("n1", "n2")]
    samples = JobSamples.read(reader({"power_watts": [1.0] * 10}, events=events), job(), START)
    assert [event.source.node for event in samples.events] == ["n1"]


def test_scopes_name_their_sources():
    samples = JobSamples.read(reader({"power_watts": [1.0] * 10}), job(), START)
    assert samples.sources("gpu") == GPUS
    assert samples.sources("node") == (Source("n1", "node"),)
    assert samples.beside(GPUS[1], "job") == Source("n1", "job:local/42/1")


class CountingReader(MemoryReader):
    def read(self, *arguments, **named):  # type: ignore[no-untyped-def]
        self.reads = getattr(self, "reads", 0) + 1
        return super().read(*arguments, **named)


def test_wanted_metrics_are_read_together():
    store = reader({"power_watts": [1.0] * 10, "sm_active_ratio": [0.5] * 10})
    counting = CountingReader(store.blocks)
    samples = JobSamples(counting, job(), start_ms=START, end_ms=START + 10_000)
    samples.want("gpu", ["power_watts", "sm_active_ratio"])
    for name in ("power_watts", "sm_active_ratio", "power_watts"):
        samples.series(GPUS[0], name)
    assert counting.reads == 1


def test_the_cache_is_bounded_whatever_the_number_of_gpus():
    gpus = [Source("n1", f"GPU-{k}") for k in range(64)]
    times = START + 1000 * np.arange(1000, dtype=np.int64)
    store = MemoryReader({gpu: Block(gpu, times, {"power_watts": np.ones(1000)}) for gpu in gpus})
    samples = JobSamples(
        store, job(end_ms=None), start_ms=START, end_ms=START + 1_000_000, cache_bytes=40_000
    )
    for gpu in gpus:
        assert samples.series(gpu, "power_watts").sum() == 1000
    assert samples.held_bytes <= 40_000


def shelf_reads(cache_bytes: int) -> int:
    """Reads for two passes over the columns of all GPUs, after asking for them to be kept."""
    length = 30_000
    times = START + 1000 * np.arange(length, dtype=np.int64)
    columns = {"power_watts": np.arange(length) / 8, "sm_active_ratio": np.ones(length)}
    counting = CountingReader({gpu: Block(gpu, times, columns) for gpu in GPUS})
    allocations = [Allocation("local/42/1", gpu, START, None, "hook") for gpu in GPUS]
    samples = JobSamples(
        counting, job(end_ms=None), start_ms=START, end_ms=START + 1000 * length, allocations=allocations,
        cache_bytes=cache_bytes,
    )  # fmt: skip
    samples.want_kept(["power_watts", "sm_active_ratio"], GPUS)
    for _ in range(2):
        for gpu in GPUS:
            for name, column in columns.items():
                np.testing.assert_array_equal(samples.series(gpu, name), column)
                np.testing.assert_array_equal(samples.window(gpu, name, 20, 50), column[20:50])
    assert samples.held_bytes <= cache_bytes + 8 * length  # the column in use
    return counting.reads


def test_what_can_be_kept_is_read_once():
    assert shelf_reads(2**21) == len(GPUS)


def test_what_cannot_be_kept_is_read_again():
    assert shelf_reads(300_000) > len(GPUS)


def test_series_cannot_be_changed_by_a_caller():
    samples = JobSamples.read(reader({"power_watts": [1.0] * 10}), job(), START)
    with pytest.raises(ValueError, match="read-only"):
        samples.series(GPUS[0], "power_watts")[0] = 3.0
