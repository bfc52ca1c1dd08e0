"""DCGM fields: numbers, names old and new, blanks, units, sums."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.collectors.dcgm_fields import FIELDS, NUMBERS, blank, metrics, numbered
from gpudiag.storage.catalog import METRICS


def test_every_field_is_a_metric_of_the_catalog() -> None:
    assert {field.metric for field in FIELDS.values()} - {""} <= {
        name for scope, name in METRICS if scope == "gpu"
    }


def test_no_name_stands_for_two_fields() -> None:
    assert len(NUMBERS) == sum(len(field.names) for field in FIELDS.values())


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", 1002),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", 1004),
        ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", 203),
        ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", 155),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER_total", 202),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total", 156),
    ],
)
def test_old_and_new_names_are_the_same_field(old: str, new: str, number: int) -> None:
    assert numbered([(old, 1.0)]) == numbered([(new, 1.0)]) == {number: 1.0}


@pytest.mark.parametrize(
    "value",
    [2147483632.0, 2147483634.0, 140737488355328.0, 140737488355330.0, 9223372036854775794.0, 9.22337203685478e18,
     math.nan, math.inf],
)  # fmt: skip
def test_what_dcgm_means_as_no_value_is_none(value: float) -> None:
    assert blank(value)
    assert metrics({155: value}) == {}


@given(st.floats(0, 2.1e9))
def test_ordinary_values_are_not_blank(value: float) -> None:
    assert not blank(value)


def test_units_become_base_units() -> None:
    fields = {
        100: 1980,
        155: 16.365,
        156: 4742776,
        203: 87,
        1002: 0.123456,
        1010: 2e9,
        251: 100,
        252: 40,
        253: 4,
    }
    assert metrics(fields) == {
        "sm_clock_hertz": 1.98e9, "power_watts": 16.365, "energy_joules_total": 4742.776, "gpu_util_ratio": 0.87,
        "sm_active_ratio": 0.1235, "pcie_rx_bytes_per_second": 2e9, "memory_used_bytes": 40 << 20,
        "memory_reserved_bytes": 4 << 20, "memory_total_bytes": 144 << 20,
    }  # fmt: skip


def test_sums_are_of_what_is_there() -> None:
    assert metrics({390: 3, 391: 2147483634.0}) == {"retired_pages_total": 3}
    assert metrics({409: 1, 419: 2, 429: 3, 439: 4}) == {"nvlink_errors_total": 10}
    assert "memory_total_bytes" not in metrics({252: 40})


def test_a_ratio_slightly_above_one_is_one_and_a_large_one_is_left_to_be_rejected() -> None:
    assert metrics({1001: 1.004})["graphics_active_ratio"] == 1.0
    assert metrics({1001: 1.6})["graphics_active_ratio"] == 1.6


def test_a_memory_temperature_of_zero_means_no_sensor() -> None:
    assert metrics({140: 0, 150: 31}) == {"temperature_celsius": 31}


def test_violation_times_are_nanoseconds() -> None:
    values = metrics({240: 2_500_000_000, 241: 1_000})
    assert values == {"throttle_power_seconds_total": 2.5, "throttle_thermal_seconds_total": 1e-6}
    assert numbered([("DCGM_FI_DEV_POWER_VIOLATION_total", 7.0)]) == {240: 7.0}
