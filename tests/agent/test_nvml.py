"""Every signal of NVML through the real binding, against a driver whose values the test knows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml.control import GIB, FakeNvml
from fake_nvml.harness import Bench

from gpudiag.agent.gpu import GpuProcess
from gpudiag.storage.catalog import METRICS

pytestmark = pytest.mark.integration
MakeBench = Callable[..., Bench]
ABSENT_ON_A_GPU = {name for _, name in METRICS if name.startswith("torch_")}


def without(bench: MakeBench, build: Callable[..., Path], *symbols: str) -> Bench:
    """On a driver whose library lacks these symbols."""
    return bench(environ={"LD_LIBRARY_PATH": str(build(*symbols).parent)})


def test_every_signal_arrives_in_base_units(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    values = {
        "gpu_util": 87, "memory_util": 33, "memory_total": 141 * GIB, "memory_used": 100 * GIB, "memory_reserved": GIB,
        "power_mw": 612_345, "power_limit_mw": 700_000, "energy_mj": 987_654_321, "energy_rate_mw": 0,
        "temperature": 66, "memory_temperature": 71, "temperature_margin": 21, "sm_clock_mhz": 1755,
        "memory_clock_mhz": 3201, "clock_event_reasons": 0x24, "power_cap_ns": 5 * 10**9, "sw_thermal_ns": 2 * 10**9,
        "hw_thermal_ns": 10**9, "power_brake_ns": 4 * 10**9, "pcie_generation": 4, "pcie_width": 8, "pcie_replays": 3,
        "ecc_corrected": 7, "ecc_uncorrected": 1, "remapped_corrected": 2, "remapped_uncorrected": 4,
        "remap_pending": 1, "remap_failed": 0, "retired_sbe": 5, "retired_dbe": 6, "recovery_action": 1,
        "nvlink_replays": 10, "nvlink_recoveries": 20, "nvlink_crc_flit": 30, "nvlink_crc_data": 40,
    }  # fmt: skip
    for name, value in values.items():
        fake_nvml.set(2, name, value)
    fake_nvml.processes(2, [(os.getpid(), 99 * GIB)])
    frame = nvml_bench().settled().frames[fake_nvml.uuid(2)]
    rates = {name for name in frame.values if name.endswith("_per_second")}
    assert {name: value for name, value in frame.values.items() if name not in rates} == {
        "graphics_active_ratio": 0.95, "sm_active_ratio": 0.8, "sm_occupancy_ratio": 0.5, "tensor_active_ratio": 0.45,
        "dram_active_ratio": 0.35, "fp64_active_ratio": 0.0, "fp32_active_ratio": 0.1, "fp16_active_ratio": 0.02,
        "gpu_util_ratio": 0.87, "memory_util_ratio": 0.33, "memory_used_bytes": 100 * GIB,
        "memory_reserved_bytes": GIB, "memory_total_bytes": 141 * GIB, "power_watts": 612.345,
        "power_limit_watts": 700.0, "energy_joules_total": 987654.321, "temperature_celsius": 66,
        "memory_temperature_celsius": 71, "temperature_margin_celsius": 21, "sm_clock_hertz": 1.755e9,
        "memory_clock_hertz": 3.201e9, "clock_event_reasons": 0x24, "throttle_power_seconds_total": 5.0,
        "throttle_thermal_seconds_total": 3.0, "throttle_brake_seconds_total": 4.0, "pcie_link_generation": 4,
        "pcie_link_width": 8, "pcie_replays_total": 3, "ecc_corrected_total": 7, "ecc_uncorrected_total": 1,
        "remapped_rows_corrected_total": 2, "remapped_rows_uncorrected_total": 4, "remap_pending": 1,
        "remap_failed": 0, "retired_pages_total": 11, "recovery_action": 1, "nvlink_errors_total": 100, "processes": 1,
    }  # fmt: skip
    catalog = {name for scope, name in METRICS if scope == "gpu"} - ABSENT_ON_A_GPU
    assert set(frame.values) == catalog


def test_byte_counters_become_rates(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    frame = nvml_bench().settled().frames[fake_nvml.uuid(0)]
    assert frame.values["pcie_tx_bytes_per_second"] == pytest.approx(1.0e9, rel=0.1)
    assert frame.values["pcie_rx_bytes_per_second"] == pytest.approx(3.0e9, rel=0.1)
    assert frame.values["nvlink_tx_bytes_per_second"] == pytest.approx(20e6 * 1024, rel=0.1)
    assert frame.origins["pcie_rx_bytes_per_second"] == "nvml"


def test_nvlink_is_the_sum_of_all_links_not_the_first_one(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(0, "nvlinks", 2)
    values = nvml_bench().settled().frames[fake_nvml.uuid(0)].values
    assert values["nvlink_rx_bytes_per_second"] == pytest.approx(20e6 * 1024, rel=0.1)


def test_nvlink_of_a_gpu_that_counts_per_link_is_their_sum(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    for field in (138, 139):
        fake_nvml.field(0, field, "not_supported")
    bench = nvml_bench()
    bench.settled()
    frame = bench.next().frames[fake_nvml.uuid(0)]
    assert frame.origins["nvlink_tx_bytes_per_second"] == "nvml"
    assert frame.values["nvlink_tx_bytes_per_second"] == pytest.approx(20e6 * 1024, rel=0.1)


def test_a_gpu_without_nvlink_has_no_such_series(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(0, "nvlinks", 0)
    for metric in (60, 61):
        fake_nvml.gpm(0, metric, 0.0, code=3)
    bench = nvml_bench()
    assert not [
        name for name in bench.settled().frames[fake_nvml.uuid(0)].values if name.startswith("nvlink")
    ]
    absent = bench.collector.status.absent[fake_nvml.uuid(0)]
    assert absent["nvlink traffic"] == "this GPU has no NVLink or does not count its bytes"
    assert absent["nvlink errors"] == "this GPU has no NVLink or does not count its errors"


def test_sm_activity_is_told_apart_from_utilisation(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.set(0, "gpu_util", 100)
    fake_nvml.gpm(0, 2, 7.5)
    frame = bench.next().frames[fake_nvml.uuid(0)]
    assert (frame.values["gpu_util_ratio"], frame.values["sm_active_ratio"]) == (1.0, 0.075)
    assert (frame.origins["gpu_util_ratio"], frame.origins["sm_active_ratio"]) == ("nvml", "gpm")


def test_devices_are_described_once_and_again_when_the_power_limit_changes(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench()
    devices = bench.settled().devices
    assert len(devices) == 8
    device = devices[fake_nvml.uuid(3)]
    assert (device.index, device.minor, device.pci_bus_id, device.model) == (
        3,
        3,
        "00000000:48:00.0",
        "NVIDIA H200",
    )
    assert (device.driver, device.compute_capability, device.nvlink_count) == ("580.105.08", "9.0", 18)
    assert (device.memory_total_bytes, device.power_limit_watts) == (141 * GIB, 700.0)
    assert (device.max_sm_clock_hertz, device.max_memory_clock_hertz) == (1.98e9, 3.201e9)
    assert (device.max_pcie_link_generation, device.max_pcie_link_width) == (5, 16)
    assert not bench.next().devices
    fake_nvml.set(3, "power_limit_mw", 500_000)
    changed = [device for _ in range(10) for device in bench.cycle().devices.values()]
    assert [(one.source.device, one.power_limit_watts) for one in changed] == [(fake_nvml.uuid(3), 500.0)]


def test_what_hardly_changes_is_read_every_tenth_cycle_and_shown_in_all(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench()
    bench.until_frames()
    before = fake_nvml.calls("nvmlDeviceGetCurrPcieLinkWidth")
    cycles = [bench.cycle() for _ in range(20)]
    assert fake_nvml.calls("nvmlDeviceGetCurrPcieLinkWidth") - before == 2 * 8
    assert all("pcie_link_width" in cycle.frames[fake_nvml.uuid(5)].values for cycle in cycles)


def test_a_slow_value_that_cannot_be_read_any_more_is_gone(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    bench = nvml_bench()
    bench.until_frames()
    fake_nvml.fail(0, "nvmlDeviceGetCurrPcieLinkWidth", "unknown")
    last = [bench.cycle() for _ in range(11)][-1]
    assert "pcie_link_width" not in last.frames[fake_nvml.uuid(0)].values
    assert "pcie_link_width" in last.frames[fake_nvml.uuid(1)].values


def test_memory_of_an_older_driver_includes_what_is_reserved(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, fake_nvml_build: Callable[..., Path]
) -> None:
    bench = without(nvml_bench, fake_nvml_build, "nvmlDeviceGetMemoryInfo_v2")
    values = bench.until_frames().frames[fake_nvml.uuid(0)].values
    assert values["memory_used_bytes"] == 60 * GIB + (600 << 20)
    assert "memory_reserved_bytes" not in values
    reason = bench.collector.status.absent[fake_nvml.uuid(0)]["nvmlDeviceGetMemoryInfo_v2"]
    assert reason == "this driver's library does not have the function"


def test_an_older_driver_names_clock_reasons_differently(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, fake_nvml_build: Callable[..., Path]
) -> None:
    fake_nvml.set(0, "clock_event_reasons", 8)
    bench = without(nvml_bench, fake_nvml_build, "nvmlDeviceGetCurrentClocksEventReasons")
    assert bench.until_frames().frames[fake_nvml.uuid(0)].values["clock_event_reasons"] == 8


def test_without_field_values_the_single_functions_are_asked(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, fake_nvml_build: Callable[..., Path]
) -> None:
    fake_nvml.set(0, "ecc_uncorrected", 2)
    fake_nvml.set(0, "remap_pending", 1)
    fake_nvml.set(0, "retired_dbe", 3)
    bench = without(nvml_bench, fake_nvml_build, "nvmlDeviceGetFieldValues")
    values = bench.until_frames().frames[fake_nvml.uuid(0)].values
    assert (values["ecc_uncorrected_total"], values["remap_pending"]) == (2, 1)
    assert (values["power_limit_watts"], values["pcie_replays_total"]) == (700.0, 0)
    assert values["energy_joules_total"] >= 1_000_000
    assert values["retired_pages_total"] == 3
    assert "throttle_power_seconds_total" not in values


def test_a_driver_that_refuses_all_fields_for_one_it_does_not_know_gives_the_others(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.set(0, "field_limit", 150)
    bench = nvml_bench()
    values = bench.settled().frames[fake_nvml.uuid(0)].values
    assert (values["memory_temperature_celsius"], values["throttle_power_seconds_total"]) == (60, 0)
    assert values["power_limit_watts"] == 700.0  # by the older function
    assert not {"throttle_brake_seconds_total", "recovery_action"} & set(values)
    assert "field 230" in bench.collector.status.absent[fake_nvml.uuid(0)]
    before = fake_nvml.calls("nvmlDeviceGetFieldValues")
    bench.cycle()
    assert fake_nvml.calls("nvmlDeviceGetFieldValues") - before <= 8 + 1


def test_pcie_falls_back_to_gpm_when_there_is_no_counter(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(0, "pcie_counter_bits", 0)
    frame = nvml_bench().settled().frames[fake_nvml.uuid(0)]
    assert frame.values["pcie_rx_bytes_per_second"] == 2800 * (1 << 20)
    assert frame.origins["pcie_rx_bytes_per_second"] == "gpm"


def test_a_counter_that_wraps_within_the_interval_is_not_believed(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.set(0, "pcie_counter_bits", 32)  # a Gen5 x16 link fills 2^32 bytes in 70 ms
    frame = nvml_bench().settled().frames[fake_nvml.uuid(0)]
    assert frame.origins["pcie_rx_bytes_per_second"] == "gpm"


def test_pcie_of_a_gpu_with_neither_is_a_snapshot_and_says_so(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.set(0, "pcie_counter_bits", 0)
    fake_nvml.set(0, "gpm_supported", 0)
    fake_nvml.set(0, "pcie_rx_kbs", 123_000)
    bench = nvml_bench(interval=0.3)
    bench.settled()
    frames = [bench.next(pause=0.35).frames[fake_nvml.uuid(0)] for _ in range(3)]
    seen = [frame for frame in frames if "pcie_rx_bytes_per_second" in frame.values]
    assert seen
    assert {frame.values["pcie_rx_bytes_per_second"] for frame in seen} == {123e6}
    assert {frame.origins["pcie_rx_bytes_per_second"] for frame in seen} == {"nvml-snapshot"}
    assert fake_nvml.calls("nvmlDeviceGetPcieThroughput") <= 2 * len(frames) + 2


def test_a_gpu_older_than_hopper_has_no_sm_activity_and_says_why(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.set(1, "gpm_supported", 0)
    bench = nvml_bench()
    frame = bench.settled().frames[fake_nvml.uuid(1)]
    assert "sm_active_ratio" not in frame.values
    assert frame.values["gpu_util_ratio"] == 0.95
    reason = bench.collector.status.absent[fake_nvml.uuid(1)]["nvmlGpmQueryDeviceSupport"]
    assert reason == "no GPM on this GPU: it needs Hopper or newer"


def test_a_gpm_metric_that_is_nan_or_refused_is_absent(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.gpm(0, 5, math.nan)
    fake_nvml.gpm(0, 3, 50.0, code=3)
    values = nvml_bench().settled().frames[fake_nvml.uuid(0)].values
    assert "tensor_active_ratio" not in values
    assert "sm_occupancy_ratio" not in values
    assert values["sm_active_ratio"] == 0.8


def test_samples_of_gpm_are_given_back(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    for _ in range(20):
        bench.cycle()
    assert fake_nvml.get(None, "gpm_samples") == 2 * 8
    bench.collector.close()
    assert fake_nvml.get(None, "gpm_samples") == 0
    assert fake_nvml.get(None, "event_sets") == 0
    assert fake_nvml.clients == []


def test_a_temperature_of_zero_means_no_sensor(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(0, "memory_temperature", 0)
    values = nvml_bench().until_frames().frames[fake_nvml.uuid(0)].values
    assert "memory_temperature_celsius" not in values
    assert values["temperature_celsius"] == 55


def test_more_memory_used_than_there_is_is_rejected_and_counted(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.set(0, "memory_used", 0xFFFFFFFFFFFFF000)
    bench = nvml_bench()
    assert "memory_used_bytes" not in bench.until_frames().frames[fake_nvml.uuid(0)].values
    assert bench.collector.rejected == {"memory_used_bytes": 1}


def test_a_counter_that_starts_anew_gives_no_rate(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.set(0, "pcie_rx_bytes", 0)
    fake_nvml.set(0, "energy_mj", 5)
    frame = bench.next().frames[fake_nvml.uuid(0)]
    assert "pcie_rx_bytes_per_second" not in frame.values  # a gap, neither minus terabytes nor another origin
    assert frame.values["energy_joules_total"] < 1_000_000
    assert bench.next().frames[fake_nvml.uuid(0)].origins["pcie_rx_bytes_per_second"] == "nvml"


def test_processes_and_what_they_use(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.processes(0, [(4321, 5 * GIB), (4322, 0xFFFFFFFFFFFFFFFF)])
    bench = nvml_bench()
    bench.until_frames()
    assert bench.collector.processes == (
        GpuProcess(fake_nvml.uuid(0), 4321, 5 * GIB),
        GpuProcess(fake_nvml.uuid(0), 4322, None),
    )
    fake_nvml.processes(0, [])
    assert bench.until_frames().frames[fake_nvml.uuid(0)].values["processes"] == 0
    assert bench.collector.processes == ()


def test_whether_something_uses_a_gpu_is_told_only_where_processes_and_work_are_known(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    for index in range(4):
        fake_nvml.processes(index, [])
        for metric in (1, 2):
            fake_nvml.gpm(index, metric, 0.0)
        fake_nvml.set(index, "gpu_util", 0)
    fake_nvml.processes(1, [(4321, GIB)])
    fake_nvml.gpm(2, 2, 40.0)
    for version in ("v3", "v2"):
        fake_nvml.fail(3, f"nvmlDeviceGetComputeRunningProcesses_{version}", "unknown")
    bench = nvml_bench()
    bench.settled()
    told = [bench.collector.activity.get(fake_nvml.uuid(index)) for index in range(4)]
    assert told == [False, True, True, None]
    bench.collector.release(60)
    bench.cycle()
    assert bench.collector.activity == {}


def test_a_driver_that_does_not_tell_the_processes_once_has_not_lost_them(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.processes(0, [(4321, GIB)])
    bench = nvml_bench()
    bench.until_frames()
    for version in ("v3", "v2"):
        fake_nvml.fail(0, f"nvmlDeviceGetComputeRunningProcesses_{version}", "unknown")
    frame = bench.cycle().frames[fake_nvml.uuid(0)]
    assert "processes" not in frame.values
    assert [one.pid for one in bench.collector.processes] == [4321]


@pytest.mark.parametrize("version", ["535.43.02", "535.54.03", "535.86.10"])
def test_the_wrong_process_list_of_some_535_drivers_is_read_right(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, version: str
) -> None:
    fake_nvml.set(None, "driver_version", version)
    fake_nvml.set(None, "process_stride", 32)
    fake_nvml.processes(0, [(101, GIB), (102, 2 * GIB), (103, 3 * GIB)])
    bench = nvml_bench()
    bench.until_frames()
    assert [(one.pid, one.used_bytes) for one in bench.collector.processes] == [
        (101, GIB), (102, 2 * GIB), (103, 3 * GIB),
    ]  # fmt: skip
    absent = bench.collector.status.absent[fake_nvml.uuid(0)]
    assert absent["nvmlDeviceGetComputeRunningProcesses_v3"] == "the list is laid out wrongly by this driver"
    assert fake_nvml.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 0


def test_a_wrong_process_list_is_noticed_on_any_driver(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.set(None, "process_stride", 32)
    fake_nvml.processes(0, [(101, GIB), (102, 2 * GIB)])
    bench = nvml_bench()
    bench.until_frames()
    assert [one.pid for one in bench.collector.processes] == [101, 102]


def test_without_a_right_list_only_entries_that_can_be_true_are_kept(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, fake_nvml_build: Callable[..., Path]
) -> None:
    fake_nvml.set(None, "process_stride", 32)
    fake_nvml.processes(0, [(101, GIB), (102, 2 * GIB)])
    bench = without(nvml_bench, fake_nvml_build, "nvmlDeviceGetComputeRunningProcesses_v2")
    frame = bench.until_frames().frames[fake_nvml.uuid(0)]
    assert bench.collector.processes == ()
    assert "processes" not in frame.values


def test_each_xid_is_one_event_even_when_equal(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.xid(1, 31)  # before anybody listened
    bench = nvml_bench()
    assert bench.until_frames().events == []
    fake_nvml.xid(1, 79)
    fake_nvml.xid(1, 79)
    fake_nvml.xid(2, 94, gpu_instance=3)
    events = bench.cycle().events
    assert [(one.source.device, one.kind, one.code, one.ordinal) for one in events] == [
        (fake_nvml.uuid(1), "xid", 79, 0),
        (fake_nvml.uuid(1), "xid", 79, 1),
        (fake_nvml.uuid(2), "xid", 94, 0),
    ]
    assert events[2].detail == {"known_from": "nvml", "gpu_instance": 3}
    assert bench.cycle().events == []


def test_a_driver_without_events_says_so(
    fake_nvml: FakeNvml, nvml_bench: MakeBench, fake_nvml_build: Callable[..., Path]
) -> None:
    bench = without(nvml_bench, fake_nvml_build, "nvmlEventSetCreate")
    bench.until_frames()
    assert "does not have the function" in bench.collector.status.events


def test_mig_instances_are_known_by_uuid(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.slice(0, [("MIG-aaaa", 4), ("MIG-bbbb", 3)])
    fake_nvml.processes(0, [(55, GIB)], gpu_instance=2)
    bench = nvml_bench()
    cycle = bench.settled()
    whole, part = cycle.frames[fake_nvml.uuid(0)].values, cycle.frames["MIG-bbbb"].values
    assert "gpu_util_ratio" not in whole
    assert whole["power_watts"] == 550.0
    assert (part["sm_active_ratio"], part["memory_used_bytes"]) == (0.8, GIB)
    assert "power_watts" not in part
    assert "pcie_rx_bytes_per_second" not in part
    device = cycle.devices["MIG-bbbb"]
    assert (device.parent_uuid, device.mig_profile) == (fake_nvml.uuid(0), "3g.51gb")
    assert bench.collector.processes == (GpuProcess("MIG-bbbb", 55, GIB),)


def test_slicing_a_gpu_anew_while_running_is_followed(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    fake_nvml.slice(0, [("MIG-aaaa", 4), ("MIG-bbbb", 3)])
    bench = nvml_bench()
    bench.settled()
    fake_nvml.slice(0, [("MIG-cccc", 7)])
    cycle = bench.until_frames()
    assert "MIG-cccc" in cycle.frames
    assert not {"MIG-aaaa", "MIG-bbbb"} & set(cycle.frames)
    assert [(one.kind, one.detail) for one in cycle.events] == [
        ("mig_changed", {"added": ["MIG-cccc"], "removed": ["MIG-aaaa", "MIG-bbbb"]})
    ]
    assert fake_nvml.get(None, "gpm_samples") == 2 * (8 + 0) + 2
    fake_nvml.slice(0, [])
    cycles = [bench.cycle() for _ in range(11)]
    assert [kind for cycle in cycles for kind in cycle.kinds] == ["mig_changed"]
    assert set(cycles[-1].frames) == {fake_nvml.uuid(gpu) for gpu in range(8)}


def test_an_instance_made_anew_under_the_same_uuid_goes_on(
    fake_nvml: FakeNvml, nvml_bench: MakeBench
) -> None:
    fake_nvml.slice(0, [("MIG-aaaa", 7)])
    bench = nvml_bench()
    bench.settled()
    fake_nvml.slice(0, [("MIG-aaaa", 7)])
    cycle = bench.next()
    assert cycle.kinds == []
    assert cycle.frames["MIG-aaaa"].values["memory_used_bytes"] == GIB
    assert bench.next().frames["MIG-aaaa"].values["sm_active_ratio"] == 0.8


def test_a_cycle_over_eight_gpus_makes_few_calls(fake_nvml: FakeNvml, nvml_bench: MakeBench) -> None:
    bench = nvml_bench()
    bench.settled()
    before = fake_nvml.calls()
    for _ in range(10):
        bench.cycle()
    assert (fake_nvml.calls() - before) / 10 <= 8 * 20
