"""The live engine and a pass over the stored job must say the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.rules import engine, loader
from gpudiag.rules.engine import judge
from gpudiag.rules.live import LiveEngine, LiveJob, body_of
from gpudiag.rules.memory import MemoryReader
from gpudiag.rules.ring import Ring, Rings
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples, grid
from gpudiag.rules.testing import builtin_cases, samples_of
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Block, Frame, Source
from gpudiag.storage.store import StoredFinding

MATURITIES = ("stable", "incubating")
Key = tuple[str, Source, int]


def every_rule() -> RuleSet:
    return loader.builtin().active(MATURITIES)


def afterwards(samples: JobSamples, ruleset: RuleSet) -> dict[Key, StoredFinding]:
    found = {}
    for fired in judge(samples, ruleset).fired:
        for one in fired.intervals:
            end = None if one.open else one.end_ms
            body = body_of(one, fired.cause)
            found[(fired.rule, fired.source, one.start_ms)] = StoredFinding(
                fired.rule, fired.source, one.start_ms, end, one.severity, samples.job.key, body
            )
    return found


def live(
    samples: JobSamples, ruleset: RuleSet, every_s: int = 10, wait_s: int = 0
) -> dict[Key, StoredFinding]:
    """Play the stored frames and events to the live engine, judging every `every_s` seconds."""
    reader = samples.reader
    assert isinstance(reader, MemoryReader)
    frames = sorted(frames_of(reader), key=lambda frame: frame.time_ms)
    node = samples.nodes[0]
    live_engine = LiveEngine(ruleset, node, maturities=MATURITIES, together_s=every_s, wait_s=wait_s)
    devices = tuple(samples.devices.values())
    live_engine.set_jobs([LiveJob(replace(samples.job, end_ms=None), samples.allocations, devices)])
    events, at, found = list(samples.events), 0, {}
    first, every_ms = samples.start_ms // 10_000 * 10_000, every_s * 1000
    times = [*range(first + every_ms, samples.end_ms + 1, every_ms), samples.end_ms // 10_000 * 10_000]
    before_ms = 0
    for now_ms in times:
        stop = at
        while stop < len(frames) and frames[stop].time_ms < now_ms:
            stop += 1
        live_engine.observe(frames[at:stop])
        live_engine.observe_events([e for e in events if before_ms <= e.time_ms < now_ms])
        before_ms = now_ms
        at = stop
        for finding in live_engine.evaluate(now_ms):
            found[(finding.rule, finding.source, finding.start_ms)] = finding
    if wait_s:  # what waits is judged in the minutes after the end, on nothing that came later
        live_engine.set_jobs([LiveJob(replace(samples.job, end_ms=times[-1]), samples.allocations, devices)])
        for finding in live_engine.evaluate(times[-1] + 300_000):
            found[(finding.rule, finding.source, finding.start_ms)] = finding
    for finding in live_engine.open:
        found[(finding.rule, finding.source, finding.start_ms)] = finding
    return found


def frames_of(reader: MemoryReader) -> list[Frame]:
    frames = []
    for source, block in reader.blocks.items():
        for k, time_ms in enumerate(block.times_ms.tolist()):
            values = {
                name: float(column[k]) for name, column in block.columns.items() if not np.isnan(column[k])
            }
            if values:
                frames.append(Frame(source, time_ms, values))
    return frames


def random_job(seed: int, seconds: int = 4000) -> JobSamples:
    """A job of piecewise behaviour with everything that can go wrong: gaps, jitter, slow metrics, resets, events."""
    rng = np.random.default_rng(seed)
    start = 1_700_000_000_000 + int(rng.integers(0, 10_000))
    gpus = [Source("n1", f"GPU-{k}") for k in range(int(rng.integers(1, 4)))]
    job = Job("local/42/1", "42", start, start + seconds * 1000 + int(rng.integers(0, 900)))
    host, share = Source("n1", "node"), Source("n1", f"job:{job.key}")
    bounds = {
        "sm_active_ratio": (0, 1), "gpu_util_ratio": (0, 1), "tensor_active_ratio": (0, 0.6), "dram_active_ratio": (0, 0.8),
        "graphics_active_ratio": (0, 1), "memory_used_bytes": (2e9, 84e9), "power_watts": (60, 400), "temperature_celsius": (30, 92),
        "sm_clock_hertz": (0.6e9, 1.98e9), "clock_event_reasons": (0, 140), "pcie_rx_bytes_per_second": (0, 2e10),
        "pcie_tx_bytes_per_second": (0, 2e10), "nvlink_tx_bytes_per_second": (0, 1e11), "nvlink_rx_bytes_per_second": (0, 1e11),
        "processes": (0, 2), "fp32_active_ratio": (0, 0.5), "pcie_link_generation": (3, 5), "pcie_link_width": (8, 16),
    }  # fmt: skip
    of_job = {
        "loader_cpu_ratio": (0, 1), "loader_workers": (0, 16), "loader_dstate_ratio": (0, 1), "job_cpu_busy_ratio": (0, 1),
        "job_cpus_allowed": (16, 16), "main_cpu_ratio": (0, 1.1), "job_pressure_io_some_ratio": (0, 0.6), "job_processes": (0, 9),
        "job_memory_working_set_bytes": (1e10, 1e11), "job_memory_limit_bytes": (1.1e11, 1.1e11), "job_write_bytes_per_second": (0, 3e8),
        "job_read_bytes_per_second": (0, 3e8),
    }  # fmt: skip
    of_node = {
        "pressure_io_some_ratio": (0, 0.5),
        "memory_total_bytes": (2e11, 2e11),
        "swap_in_bytes_per_second": (0, 5e6),
    }
    blocks = {gpu: block(rng, gpu, start, seconds, bounds) for gpu in gpus}
    blocks[share] = block(rng, share, start, seconds, of_job)
    blocks[host] = block(rng, host, start, seconds, of_node)
    events = [
        Event(gpus[0], start + int(rng.integers(0, seconds)) * 1000, "xid", int(code))
        for code in rng.choice([13, 79, 94, 43], 3)
    ]
    edges = sorted(rng.integers(0, seconds * 1000, 12).tolist())
    words = ["eval_start", "eval_end", "checkpoint_start", "checkpoint_end"]
    events += [
        Event(share, start + at, "mark", ordinal=number, detail={"name": str(rng.choice(words))})
        for number, at in enumerate(edges)
    ]
    return JobSamples.read(
        MemoryReader(
            blocks,
            jobs=[job],
            allocations=[Allocation(job.key, gpu, start, None, "hook") for gpu in gpus],
            devices=[
                Device(
                    gpu,
                    start,
                    model="A100",
                    memory_total_bytes=85e9,
                    max_sm_clock_hertz=1.98e9,
                    power_limit_watts=400.0,
                )
                for gpu in gpus
            ],
            events=events,
        ),
        job,
        0,
    )


def block(
    rng: np.random.Generator, source: Source, start: int, seconds: int, bounds: dict[str, tuple[float, float]]
) -> Block:
    times = (
        start + np.sort(rng.choice(seconds * 10, int(seconds * rng.uniform(0.9, 1.0)), replace=False)) * 100
    )
    gap = int(rng.integers(0, len(times) - 400))
    times = np.delete(times, np.s_[gap : gap + int(rng.integers(0, 300))]).astype(np.int64)
    columns = {}
    for name, (low, high) in bounds.items():
        if rng.random() < 0.08:
            continue
        columns[name] = column(rng, times, name, low, high)
    return Block(source, times, columns)


def column(rng: np.random.Generator, times: np.ndarray, name: str, low: float, high: float) -> np.ndarray:
    pieces = np.sort(rng.choice(len(times), 6, replace=False))
    level = np.repeat(rng.uniform(low, high, 7), np.diff(np.concatenate(([0], pieces, [len(times)]))))
    if rng.random() < 0.3:
        level = np.linspace(rng.uniform(low, high), high, len(times))
    if rng.random() < 0.3:
        level = np.where(np.arange(len(times)) % int(rng.integers(4, 40)) < 2, low, level)
    values = np.clip(level + rng.normal(0, 0.03 * (high - low), len(times)), low, high)
    if name in (
        "clock_event_reasons",
        "processes",
        "loader_workers",
        "pcie_link_generation",
        "job_processes",
    ):
        values = np.floor(values)
    if rng.random() < 0.2:
        values[np.arange(len(values)) % 10 > 0] = np.nan
    return values


def assert_same(samples: JobSamples, ruleset: RuleSet, every_s: int = 10, wait_s: int = 0) -> int:
    told, stored = live(samples, ruleset, every_s, wait_s), afterwards(samples, ruleset)
    assert sorted(told) == sorted(stored)
    for key, finding in stored.items():
        assert told[key] == finding
    return len(stored)


@pytest.mark.parametrize("seed", range(2))
def test_random_jobs_are_judged_the_same_live_and_afterwards(seed: int):
    assert assert_same(random_job(seed), every_rule()) > 0


def test_a_job_longer_than_one_chunk_is_judged_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "CHUNK_S", 1500)
    assert assert_same(random_job(99), every_rule()) > 0


def test_slots_judged_a_minute_at_a_time_give_the_same():
    assert assert_same(random_job(5), every_rule(), every_s=60) > 0


def test_evaluations_that_wait_for_one_another_give_the_same():
    assert assert_same(random_job(7), every_rule(), wait_s=60) > 0


def test_a_waiting_rule_is_told_within_the_minute_and_an_event_at_once():
    begin = 1_700_000_040
    gpu = Source("n1", "GPU-0")
    job = Job("local/42/1", "42", begin * 1000)
    live_engine = LiveEngine(loader.builtin(), "n1", wait_s=60)
    live_engine.set_jobs([LiveJob(job, (Allocation(job.key, gpu, begin * 1000, None, "hook"),))])
    live_engine.observe_events([Event(gpu, (begin + 1195) * 1000, "xid", 79)])
    told: dict[str, list[int]] = {}
    for now in range(begin + 10, begin + 1500, 10):
        live_engine.observe(idle_frames(now - 10, now))
        for finding in live_engine.evaluate(now * 1000):
            body = finding.body
            told.setdefault(finding.rule, []).append(now - int(body["announced_ms"]) // 1000)
    assert told["health/xid"][0] == 0
    assert 0 <= told["util/allocated-idle"][0] <= 60


def test_a_gpu_that_leaves_is_judged_up_to_then():
    """A job that loses one GPU of two while evaluations wait: that one's finding stands as if none had waited."""
    said = [_idle_then_shrunk(wait_s) for wait_s in (0, 60)]
    assert said[0] == said[1]
    assert {source.device for _, source, _ in said[0]} == {"GPU-0", "GPU-1"}


def _idle_then_shrunk(wait_s: int) -> set[Key]:
    begin = 1_700_000_040
    job = Job("local/42/1", "42", begin * 1000)
    both = [Source("n1", "GPU-0"), Source("n1", "GPU-1")]
    live_engine = LiveEngine(loader.builtin().only(["util/allocated-idle"]), "n1", wait_s=wait_s)
    found: set[Key] = set()
    for now in range(begin + 10, begin + 1500, 10):
        have = both if now <= begin + 490 else both[:1]
        live_engine.set_jobs(
            [LiveJob(job, tuple(Allocation(job.key, gpu, begin * 1000, None, "hook") for gpu in have))]
        )
        for gpu in both:
            live_engine.observe(replace(frame, source=gpu) for frame in idle_frames(now - 10, now))
        found |= {(one.rule, one.source, one.start_ms) for one in live_engine.evaluate(now * 1000)}
    return found


def test_rule_cases_are_judged_the_same_live_and_afterwards():
    findings = 0
    for case in builtin_cases():
        if case.seconds <= 1810 and case.gpus <= 2:
            findings += assert_same(samples_of(case), every_rule().only([case.rule]))
    assert findings > 10


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.one_of(st.integers(100, 3000), st.integers(100, 200_000)), min_size=1, max_size=60),
    look=st.integers(1, 300),
)
def test_a_ring_holds_what_the_grid_of_all_samples_says(gaps: list[int], look: int):
    start = 1_700_000_000_000
    times = start + np.cumsum(np.array(gaps, dtype=np.int64))
    values = np.arange(len(times), dtype=float)
    ring = Ring(300)
    for time_ms, value in zip(times.tolist(), values.tolist(), strict=True):
        ring.put(time_ms, value)
    end = int(times[-1] // 1000) + look
    whole = grid(times, values, start, end - start // 1000)
    first = max(start // 1000, end - 300)
    np.testing.assert_array_equal(ring.window(first, end), whole[first - start // 1000 :])


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.one_of(st.integers(900, 1100), st.integers(100, 40_000)), min_size=1, max_size=80),
    silent=st.sets(st.integers(0, 80)),
    switch=st.integers(0, 80),
)
def test_frames_put_away_together_leave_the_same_as_one_by_one(
    gaps: list[int], silent: set[int], switch: int
):
    times = 1_700_000_000_000 + np.cumsum(np.array(gaps, dtype=np.int64))
    gpu = Source("n1", "GPU-0")
    together, single = Rings({("gpu", "power_watts"): 300}), Ring(300)
    for k, time_ms in enumerate(times.tolist()):
        values = {} if k in silent else {"power_watts": float(k)}
        origins = {"power_watts": "dcgm" if k < switch else "nvml"}
        together.put(Frame(gpu, time_ms, values, origins))
        if values:
            single.put(time_ms, float(k), origins["power_watts"])
    end = int(times[-1] // 1000) + 5
    np.testing.assert_array_equal(
        together.window(gpu, "power_watts", end - 300, end), single.window(end - 300, end)
    )


def test_a_ring_forgets_what_an_older_clock_said():
    ring = Ring(60)
    ring.put(2_000_000_000, 1.0)
    ring.put(1_000_000_000, 2.0)
    assert np.nansum(ring.window(999_990, 1_000_001)) == 2.0


def test_late_samples_do_not_change_what_was_judged():
    ring = Ring(60)
    ring.put(10_000, 1.0)
    ring.put(9_000, 5.0)
    assert np.isnan(ring.window(9, 10)).all()


def idle_frames(first: int, last: int, utilisation: float = 0.0) -> list[Frame]:
    gpu = Source("n1", "GPU-0")
    return [
        Frame(gpu, s * 1000 + 100, {"gpu_util_ratio": utilisation, "sm_active_ratio": utilisation})
        for s in range(first, last)
    ]


def test_a_finding_opens_is_kept_open_and_closes_with_its_job():
    begin = 1_700_000_000
    job = Job("local/42/1", "42", begin * 1000)
    allocation = Allocation(job.key, Source("n1", "GPU-0"), begin * 1000, None, "hook")
    live_engine = LiveEngine(loader.builtin(), "n1")
    opened = []
    for slot in range(0, 1500, 10):
        live_engine.set_jobs([LiveJob(job, (allocation,))])
        live_engine.observe(idle_frames(begin + slot, begin + slot + 10))
        opened += live_engine.evaluate((begin + slot + 10) * 1000)
    assert [finding.rule for finding in live_engine.open] == ["util/allocated-idle"]
    assert opened[0].end_ms is None
    live_engine.set_jobs([])
    closed = {finding.rule: finding.end_ms for finding in live_engine.evaluate((begin + 1510) * 1000)}
    assert closed == {"util/allocated-idle": (begin + 1510) * 1000}
    assert live_engine.open == ()


def test_an_open_finding_is_not_repeated_every_ten_seconds():
    begin = 1_700_000_000
    job = Job("local/42/1", "42", begin * 1000)
    allocation = Allocation(job.key, Source("n1", "GPU-0"), begin * 1000, None, "hook")
    live_engine = LiveEngine(loader.builtin(), "n1")
    live_engine.set_jobs([LiveJob(job, (allocation,))])
    told = 0
    for slot in range(0, 2400, 10):
        live_engine.observe(idle_frames(begin + slot, begin + slot + 10))
        told += len(live_engine.evaluate((begin + slot + 10) * 1000))
    assert 1 <= told <= 1 + (2400 - 450) // 60  # known from half a window on, then once a minute


def test_memory_stays_bounded_over_a_long_job():
    begin = 1_700_000_000
    job = Job("local/42/1", "42", begin * 1000)
    allocation = Allocation(job.key, Source("n1", "GPU-0"), begin * 1000, None, "hook")
    live_engine = LiveEngine(loader.builtin().only(["util/low-sm-activity"]), "n1")
    live_engine.set_jobs([LiveJob(job, (allocation,))])
    for slot in range(0, 12_000, 10):
        live_engine.observe(idle_frames(begin + slot, begin + slot + 10, 0.9))
        live_engine.evaluate((begin + slot + 10) * 1000)
    watch = live_engine._watches[job.key]
    assert len(watch._labels) < 4000
    assert sum(len(ring._values) for ring in live_engine._rings._rings[Source("n1", "GPU-0")].values()) < 5000


def test_a_job_older_than_the_agent_is_followed_from_now_on():
    begin = 1_700_000_000
    job = Job("local/42/1", "42", (begin - 30 * 86400) * 1000)
    allocation = Allocation(job.key, Source("n1", "GPU-0"), job.start_ms, None, "hook")
    live_engine = LiveEngine(loader.builtin(), "n1")
    live_engine.set_jobs([LiveJob(job, (allocation,))])
    for slot in range(0, 1200, 10):
        live_engine.observe(idle_frames(begin + slot, begin + slot + 10))
        live_engine.evaluate((begin + slot + 10) * 1000)
    assert len(live_engine._watches[job.key]._labels) < 2000
    assert "util/allocated-idle" in [finding.rule for finding in live_engine.open]
