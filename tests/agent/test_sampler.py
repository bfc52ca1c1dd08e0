from __future__ import annotations

from typing import Any

import pytest

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.sampler import Sampler
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame, Source

GPU = Source("n1", "GPU-a")
NODE = Source("n1", "node")


@pytest.fixture
def recorder(clock: ManualClock, memory_store: Any) -> Recorder:
    return Recorder(memory_store.open, "n1", clock)


def run(sampler: Sampler, clock: ManualClock, ticks: int) -> None:
    for _ in range(ticks):
        sampler.tick()
        clock.sleep(1)


def test_frames_of_one_source_become_one_frame_per_tick(
    clock: ManualClock, recorder: Recorder, memory_store: Any, scripted: Any
) -> None:
    collectors = [
        scripted("cpu", NODE, {"cpu_busy_ratio": 0.5}),
        scripted("memory", NODE, {"memory_total_bytes": 1e9}),
        scripted("nvml", GPU, {"power_watts": 300.0}),
    ]
    sampler = Sampler(collectors, recorder, clock, "n1")
    run(sampler, clock, 2)
    sampler.close()
    first, second = clock.now_ms() - 2000, clock.now_ms() - 1000
    assert memory_store.frames == [
        Frame(NODE, first, {"cpu_busy_ratio": 0.5, "memory_total_bytes": 1e9}),
        Frame(GPU, first, {"power_watts": 300.0}),
        Frame(NODE, second, {"cpu_busy_ratio": 0.5, "memory_total_bytes": 1e9}),
        Frame(GPU, second, {"power_watts": 300.0}),
    ]


def test_samples_are_written_every_ten_seconds(
    clock: ManualClock, recorder: Recorder, memory_store: Any, scripted: Any
) -> None:
    sampler = Sampler([scripted("cpu", NODE, {"cpu_busy_ratio": 0.5})], recorder, clock, "n1")
    run(sampler, clock, 31)
    assert memory_store.appends == [11, 10, 10]


def test_a_failing_collector_takes_only_its_own_series_along(
    clock: ManualClock, recorder: Recorder, scripted: Any
) -> None:
    cpu = scripted("cpu", NODE, {"cpu_busy_ratio": 0.5})
    nvml = scripted("nvml", GPU, {"power_watts": 300.0})
    sampler = Sampler([nvml, cpu], recorder, clock, "n1")
    assert {frame.source for frame in sampler.tick().frames} == {NODE, GPU}

    nvml.error = OSError("driver gone")
    failed_at = clock.now_ms() + 1000
    clock.sleep(1)
    snapshot = sampler.tick()

    assert [frame.source for frame in snapshot.frames] == [NODE]
    bad, good = snapshot.outcomes[:2]
    assert (bad.success, bad.failures, bad.error) == (False, 1, "OSError: driver gone")
    assert bad.last_success_ms == failed_at - 1000
    assert (good.success, good.last_success_ms) == (True, failed_at)


def test_a_host_without_the_thing_is_neither_success_nor_failure(
    clock: ManualClock, recorder: Recorder, scripted: Any
) -> None:
    nfs = scripted("nfs", NODE, error=NothingToCollect("no NFS mount"))
    outcome = Sampler([nfs], recorder, clock, "n1").tick().outcomes[0]
    assert (outcome.success, outcome.failures) == (None, 0)


def test_durations_are_measured(clock: ManualClock, recorder: Recorder, scripted: Any) -> None:
    slow = scripted("nvml", GPU, {"power_watts": 1.0}, clock=clock, takes=0.25)
    outcome = Sampler([slow], recorder, clock, "n1").tick().outcomes[0]
    assert outcome.duration_seconds == pytest.approx(0.25)


def test_values_nobody_can_believe_are_left_out_and_counted(
    clock: ManualClock, recorder: Recorder, scripted: Any
) -> None:
    values = {
        "gpu_util_ratio": 42_949_672.95,
        "memory_util_ratio": -0.1,
        "temperature_celsius": float("nan"),
        "power_watts": float("inf"),
        "no_such_metric": 1.0,
        "sm_active_ratio": 1.0000001,
    }
    nvml = scripted("nvml", GPU, values)
    sampler = Sampler([nvml], recorder, clock, "n1")
    sampler.tick()
    snapshot = sampler.tick()
    assert snapshot.frames[0].values == {"sm_active_ratio": 1.0000001}
    outcome = snapshot.outcomes[0]
    assert outcome.rejected == dict.fromkeys(set(values) - {"sm_active_ratio"}, 2)


def test_a_metric_of_two_collectors_has_one_origin_and_an_empty_frame_is_no_sample(
    clock: ManualClock, recorder: Recorder, scripted: Any
) -> None:
    exporter = scripted("dcgm_exporter", GPU, {"power_watts": 1.0}, origins={"power_watts": "dcgm-exporter"})
    nvml = scripted("nvml", GPU, {"power_watts": 2.0}, origins={"power_watts": "nvml"})
    empty = scripted("cpu", NODE)
    snapshot = Sampler([exporter, nvml, empty], recorder, clock, "n1").tick()
    assert snapshot.frames == (Frame(GPU, clock.now_ms(), {"power_watts": 2.0}, {"power_watts": "nvml"}),)


def test_events_and_devices_are_written_at_once(
    clock: ManualClock, recorder: Recorder, memory_store: Any, scripted: Any
) -> None:
    event = Event(GPU, clock.now_ms(), "xid", 79)
    device = Device(GPU, clock.now_ms(), 0, model="H200")
    nvml = scripted("nvml", GPU, {"power_watts": 1.0}, extra=[event, device])
    learned: list[Device] = []
    snapshot = Sampler([nvml], recorder, clock, "n1", on_devices=learned.extend).tick()
    assert learned == [device]
    assert memory_store.events == [event]
    assert memory_store.devices == [device]
    assert snapshot.devices == {GPU: device}
    assert snapshot.events == {("GPU-a", "xid", 79): (1, event.time_ms)}


def test_skipped_ticks_are_counted(clock: ManualClock, recorder: Recorder) -> None:
    sampler = Sampler([], recorder, clock, "n1")
    run(sampler, clock, 3)
    clock.sleep(4)
    assert sampler.tick().skipped == 4


def test_suspend_and_clock_steps_become_events(
    clock: ManualClock, recorder: Recorder, memory_store: Any
) -> None:
    sampler = Sampler([], recorder, clock, "n1")
    run(sampler, clock, 2)
    clock.suspend(3600)
    run(sampler, clock, 2)
    clock.step(-90)
    run(sampler, clock, 2)
    found = [(event.kind, event.detail["seconds"]) for event in memory_store.events]
    assert found == [("suspended", 3600.0), ("clock_jump", -90.0)]


def test_slewing_by_ntp_is_no_step(clock: ManualClock, recorder: Recorder, memory_store: Any) -> None:
    sampler = Sampler([], recorder, clock, "n1")
    for _ in range(100):
        run(sampler, clock, 1)
        clock.step(0.0005)
    assert memory_store.events == []


class BrokenJudge:
    """Rules with a bug."""

    open = ()

    def observe(self, *_: Any) -> Any:
        raise ZeroDivisionError("a rule")


def test_rules_that_break_cost_neither_samples_nor_metrics(
    clock: ManualClock, recorder: Recorder, memory_store: Any, scripted: Any
) -> None:
    cpu = scripted("cpu", NODE, {"cpu_busy_ratio": 0.5})
    sampler = Sampler([cpu], recorder, clock, "n1", judge=BrokenJudge())
    run(sampler, clock, 11)
    outcomes = {outcome.collector: outcome for outcome in sampler.snapshot.outcomes}
    assert (outcomes["rules"].success, outcomes["rules"].error) == (False, "ZeroDivisionError: a rule")
    assert outcomes["cpu"].success
    assert len(memory_store.frames) == 11


def test_closing_writes_what_is_in_memory_and_closes_collectors(
    clock: ManualClock, recorder: Recorder, memory_store: Any, scripted: Any
) -> None:
    cpu = scripted("cpu", NODE, {"cpu_busy_ratio": 0.5})
    sampler = Sampler([cpu], recorder, clock, "n1")
    run(sampler, clock, 3)
    assert memory_store.frames == []
    sampler.close()
    assert len(memory_store.frames) == 3
    assert (cpu.closed, memory_store.closed) == (1, 1)
