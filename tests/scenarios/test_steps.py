"""The step model and what the sensors make of it."""

from __future__ import annotations

import numpy as np
import pytest
from bench.scenarios.build import build
from bench.scenarios.families import FAULTS
from bench.scenarios.spec import A100_PLAIN, BARE, H100, V100, Fault, Scenario, Workload
from bench.scenarios.truth import CAUSES

from gpudiag.rules.model import CAUSES as REPORTED

SHORT = Workload(hours=0.5, gpus=2)


def job(*faults: Fault, work: Workload = SHORT, **more: object) -> Scenario:
    return Scenario("test", "test", 7, work, faults, **more)  # type: ignore[arg-type]


def share(scenario: Scenario, cause: str) -> float:
    return float(build(scenario).truth.ratios()[CAUSES.index(cause)])


def test_the_truth_speaks_the_words_of_the_waterfall() -> None:
    assert CAUSES == REPORTED


def test_every_second_of_every_gpu_is_accounted_for() -> None:
    recording = build(job(Fault("cpu_gappy", 0.2), Fault("thermal", 0.3, devices=(1,))))
    for causes in recording.truth.causes.values():
        assert causes.sum(axis=1) == pytest.approx(1.0, abs=1e-3)


def test_the_same_seed_gives_the_same_recording() -> None:
    one, two = build(job(Fault("comm", 0.2))), build(job(Fault("comm", 0.2)))
    for source, block in one.blocks.items():
        for name, values in block.columns.items():
            np.testing.assert_array_equal(values, two.blocks[source].columns[name], err_msg=name)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("cpu_steady", "input_cpu"), ("disk_gappy", "input_disk"), ("transfer", "transfer"), ("checkpoint", "checkpoint"),
     ("comm", "communication"), ("launch", "host")],
)  # fmt: skip
def test_a_fault_takes_the_share_it_was_given(fault: str, cause: str) -> None:
    healthy = share(job(), cause)
    trained = 1 - sum(share(job(), name) for name in ("before_start", "startup", "warmup", "tail"))
    took = share(job(Fault(fault, 0.2, 0.0)), cause) - healthy * 0.8
    assert took == pytest.approx(0.2 * trained, rel=0.25)


def test_a_throttled_gpu_makes_its_peers_wait_and_both_count_as_throttling() -> None:
    recording = build(job(Fault("thermal", 0.3, 0.0, devices=(1,))))
    column = CAUSES.index("throttle")
    idle_peer, hot = (causes[300:, column].mean() for causes in recording.truth.causes.values())
    assert hot == pytest.approx(idle_peer, rel=0.25)
    assert hot > 0.2


def test_sm_activity_falls_while_utilisation_stays_when_gpus_wait_for_each_other() -> None:
    recording = build(job(Fault("straggler", 0.8, 0.0, devices=(0,))))
    victim = recording.blocks[list(recording.devices)[1]].columns
    assert np.nanmedian(victim["gpu_util_ratio"]) > 0.95
    assert np.nanmedian(victim["sm_active_ratio"]) < 0.65


def test_snapshots_of_pcie_miss_most_copies() -> None:
    work = Workload(hours=0.5, gpus=1, generation=V100, step=0.5)
    values = next(iter(build(job(work=work)).blocks.values())).columns["pcie_rx_bytes_per_second"]
    assert np.mean(np.nan_to_num(values) < 1e8) > 0.8


@pytest.mark.parametrize(
    ("generation", "absent"),
    [(A100_PLAIN, "sm_active_ratio"), (BARE, "power_watts"), (V100, "nvlink_tx_bytes_per_second")],
)
def test_a_generation_lacks_what_its_driver_cannot_tell(generation: object, absent: str) -> None:
    work = Workload(hours=0.2, gpus=1, generation=generation)  # type: ignore[arg-type]
    recording = build(job(work=work))
    assert absent not in recording.blocks[next(iter(recording.devices))].columns


def test_a_leak_ends_the_job_at_the_limit() -> None:
    recording = build(job(Fault("leak", 20), work=Workload(hours=1.0, gpus=1)))
    used = recording.blocks[next(iter(recording.devices))].columns["memory_used_bytes"]
    assert np.nanmax(used) > 0.985 * H100.memory_bytes
    assert recording.truth.oom_s is not None
    assert recording.job.state == "oom"


def test_pausing_the_profiler_leaves_a_gap_and_no_zero() -> None:
    recording = build(job(sampling="paused"))
    column = recording.blocks[next(iter(recording.devices))].columns["sm_active_ratio"]
    assert np.isnan(column).mean() > 0.1
    assert recording.truth.ratios()[CAUSES.index("not_measured")] > 0.1


def test_families_name_rules_that_exist() -> None:
    from gpudiag.rules.loader import builtin

    known = {rule.id for rule in builtin()}
    wanted = {rule for family in FAULTS for rule in family.rules}
    assert wanted <= known
