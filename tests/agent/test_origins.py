"""Of several sources the best one is taken, and none mixes with another in one series."""

from __future__ import annotations

from gpudiag.agent.origins import HOLD_MS, Merger, rank
from gpudiag.storage.sample import Frame, Source

GPU = Source("n1", "GPU-1")


def frame(origin: str, **values: float) -> Frame:
    return Frame(GPU, 0, values, dict.fromkeys(values, origin))


def test_dcgm_is_best_inside_the_sm_and_the_driver_everywhere_else() -> None:
    nvml = Frame(
        GPU,
        0,
        {"sm_active_ratio": 0.5, "power_watts": 500.0},
        {"sm_active_ratio": "gpm", "power_watts": "nvml"},
    )
    dcgm = frame("dcgm", sm_active_ratio=0.6, power_watts=510.0, fp64_active_ratio=0.1)
    expected = Frame(
        GPU, 7,
        {"sm_active_ratio": 0.6, "power_watts": 500.0, "fp64_active_ratio": 0.1},
        {"sm_active_ratio": "dcgm", "power_watts": "nvml", "fp64_active_ratio": "dcgm"},
    )  # fmt: skip
    assert Merger().merge([nvml, dcgm], 7) == (expected,)
    assert Merger().merge([dcgm, nvml], 7) == (expected,)


def test_an_origin_nobody_knows_is_the_last() -> None:
    assert rank("sm_active_ratio", "somebody") > rank("sm_active_ratio", "nvml-snapshot")


def test_a_sample_that_the_better_source_misses_is_a_gap() -> None:
    merger = Merger()
    both = [frame("gpm", sm_active_ratio=0.5), frame("dcgm", sm_active_ratio=0.6)]
    assert merger.merge(both, 0)[0].values == {"sm_active_ratio": 0.6}
    assert merger.merge(both[:1], 1000) == ()
    assert merger.merge(both, 2000)[0].origins == {"sm_active_ratio": "dcgm"}


def test_a_source_that_stays_silent_is_replaced_and_taken_back_when_it_returns() -> None:
    merger = Merger()
    gpm, dcgm = frame("gpm", sm_active_ratio=0.5), frame("dcgm", sm_active_ratio=0.6)
    merger.merge([gpm, dcgm], 0)
    seen = [merger.merge([gpm], now) for now in range(1000, HOLD_MS + 3000, 1000)]
    assert [len(one) for one in seen] == [0] * (HOLD_MS // 1000 - 1) + [1, 1, 1]
    assert seen[-1][0].origins == {"sm_active_ratio": "gpm"}
    assert merger.merge([gpm, dcgm], HOLD_MS + 4000)[0].origins == {"sm_active_ratio": "dcgm"}


def test_one_source_alone_passes_through() -> None:
    only = frame("nvml", gpu_util_ratio=0.9)
    assert Merger().merge([only], 9) == (Frame(GPU, 9, {"gpu_util_ratio": 0.9}, {"gpu_util_ratio": "nvml"}),)


def test_frames_without_values_are_left_out() -> None:
    assert Merger().merge([Frame(GPU, 0, {})], 0) == ()
