"""The waterfall: every allocated second in one bucket, with its own evidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.rules.host_evidence import HostEvidence
from gpudiag.rules.model import CAUSES, PHASES, Interval
from gpudiag.rules.peers import PeerFold
from gpudiag.rules.phases import CODE
from gpudiag.rules.shortfall import CAUSE, Shortfall, Signals, shortfall, signals
from gpudiag.rules.waterfall import Claim, Waterfall, device_phases, ledger
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Floats, Source

N = 1200
START_MS = 1_700_000_000_000
GPU = Source("node0", "GPU-1")
DEVICE = Device(
    GPU,
    0,
    memory_total_bytes=80e9,
    max_sm_clock_hertz=1.98e9,
    max_pcie_link_generation=5,
    max_pcie_link_width=16,
)
TRAINING = np.ones(N, bool)
ZERO = np.zeros(N)
NOISE = 1 + 0.01 * np.random.default_rng(1).standard_normal(N)
STALL = (np.arange(N) % 40) < 8


def host(**evidence: Floats) -> HostEvidence:
    named = {name: evidence.get(name, ZERO) for name in ("cpu", "disk", "main", "input", "swap", "network")}
    return HostEvidence(**named)


def gpu(**columns: Floats) -> Signals:
    usual = {
        "sm_active_ratio": np.clip(0.85 * NOISE, 0, 1), "graphics_active_ratio": np.full(N, 0.99),
        "tensor_active_ratio": 0.5 * NOISE, "sm_clock_hertz": np.full(N, 1.95e9), "clock_event_reasons": ZERO,
    }  # fmt: skip
    columns = {**usual, **columns}
    return signals(lambda name: columns.get(name, np.full(N, np.nan)), "sm_active_ratio", TRAINING, DEVICE)


def lost(found: Shortfall) -> dict[str, float]:
    totals = np.bincount(found.cause, found.share, len(CAUSES)) / N
    return {cause: float(share) for cause, share in zip(CAUSES, totals, strict=True) if share > 0.01}


def alone(signal: Signals, evidence: HostEvidence) -> dict[str, float]:
    return lost(shortfall(signal, TRAINING, evidence, PeerFold(N)))


def stalled() -> Signals:
    return gpu(
        sm_active_ratio=np.where(STALL, 0.0, 0.85 * NOISE), graphics_active_ratio=np.where(STALL, 0.0, 0.99),
        tensor_active_ratio=np.where(STALL, 0.0, 0.5),
    )  # fmt: skip


def test_steady_work_loses_nothing() -> None:
    assert alone(gpu(), host()) == {}


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ("cpu", "input_cpu"),
        ("disk", "input_disk"),
        ("main", "host"),
        ("input", "input_other"),
        ("swap", "host"),
    ],
)
def test_gaps_belong_to_what_the_host_was_short_of(evidence: str, cause: str) -> None:
    found = alone(stalled(), host(**{evidence: np.ones(N)}))
    assert set(found) == {cause}
    assert found[cause] == pytest.approx(0.2, abs=0.02)


def test_gaps_without_evidence_stay_unattributed() -> None:
    assert set(alone(stalled(), host())) == {"unattributed"}


def test_storage_goes_before_busy_workers() -> None:
    assert set(alone(stalled(), host(cpu=np.ones(N), disk=np.ones(N)))) == {"input_disk"}


def test_copies_that_fill_the_gaps_are_the_cause() -> None:
    signal = gpu(
        sm_active_ratio=np.full(N, 0.6) * NOISE, graphics_active_ratio=np.full(N, 0.7),
        tensor_active_ratio=np.full(N, 0.35), pcie_rx_bytes_per_second=np.full(N, 0.27 * 51e9),
    )  # fmt: skip
    assert alone(signal, host())["transfer"] == pytest.approx(0.3, abs=0.03)


def test_refilling_memory_after_a_flush_is_the_allocator() -> None:
    retries = np.cumsum((np.arange(N) % 40) == 0).astype(float)
    signal = gpu(
        sm_active_ratio=np.where(STALL, 0.0, 0.85 * NOISE), graphics_active_ratio=np.where(STALL, 0.0, 0.99),
        torch_alloc_retries_total=retries,
    )  # fmt: skip
    assert alone(signal, host(cpu=np.full(N, 0.4)))["allocator"] > 0.12


def test_links_that_are_busier_while_work_is_missing_are_communication() -> None:
    talk = (np.arange(N) % 10) < 3
    signal = gpu(
        sm_active_ratio=np.where(talk, 0.15, 0.85 * NOISE), tensor_active_ratio=np.where(talk, 0.0, 0.5),
        nvlink_tx_bytes_per_second=np.where(talk, 1.5e11, 2e10),
    )  # fmt: skip
    assert alone(signal, host())["communication"] == pytest.approx(0.29, abs=0.04)


def test_traffic_that_runs_beside_the_work_is_not() -> None:
    waits = (np.arange(N) % 10) < 3
    signal = gpu(
        sm_active_ratio=np.where(waits, 0.15, 0.85 * NOISE), tensor_active_ratio=np.where(waits, 0.0, 0.5),
        nvlink_tx_bytes_per_second=np.where(waits, 0.0, 1e11),
    )  # fmt: skip
    assert "communication" not in alone(signal, host())


def waiting(share: float) -> Signals:
    work = (1 - share) * NOISE
    return gpu(sm_active_ratio=0.85 * work + 0.13 * share, tensor_active_ratio=0.5 * work)


def test_peers_of_a_slow_gpu_wait_and_the_slow_one_does_not() -> None:
    peers, victims, slow = PeerFold(N), [waiting(0.3) for _ in range(3)], gpu()
    for signal in (*victims, slow):
        peers.add(signal.work, signal.clock_loss, signal.clock)
    assert lost(shortfall(victims[0], TRAINING, host(), peers))["straggler"] == pytest.approx(0.3, abs=0.04)
    assert lost(shortfall(slow, TRAINING, host(), peers)) == {}


def throttled(factor: float, reasons: float) -> Signals:
    late = np.arange(N) >= 200
    return gpu(
        sm_clock_hertz=np.where(late, factor * 1.95e9, 1.95e9),
        clock_event_reasons=np.where(late, reasons, 0.0),
    )


@pytest.mark.parametrize("reasons", [0x20, 0x40, 0x80])
def test_heat_and_brakes_cost_what_the_clock_lost(reasons: float) -> None:
    found = alone(throttled(0.7, reasons), host())
    assert found == {"throttle": pytest.approx(0.3 * 1000 / N, abs=0.01)}


def test_a_saturated_gpu_at_its_power_cap_loses_nothing() -> None:
    assert alone(throttled(0.9, 0x04), host()) == {}


def test_a_cut_power_limit_does() -> None:
    assert alone(throttled(0.6, 0x04), host())["throttle"] == pytest.approx(0.4 * 1000 / N, abs=0.02)


def test_who_waits_for_a_hot_gpu_waits_for_its_clock() -> None:
    peers, victims, hot = PeerFold(N), [waiting(0.3) for _ in range(3)], throttled(0.7, 0x20)
    for signal in (*victims, hot):
        peers.add(signal.work, signal.clock_loss, signal.clock)
    found = lost(shortfall(victims[0], TRAINING, host(), peers))
    assert found["throttle"] == pytest.approx(0.25, abs=0.05)


def test_a_clock_far_below_its_peers_needs_no_reason_bit() -> None:
    peers, slow = PeerFold(N), gpu(sm_clock_hertz=np.full(N, 1.3e9))
    for signal in (gpu(), gpu(), slow):
        peers.add(signal.work, signal.clock_loss, signal.clock)
    assert lost(shortfall(slow, TRAINING, host(), peers))["throttle"] == pytest.approx(1 / 3, abs=0.02)


def test_utilisation_alone_shows_gaps_and_nothing_inside_busy_time() -> None:
    columns = {"gpu_util_ratio": np.where(STALL, 0.0, 1.0)}
    signal = signals(lambda name: columns.get(name, np.full(N, np.nan)), "gpu_util_ratio", TRAINING, None)
    assert lost(shortfall(signal, TRAINING, host(cpu=np.ones(N)), PeerFold(N))) == {
        "input_cpu": pytest.approx(0.2)
    }


def book(
    phases: list[str], share: float = 0.0, cause: str = "unattributed", claims: tuple[Claim, ...] = ()
) -> dict[str, float]:
    codes = np.array([CODE[phase] for phase in phases], np.int8)
    missing = Shortfall(np.full(len(codes), CAUSE[cause], np.int8), np.full(len(codes), share))
    waterfall = Waterfall()
    waterfall.add(ledger(START_MS, codes, missing, np.ones(len(codes), bool), claims))
    return {bucket.cause: bucket.ratio for bucket in waterfall.buckets()}


def test_a_claim_takes_what_has_no_evidence_of_its_own() -> None:
    claim = Claim("input_other", (Interval(START_MS, START_MS + 5000),))
    assert book(["train"] * 10, 0.4, claims=(claim,)) == pytest.approx(
        {"train": 0.6, "input_other": 0.2, "unattributed": 0.2}
    )


def test_a_claim_does_not_take_what_has() -> None:
    claim = Claim("input_other", (Interval(START_MS, START_MS + 10_000),))
    assert book(["train"] * 10, 0.4, "throttle", (claim,)) == pytest.approx({"train": 0.6, "throttle": 0.4})


def test_gaps_of_a_service_are_idle_not_lost_input() -> None:
    assert book(["inference"] * 10, 0.8) == pytest.approx({"train": 0.2, "idle": 0.8})


def test_a_device_left_idle_while_others_train_is_idle() -> None:
    codes = np.full(1500, CODE["train"], np.int8)
    active = np.where(np.arange(1500) < 700, 0.0, 0.8)
    active[100] = np.nan
    own = device_phases(codes, active)
    assert (own[:700] == CODE["idle"]).sum() == 699
    assert own[100] == CODE["not_measured"]
    assert (own[700:] == CODE["train"]).all()


@given(
    st.lists(st.sampled_from(PHASES), min_size=1, max_size=60),
    st.floats(0, 1),
    st.sampled_from(CAUSES),
    st.data(),
)
def test_buckets_sum_to_the_allocation_whatever_happens(
    phases: list[str], share: float, cause: str, data: st.DataObject
) -> None:
    codes = np.array([CODE[phase] for phase in phases], np.int8)
    allocated = np.array(data.draw(st.lists(st.booleans(), min_size=len(codes), max_size=len(codes))))
    waterfall = Waterfall()
    waterfall.add(
        ledger(
            START_MS,
            codes,
            Shortfall(np.full(len(codes), CAUSE[cause], np.int8), np.full(len(codes), share)),
            allocated,
        )
    )
    assert waterfall.total_gpu_hours * 3600 == pytest.approx(allocated.sum())
    if allocated.any():
        assert 100 * sum(bucket.ratio for bucket in waterfall.buckets()) == pytest.approx(100, abs=0.1)


def test_a_bigger_loss_never_makes_more_useful_work() -> None:
    useful = [book(["train"] * 10, share)["train"] for share in (0.0, 0.2, 0.7)]
    assert useful == sorted(useful, reverse=True)
