"""Every way in which the driver fails: which frames, events and status come out, and what the tick costs meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml.control import FakeNvml
from fake_nvml.harness import Bench

from gpudiag.agent.probe.client import ProbeClient
from gpudiag.agent.runner import Runner
from gpudiag.storage.job import Event

pytestmark = pytest.mark.integration
MakeBench = Callable[..., Bench]
POWER = "nvmlDeviceGetPowerUsage"
QUICK = 0.3  # seconds that a tick may take while the driver is stuck; the interval is 1 s


class Unkillable(ProbeClient):
    """As a process in uninterruptible sleep: SIGKILL does nothing."""

    def kill(self) -> None:
        return


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Real time passes until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


# one call of one GPU ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("not_supported", "not supported by this GPU in its present mode"),
        ("no_permission", "no permission: the driver restricts it to root (CAP_SYS_ADMIN)"),
        ("function_not_found", "this driver's library does not have the function"),
        ("argument_version_mismatch", "this driver knows another version of the structure"),
    ],
)
def test_a_call_that_cannot_be_made_is_an_absent_metric_with_a_reason(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, mode: str, reason: str
) -> None:
    fake_nvml.fail(0, POWER, mode)
    bench = nvml_bench()
    cycle = bench.settled()
    assert "power_watts" not in cycle.frames[fake_nvml.uuid(0)].values
    assert cycle.frames[fake_nvml.uuid(1)].values["power_watts"] == 550.0
    assert bench.collector.status.absent == {fake_nvml.uuid(0): {POWER: reason}}
    assert cycle.events == []
    before = fake_nvml.calls(POWER)
    for _ in range(5):
        bench.cycle()
    assert fake_nvml.calls(POWER) - before == 5 * 7  # seven GPUs; the eighth is not asked again soon


def test_a_missing_symbol_is_an_absent_metric_on_all(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, fake_nvml_build: Callable[..., Path]
) -> None:
    symbols = ("nvmlDeviceGetPowerUsage", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetUtilizationRates")
    bench = nvml_bench(environ={"LD_LIBRARY_PATH": str(fake_nvml_build(*symbols).parent)})
    values = bench.settled().frames[fake_nvml.uuid(0)].values
    assert not {"power_watts", "sm_active_ratio", "gpu_util_ratio"} & set(values)
    assert values["temperature_celsius"] == 55
    assert set(symbols) <= set(bench.collector.status.absent[fake_nvml.uuid(0)])


def test_a_mishap_is_a_gap_of_one_sample(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.fail(0, POWER, "unknown")
    assert "power_watts" not in bench.cycle().frames[fake_nvml.uuid(0)].values
    fake_nvml.heal(0, POWER)
    assert bench.cycle().frames[fake_nvml.uuid(0)].values["power_watts"] == 550.0


def test_a_call_that_keeps_failing_is_asked_once_a_minute(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.fail(0, POWER, "unknown")
    before = fake_nvml.calls(POWER)
    for _ in range(10):
        bench.cycle()
    assert fake_nvml.calls(POWER) - before == 10 * 7 + 3
    assert bench.collector.status.absent[fake_nvml.uuid(0)] == {POWER: "unknown (999)"}


def test_one_field_that_is_not_supported_costs_only_itself(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.field(0, 74, "not_supported")
    bench = nvml_bench()
    values = bench.settled().frames[fake_nvml.uuid(0)].values
    assert "throttle_power_seconds_total" not in values
    assert values["throttle_thermal_seconds_total"] == 0
    assert bench.collector.status.absent[fake_nvml.uuid(0)] == {
        "field 74": "not supported by this GPU in its present mode"
    }


def test_garbage_is_rejected_by_the_runner_and_counted(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(0, "gpu_util", 808_334_905)
    fake_nvml.set(0, "power_mw", 0xFFFFFFFF)
    bench = nvml_bench()
    bench.settled()
    runner = Runner(bench.collector, bench.clock)
    frames = {frame.source.device: frame for frame in runner.run(bench.clock.now_ms()).frames}
    assert not {"gpu_util_ratio", "power_watts"} & set(frames[fake_nvml.uuid(0)].values)
    assert runner.outcome.rejected == {"gpu_util_ratio": 1, "power_watts": 1}


def test_what_the_collector_rejects_is_counted_too(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(0, "memory_used", 0xFFFFFFFFFFFFF000)
    bench = nvml_bench()
    bench.until_frames()
    runner = Runner(bench.collector, bench.clock)
    runner.run(bench.clock.now_ms())
    assert runner.outcome.rejected == {"memory_used_bytes": 2}


def test_a_slow_driver_delays_a_tick_by_half_an_interval_at_most(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench(interval=0.4)
    bench.settled()
    fake_nvml.fail(0, POWER, "slow", delay=0.5)
    late = bench.cycle(0.4)
    assert late.failure.startswith("driver late")
    assert late.seconds < 0.35
    time.sleep(0.5)
    arrived = bench.cycle(0.4)
    assert len(arrived.frames) == 8
    assert arrived.events == []
    assert bench.collector.status.slowest[0] == POWER


def test_an_answer_that_comes_much_too_late_is_not_stamped_with_now(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench(interval=0.2)
    bench.settled()
    fake_nvml.fail(0, POWER, "slow", delay=0.3)
    fake_nvml.xid(1, 63)
    bench.cycle(5.0)
    time.sleep(0.4)
    cycle = bench.cycle(0.2)
    assert cycle.frames == {}
    assert cycle.kinds == ["xid"]


# one GPU ------------------------------------------------------------------------------------------------


def test_a_lost_gpu_is_told_once_and_the_others_go_on(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.set(3, "lost", 1)
    cycle = bench.cycle()
    event = cycle.events[0]
    assert (event.source.device, event.kind, event.code) == (fake_nvml.uuid(3), "gpu_lost", 15)
    assert event.detail["operation"].startswith("nvmlDevice")
    assert set(cycle.frames) == {fake_nvml.uuid(gpu) for gpu in range(8) if gpu != 3}
    before = fake_nvml.calls()
    later = [bench.cycle() for _ in range(10)]
    assert [kind for one in later for kind in one.kinds] == []
    assert all(len(one.frames) == 7 for one in later)
    assert bench.collector.status.lost == {fake_nvml.uuid(3): "gpu is lost (15)"}
    assert fake_nvml.calls() > before


def test_a_gpu_that_was_reset_comes_back_with_a_fresh_process(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.set(3, "lost", 1)
    assert bench.cycle().kinds == ["gpu_lost"]
    fake_nvml.reset(3)
    assert len(bench.cycle(310.0).frames) == 7  # this process cannot see it any more
    cycle = bench.until_frames()
    assert cycle.kinds == ["gpu_recovered"]
    assert len(cycle.frames) == 8
    assert len(bench.probes) == 2
    assert len(fake_nvml.clients) == 1


def test_a_gpu_that_stays_lost_causes_ever_rarer_fresh_starts(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.set(3, "lost", 1)
    kinds = list(bench.cycle().kinds)
    for _ in range(60):  # an hour
        kinds += bench.cycle(60.0).kinds
        kinds += bench.until_frames().kinds
    assert kinds == ["gpu_lost"]
    assert 3 <= bench.collector.status.starts <= 5


def test_a_gpu_missing_after_a_restart_of_the_agent_is_noticed(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    first = nvml_bench()
    known = list(first.until_frames().devices.values())
    first.collector.close()
    fake_nvml.set(7, "present", 0)
    bench = nvml_bench(known=known)
    cycle = bench.until_frames()
    assert [(one.source.device, one.kind) for one in cycle.events] == [(fake_nvml.uuid(7), "gpu_lost")]
    assert cycle.events[0].detail == {"reason": "the driver no longer lists it", "expected": 8, "found": 7}
    assert cycle.devices == {}  # nothing new about the seven
    assert len(cycle.frames) == 7


def test_a_gpu_lost_already_at_start_is_matched_to_its_uuid(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    first = nvml_bench()
    known = list(first.until_frames().devices.values())
    first.collector.close()
    fake_nvml.set(2, "lost", 1)
    events = nvml_bench(known=known).until_frames().events
    assert [(one.source.device, one.kind, one.code) for one in events] == [
        (fake_nvml.uuid(2), "gpu_lost", 15)
    ]


def test_a_lost_gpu_that_nobody_knew_is_told_of_by_index(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(2, "lost", 1)
    bench = nvml_bench()
    events = bench.until_frames().events
    assert [(one.source.device, one.kind, one.code, one.ordinal) for one in events] == [
        ("node", "gpu_lost", 15, 2)
    ]
    assert bench.collector.status.lost == {"index 2": "gpu is lost (15)"}
    fake_nvml.reset(2)
    bench.clock.sleep(310.0)
    cycle = bench.until_frames()
    assert len(cycle.frames) == 8
    assert list(cycle.devices) == [fake_nvml.uuid(2)]
    assert bench.collector.status.lost == {}


# the whole driver ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "gpu"), [("nvmlInitWithFlags", None), (POWER, 5)])
def test_a_hang_is_told_once_with_the_call_it_is_in(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, call: str, gpu: int | None
) -> None:
    bench = nvml_bench(hang_after=30.0, start_after=30.0)
    if gpu is not None:
        bench.settled()
    fake_nvml.fail(gpu, call, "hang")
    cycles = [bench.cycle() for _ in range(40)]
    hangs = [event for cycle in cycles for event in cycle.events]
    assert [event.kind for event in hangs] == ["driver_hung"]
    detail = hangs[0].detail
    assert detail["operation"] == call
    assert detail["device"] == (fake_nvml.uuid(gpu) if gpu is not None else "")
    assert detail["state"] in ("S", "R", "D")
    assert str(detail["pid"]) in detail["stat"]
    assert not any(cycle.frames for cycle in cycles)
    assert all(cycle.failure or cycle.nothing for cycle in cycles)
    assert bench.collector.status.state == "hung"
    assert max(cycle.seconds for cycle in cycles[1:]) < QUICK


def test_the_event_of_a_failure_survives_the_failure(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    runner = Runner(bench.collector, bench.clock)
    fake_nvml.fail(0, POWER, "crash")
    reading = runner.run(bench.clock.now_ms())
    assert (reading.frames, [event.kind for event in reading.events]) == ((), ["driver_crashed"])
    assert not runner.outcome.success


def test_a_killable_hang_is_tried_again_ever_more_rarely(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench(hang_after=30.0, start_after=30.0)
    bench.settled()
    fake_nvml.fail(None, "*", "hang")
    kinds: list[str] = []
    for _ in range(1800):  # half an hour
        if bench.collector._keeper._killed:
            wait_for(bench.probes[-1].ended)
        kinds += bench.cycle().kinds
    assert kinds == ["driver_hung"]
    assert 4 <= bench.collector.status.starts <= 8
    alive = [probe for probe in bench.probes if not probe.ended()]
    assert len(alive) <= 1
    fake_nvml.heal(None)
    bench.clock.sleep(700.0)
    cycle = bench.until_frames()
    assert cycle.kinds == ["driver_recovered"]
    assert cycle.events[0].detail["after"] == "driver_hung"
    assert cycle.events[0].detail["seconds"] > 1700


def test_beside_a_child_that_cannot_be_killed_no_second_one_is_started(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, tmp_path: Path
) -> None:
    bench = nvml_bench(hang_after=30.0)
    bench._start = lambda: bench.probes.append(stuck) or stuck  # type: ignore[method-assign,func-returns-value]
    stuck = Unkillable(environ={**os.environ, **fake_nvml.environ})
    bench.collector._keeper._start = bench._start
    bench.settled()
    fake_nvml.fail(0, POWER, "hang")
    cycles = [bench.cycle(10.0) for _ in range(400)]  # more than an hour
    assert [kind for cycle in cycles for kind in cycle.kinds] == ["driver_hung"]
    assert bench.probes == [stuck]
    fake_nvml.heal(0, POWER)  # the call returns after all
    cycle = bench.until_frames()
    assert cycle.kinds == ["driver_recovered"]
    ProbeClient.kill(stuck)


def test_a_restarted_agent_does_not_tell_of_the_same_hang_again(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.fail(None, "nvmlInitWithFlags", "hang")
    bench = nvml_bench(start_after=30.0, open_episode=("driver_hung", 0))
    assert [kind for _ in range(40) for kind in bench.cycle().kinds] == []
    assert bench.collector.status.state == "hung"
    fake_nvml.heal(None, "nvmlInitWithFlags")
    wait_for(bench.probes[-1].ended)
    bench.cycle(60.0)
    assert bench.until_frames().kinds == ["driver_recovered"]


@pytest.mark.parametrize(
    ("mode", "code"),
    [("driver_not_loaded", 9), ("lib_rm_version_mismatch", 18), ("unknown", 999), ("no_permission", 4)],
)
def test_a_driver_that_cannot_be_opened_is_told_once_and_tried_again(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, mode: str, code: int
) -> None:
    fake_nvml.fail(None, "nvmlInitWithFlags", mode)
    bench = nvml_bench()
    events = []
    for _ in range(120):
        events += bench.cycle().events
        if bench.probes and bench.collector.status.pid is not None:
            wait_for(bench.probes[-1].ended)  # it says that it cannot, and ends
    assert [(one.kind, one.code) for one in events] == [("driver_unavailable", code)]
    assert events[0].detail["operation"] == "nvmlInitWithFlags"
    assert "libnvidia-ml.so.1" in events[0].detail["library"]
    assert 3 <= bench.collector.status.starts <= 8
    assert fake_nvml.clients == []
    fake_nvml.heal(None, "nvmlInitWithFlags")
    bench.clock.sleep(60.0)
    assert bench.until_frames().kinds == ["driver_recovered"]


def test_an_upgraded_driver_names_library_and_kernel_module(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, tmp_path: Path
) -> None:
    module = tmp_path / "proc/driver/nvidia/version"
    module.parent.mkdir(parents=True)
    module.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\nGCC version: 12\n"
    )
    fake_nvml.fail(None, "nvmlInitWithFlags", "lib_rm_version_mismatch")
    bench = nvml_bench()
    events: list[Event] = []
    wait_for(lambda: bool(events.extend(bench.cycle(0.0).events)) or bool(events))
    assert events[0].code == 18
    assert events[0].detail["library"] == str(fake_nvml.library)
    assert events[0].detail["module"].endswith("570.124.06  Wed Feb 26")


@pytest.mark.parametrize(("mode", "code"), [("driver_not_loaded", 9), ("uninitialized", 1), ("unknown", 999)])
def test_a_driver_that_goes_away_while_running_ends_the_series(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, mode: str, code: int
) -> None:
    fake_nvml.processes(0, [(77, 1)])
    bench = nvml_bench()
    bench.settled()
    assert bench.collector.processes
    for gpu in range(8):
        fake_nvml.fail(gpu, "*", mode)
    cycle = bench.cycle()
    assert [(one.kind, one.code) for one in cycle.events] == [("driver_unavailable", code)]
    assert cycle.frames == {}
    assert cycle.failure.startswith("driver unavailable")
    assert bench.collector.processes == ()
    assert fake_nvml.clients == []  # nothing holds the module: it can be unloaded or replaced
    for gpu in range(8):
        fake_nvml.heal(gpu)
    bench.clock.sleep(10.0)
    recovered = bench.until_frames()
    assert recovered.kinds == ["driver_recovered"]
    assert recovered.devices == {}


def test_a_kernel_module_that_changes_ends_the_wait(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, tmp_path: Path
) -> None:
    fake_nvml.fail(None, "nvmlInitWithFlags", "driver_not_loaded")
    bench = nvml_bench()
    wait_for(lambda: bench.cycle(0.0).kinds == ["driver_unavailable"])
    bench.cycle(0.0)
    fake_nvml.heal(None, "nvmlInitWithFlags")
    module = tmp_path / "proc/driver/nvidia/version"
    module.parent.mkdir(parents=True)
    module.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08\nGCC version: 12\n")
    assert bench.until_frames().frames  # no time has passed on the clock


def test_a_host_without_the_library_has_nothing_to_collect(nvml_bench: MakeBench, tmp_path: Path) -> None:
    bench = nvml_bench(environ={"LD_LIBRARY_PATH": str(tmp_path)})
    wait_for(lambda: bench.cycle(0.0).nothing.startswith("nvmlInitWithFlags: library not found"))
    cycles = [bench.cycle(10.0) for _ in range(30)]
    assert [kind for cycle in cycles for kind in cycle.kinds] == []
    assert all(cycle.nothing for cycle in cycles)
    assert bench.collector.status.starts <= 4


def test_a_library_missing_where_there_were_gpus_is_trouble(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, tmp_path: Path
) -> None:
    first = nvml_bench()
    known = list(first.until_frames().devices.values())
    bench = nvml_bench(environ={"LD_LIBRARY_PATH": str(tmp_path)}, known=known)
    events = []
    wait_for(lambda: bool(events.extend(bench.cycle(0.0).events)) or bool(events))
    assert [(one.kind, one.code) for one in events] == [("driver_unavailable", 12)]


def test_a_crash_inside_the_driver_takes_only_the_child(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.fail(4, POWER, "crash")
    cycle = bench.cycle()
    event = cycle.events[0]
    assert (event.kind, event.source.device) == ("driver_crashed", "node")
    assert (event.detail["how"], event.detail["operation"]) == ("signal SIGABRT", POWER)
    assert event.detail["device"] == fake_nvml.uuid(4)
    assert "died (signal SIGABRT)" in cycle.failure
    fake_nvml.heal(4, POWER)
    bench.clock.sleep(10.0)
    assert bench.until_frames().kinds == ["driver_recovered"]


# letting go ---------------------------------------------------------------------------------------------


def test_release_lets_go_of_every_device_for_the_time_given(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench()
    bench.settled()
    assert len(fake_nvml.clients) == 1
    assert bench.collector.release(600.0)
    assert fake_nvml.clients == []
    assert bench.probes[-1].ended()
    cycles = [bench.cycle(60.0) for _ in range(9)]
    assert {cycle.nothing for cycle in cycles} == {"released on request"}
    assert [kind for cycle in cycles for kind in cycle.kinds] == []
    bench.clock.sleep(61.0)
    assert len(bench.until_frames().frames) == 8


def test_resume_ends_a_release_early(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    bench.collector.release(600.0)
    fake_nvml.reset(0)
    bench.collector.resume()
    assert len(bench.until_frames().frames) == 8


def test_release_says_when_the_probe_is_stuck(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    stuck = Unkillable(environ={**os.environ, **fake_nvml.environ})
    bench.probes.append(stuck)
    bench.collector._keeper._start = lambda: stuck
    bench.settled()
    fake_nvml.fail(0, POWER, "hang")
    bench.cycle()
    assert not bench.collector.release(60.0)
    ProbeClient.kill(stuck)


def test_a_child_whose_agent_died_lets_go_too(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    bench.probes[-1]._socket.close()
    wait_for(bench.probes[-1].ended)
    assert fake_nvml.clients == []
    assert bench.cycle().kinds == ["driver_crashed"]
