"""What is asked again and when; snapshots between cycles. No driver here: functions of the test stand in."""

from __future__ import annotations

import pynvml
import pytest

from gpudiag.agent.probe import progress
from gpudiag.agent.probe.driver import Driver
from gpudiag.agent.probe.entries import RETRY_CANNOT, RETRY_FAILED, Entries
from gpudiag.agent.probe.failures import DriverGoneError, GpuLostError
from gpudiag.agent.probe.snapshot import SHARE, WINDOW, Snapshots


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Function:
    """Raises NVML's `code` until it is 0."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls = 0

    def __call__(self, handle: object) -> int:
        self.calls += 1
        if self.code:
            raise pynvml.NVMLError(self.code)
        return 42


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def entries(time: Time) -> Entries:
    return Entries(Driver(progress.Progress(progress.create()), time), "handle")


def test_what_is_not_supported_is_asked_again_after_ten_minutes(entries: Entries, time: Time) -> None:
    power = Function(pynvml.NVML_ERROR_NOT_SUPPORTED)
    for _ in range(int(RETRY_CANNOT)):
        assert entries.read("power", power) is None
        time.now += 1.0
    assert power.calls == 1
    power.code = 0
    assert entries.read("power", power) == 42
    assert entries.absent == {}


def test_what_fails_by_mishap_is_asked_next_time_and_after_three_in_a_row_once_a_minute(
    entries: Entries, time: Time
) -> None:
    power = Function(pynvml.NVML_ERROR_UNKNOWN)
    for _ in range(int(RETRY_FAILED)):
        entries.read("power", power)
        time.now += 1.0
    assert power.calls == 3
    power.code = 0
    time.now += 10.0
    assert entries.read("power", power) == 42
    power.code = pynvml.NVML_ERROR_UNKNOWN
    entries.read("power", power)
    entries.read("power", power)
    assert power.calls == 6


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_lost_gpu_is_no_absent_metric(entries: Entries, code: int) -> None:
    with pytest.raises(GpuLostError):
        entries.read("power", Function(code))
    assert entries.absent == {}


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_driver_that_is_gone_is_no_absent_metric(entries: Entries, code: int) -> None:
    with pytest.raises(DriverGoneError):
        entries.read("power", Function(code))


def test_snapshots_take_a_quarter_of_the_time_at_most_and_gpus_take_turns(
    entries: Entries, time: Time
) -> None:
    targets = [(f"GPU-{number}", entries) for number in range(8)]
    snapshots = Snapshots(time, lambda low, high: low)
    seen: list[str] = []
    for _ in range(4):
        snapshots.plan(targets, 1.0)
        seen += [uuid for _, (uuid, _) in snapshots._plan]
    assert len(seen) == 4 * int(SHARE / WINDOW)
    assert {seen.count(uuid) for uuid, _ in targets} == {3}


def test_snapshots_are_spread_at_random_before_the_next_cycle(entries: Entries, time: Time) -> None:
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    snapshots = Snapshots(time, uniform)
    assert snapshots.wait() is None
    snapshots.plan([("GPU-0", entries)], 1.0)
    assert bounds == [(0.0, pytest.approx(1.0 - 2 * WINDOW))]
    assert snapshots.wait() == pytest.approx(1.0 - 2 * WINDOW)
    snapshots.plan([], 1.0)
    assert snapshots.wait() is None
