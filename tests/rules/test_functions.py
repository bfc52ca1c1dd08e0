"""Each function of the language against a plain computation of the same thing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.rules import kernels
from gpudiag.rules.expr import Names, parse
from gpudiag.rules.functions import DEVICE_CONSTANTS, FUNCTIONS, MASKS
from gpudiag.rules.kernels import FALSE, TRUE, UNKNOWN
from gpudiag.rules.model import PHASES
from gpudiag.rules.rule_reader import per_evaluation
from gpudiag.rules.stretch import Stretch
from gpudiag.rules.view import Settings, View
from gpudiag.storage.job import Device, Event, Job
from gpudiag.storage.sample import JOB_PREFIX, NODE, Source

NAN = float("nan")
START_S = 1_700_000_000
HORIZON = 1000
GPUS = tuple(Source("n1", f"GPU-{k}") for k in range(3))
JOB = Job("local/42/1", "42", START_S * 1000, tags=("nightly",))
Series = dict[str, np.ndarray]


def view_of(
    *gpus: Series,
    host: Series | None = None,
    phases: str = "train",
    window: int = 60,
    step: int = 10,
    lag: int = 0,
    gate: tuple[str, ...] = (),
    events: tuple[Event, ...] = (),
    models: tuple[str, ...] = ("A", "A", "A"),
    scope: str = "gpu",
) -> View:
    """A view whose evaluations cover the series' seconds; `HORIZON` unknown seconds come first."""
    length = max(len(values) for series in (*gpus, host or {}) for values in series.values())
    own = GPUS[: len(gpus)]
    table = dict(zip(own, gpus, strict=True))

    def column(source: Source, metric: str, first: int) -> np.ndarray:
        series = (
            (host or {}) if source.device == NODE or source.device.startswith(JOB_PREFIX) else table[source]
        )
        out = np.full(HORIZON + length, NAN)
        if metric in series:
            out[HORIZON : HORIZON + len(series[metric])] = series[metric]
        return out[first:]

    codes = np.full(HORIZON + length, -1, dtype=np.int8)
    codes[HORIZON:] = PHASES.index(phases)
    devices = {
        gpu: Device(
            gpu,
            0,
            model=model,
            memory_total_bytes=80e9,
            max_sm_clock_hertz=2e9,
            max_pcie_link_generation=4,
            max_pcie_link_width=16,
        )
        for gpu, model in zip(own, models, strict=False)
    }
    stretch = Stretch("n1", JOB, START_S - HORIZON, HORIZON + length, own, column, codes, devices, events)
    ends = np.arange(HORIZON + step, HORIZON + length + 1, step, dtype=np.int64) - lag
    return View(stretch, Settings(scope, gate, step, lag, 0.5), ends, {})  # type: ignore[arg-type]


def evaluate(text: str, view: View, window: int = 60) -> np.ndarray:
    """Values [rows, evaluations]; conditions as 1, 0 and NaN."""
    problems: list[str] = []
    node = parse(text, Names(view.settings.scope, window), lambda message, _: problems.append(message))
    assert not problems, problems
    node = per_evaluation(node, window)
    values = np.broadcast_to(view.window(node, view.everywhere()), (len(view.rows), len(view.ends)))
    if values.dtype == np.int8:
        return np.where(values == UNKNOWN, NAN, (values == TRUE).astype(float))
    return values


def last(text: str, *gpus: Series, **how: object) -> float:
    """The last evaluation of the first row, over a window of the whole series by default."""
    window = int(how.pop("window", 0) or max(len(v) for series in gpus for v in series.values()) // 10 * 10)  # type: ignore[arg-type]
    return float(evaluate(text, view_of(*gpus, **how), window)[0, -1])  # type: ignore[arg-type]


def sm(*values: float) -> Series:
    return {"sm_active_ratio": np.array(values, dtype=float)}


def ramp(slope: float = 1e6, seconds: int = 600, start: float = 40e9) -> Series:
    return {"memory_used_bytes": start + slope * np.arange(seconds)}


RNG = np.random.default_rng(3)
NOISE = np.clip(RNG.normal(0.5, 0.2, 120), 0, 1)
WITH_GAPS = np.where(RNG.random(120) < 0.2, NAN, NOISE)

PLAIN: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda w: float(np.nanmean(w)),
    "max": lambda w: float(np.nanmax(w)),
    "min": lambda w: float(np.nanmin(w)),
    "median": lambda w: float(np.nanmedian(w)),
    "deviation": lambda w: float(np.nanstd(w)),
    "first": lambda w: float(w[~np.isnan(w)][0]),
    "last": lambda w: float(w[~np.isnan(w)][-1]),
    "samples": lambda w: float(np.count_nonzero(~np.isnan(w))),
    "delta": lambda w: float(w[~np.isnan(w)][-1] - w[~np.isnan(w)][0]),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("series", [NOISE, WITH_GAPS], ids=["whole", "gaps"])
def test_simple_statistics_are_over_what_was_measured(name: str, series: np.ndarray):
    values = evaluate(f"{name}(sm_active_ratio)", view_of(sm(*series)))[0]
    for k in range(5, len(values)):
        window = series[10 * (k + 1) - 60 : 10 * (k + 1)]
        assert values[k] == pytest.approx(PLAIN[name](window))


@pytest.mark.parametrize(
    "name", ["mean", "max", "min", "share", "seconds", "samples", "overlap", "mean_while"]
)
def test_both_ways_of_computing_agree(name: str):
    condition = "sm_active_ratio < 0.5"
    arguments = {
        "share": condition, "seconds": condition, "overlap": f"{condition}, sm_active_ratio > 0.2", "mean_while": f"sm_active_ratio, {condition}",
    }.get(name, "sm_active_ratio")  # fmt: skip
    bulk = evaluate(f"{name}({arguments})", view_of(sm(*WITH_GAPS)))
    dependent = arguments.replace("sm_active_ratio", "(sm_active_ratio + 0 * median(sm_active_ratio))")
    rows = evaluate(f"{name}({dependent})", view_of(sm(*WITH_GAPS)))
    np.testing.assert_allclose(bulk[:, 5:], rows[:, 5:])


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_quantiles_are_numpys(q: float):
    values = evaluate(f"quantile(sm_active_ratio, {q})", view_of(sm(*WITH_GAPS)))[0]
    assert values[-1] == pytest.approx(np.nanquantile(WITH_GAPS[60:], q))


def test_too_few_samples_are_unknown_and_not_zero():
    series = np.full(120, 0.9)
    series[60:] = NAN
    series[60:69] = 0.5  # nine of sixty seconds
    view = view_of(sm(*series))
    assert math.isnan(evaluate("mean(sm_active_ratio)", view)[0, -1])
    assert math.isnan(evaluate("mean(sm_active_ratio) < 0.7", view)[0, -1])
    assert evaluate("known(mean(sm_active_ratio))", view)[0, -1] == 0.0
    assert evaluate("default(mean(sm_active_ratio), 0.25)", view)[0, -1] == 0.25


def test_half_of_the_window_is_enough():
    series = np.full(60, NAN)
    series[::2] = 0.4
    assert last("mean(sm_active_ratio)", sm(*series)) == pytest.approx(0.4)


def test_logic_is_settled_by_what_is_known():
    view = view_of(sm(*np.full(60, 0.5)))
    assert evaluate("mean(gpu_util_ratio) < 1 and mean(sm_active_ratio) > 0.9", view)[0, -1] == 0.0
    assert evaluate("mean(gpu_util_ratio) < 1 or mean(sm_active_ratio) < 0.9", view)[0, -1] == 1.0
    assert math.isnan(evaluate("mean(gpu_util_ratio) < 1 and mean(sm_active_ratio) < 0.9", view)[0, -1])
    assert math.isnan(evaluate("not mean(gpu_util_ratio) < 1", view)[0, -1])


def test_arithmetic_divides_by_zero_to_unknown():
    assert math.isnan(
        last("mean(sm_active_ratio) / (mean(sm_active_ratio) - mean(sm_active_ratio))", sm(*np.full(60, 0.5)))
    )


def test_share_and_seconds_count():
    series = sm(*([0.1] * 15 + [0.9] * 45))
    assert last("share(sm_active_ratio < 0.5)", series) == pytest.approx(0.25)
    assert last("seconds(sm_active_ratio < 0.5)", series) == 15


def test_runs_are_counted_and_measured():
    series = sm(*([0.9] * 10 + [0.1] * 3 + [0.9] * 10 + [0.1] * 7 + [0.9] * 10 + [0.1] * 5 + [0.9] * 15))
    assert last("episodes(sm_active_ratio < 0.5)", series) == 3
    assert last("longest(sm_active_ratio < 0.5)", series) == 7
    assert last("typical_length(sm_active_ratio < 0.5)", series) == 5


def test_segments_keep_runs_of_the_right_length():
    dips = [0.9] * 10 + [0.1] * 1 + [0.9] * 10 + [0.1] * 5 + [0.9] * 10 + [0.1] * 24 + [0.9] * 60
    view = view_of(sm(*dips), lag=40)
    assert evaluate("seconds(segments(sm_active_ratio < 0.5, min=2, max=10))", view)[0, 9] == 5
    assert evaluate("seconds(segments(sm_active_ratio < 0.5, min=2))", view)[0, 9] == 29


@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=60), st.integers(1, 6), st.integers(0, 9))
def test_segments_as_a_person_would_count_them(trits: list[int], shortest: int, longest: int):
    kept = kernels.segments(np.array([trits], dtype=np.int8), shortest, longest)[0]
    for k, trit in enumerate(trits):
        first = last_ = k
        while trit == 2 and first > 0 and trits[first - 1] == 2:
            first -= 1
        while trit == 2 and last_ + 1 < len(trits) and trits[last_ + 1] == 2:
            last_ += 1
        fits = trit == 2 and last_ - first + 1 >= shortest and (not longest or last_ - first + 1 <= longest)
        assert kept[k] == (TRUE if fits else UNKNOWN if trit == 1 else FALSE)


def test_sustained_needs_an_unbroken_stretch():
    series = sm(*([0.9] * 9 + [0.1] + [0.9] * 20 + [0.1] * 30))
    assert last("seconds(sustained(sm_active_ratio > 0.5, 10))", series) == 11


def test_near_widens_a_condition():
    series = sm(*([0.9] * 20 + [0.1] + [0.9] * 39))
    assert (
        evaluate(
            "seconds(near(sm_active_ratio < 0.5, before=3, after=2))",
            view_of(sm(*series["sm_active_ratio"], *[0.9] * 20), lag=10),
        )[0, -1]
        == 6
    )


def test_earlier_smooth_and_difference():
    series = sm(*np.linspace(0, 0.6, 120))
    assert last("last(earlier(sm_active_ratio, 20))", series) == pytest.approx(series["sm_active_ratio"][99])
    assert last("last(smooth(sm_active_ratio, 10))", series) == pytest.approx(
        series["sm_active_ratio"][110:].mean()
    )
    assert last("last(difference(sm_active_ratio, 30))", series) == pytest.approx(0.6 * 30 / 119)


def test_counters_survive_resets_and_gaps():
    counter = np.concatenate((100 + np.arange(30), [NAN] * 5, 135 + np.arange(10), np.arange(15))).astype(
        float
    )
    series = {"pcie_replays_total": counter}
    assert last("increase(pcie_replays_total)", series) == (144 - 100) + 14
    assert last("rate(pcie_replays_total)", series) == pytest.approx(58 / 54)


@settings(max_examples=50)
@given(st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=30, max_size=120))
def test_a_counter_never_falls_whatever_resets_there_are(steps: list[int | None]):
    values, total = [], 0.0
    for step in steps:
        if step is not None:
            total = 0.0 if step > 45 else total + step
        values.append(NAN if step is None else total)
    grown = kernels.increments(np.array([values]))[0]
    assert (grown[~np.isnan(grown)] >= 0).all()


@settings(max_examples=50)
@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=40, max_size=120))
def test_what_a_whole_counter_grew_by_is_whole(steps: list[int | None]):
    values = np.cumsum([step or 0 for step in steps]).astype(float)
    values[[step is None for step in steps]] = NAN
    grown = last("increase(ecc_uncorrected_total)", {"ecc_uncorrected_total": values})
    assert np.isnan(grown) or grown == int(grown)


def test_a_slow_counter_counts_each_reading_once():
    counter = np.repeat(np.arange(6) * 7.0, 10)
    assert last("increase(pcie_replays_total)", {"pcie_replays_total": counter}) == 35


def test_overlap_and_mean_while():
    series = {
        "sm_active_ratio": np.array([0.1] * 20 + [0.9] * 40),
        "pcie_tx_bytes_per_second": np.array([2e9] * 15 + [0.0] * 45),
    }
    assert last("overlap(sm_active_ratio < 0.5, pcie_tx_bytes_per_second > 1 * GB / second)", series) == 0.75
    assert last("mean_while(pcie_tx_bytes_per_second, sm_active_ratio < 0.5)", series) == 1.5e9
    assert math.isnan(last("overlap(sm_active_ratio < 0.05, sm_active_ratio < 0.5)", series))


def test_correlation_and_its_lag():
    wave = 0.5 + 0.4 * np.sin(np.arange(120) / 5)
    series = {"sm_active_ratio": wave, "gpu_util_ratio": np.concatenate((wave[3:], wave[:3]))}
    assert last("correlation(sm_active_ratio, gpu_util_ratio, lag=3)", series) > 0.99
    assert last("correlation(sm_active_ratio, gpu_util_ratio)", series) < 0.9
    assert last("best_correlation(sm_active_ratio, gpu_util_ratio, max_lag=5)", series) > 0.99
    assert math.isnan(
        last("correlation(sm_active_ratio, gpu_util_ratio)", {**series, "gpu_util_ratio": np.full(120, 0.5)})
    )


@pytest.mark.parametrize("period", [8, 20, 45])
def test_the_period_of_a_periodic_series_is_found(period: int):
    series = sm(*np.where(np.arange(300) % period < period // 2, 0.9, 0.2))
    assert last("period(sm_active_ratio)", series) == pytest.approx(period, abs=1)
    assert last("period_strength(sm_active_ratio)", series) > 0.8


def test_noise_has_no_period():
    assert math.isnan(last("period(sm_active_ratio)", sm(*RNG.random(300))))


def test_a_change_point_is_found_and_dated():
    series = sm(*(0.8 + RNG.normal(0, 0.02, 200)), *(0.6 + RNG.normal(0, 0.02, 100)))
    assert last("change_point(sm_active_ratio)", series) == pytest.approx(-0.25, abs=0.02)
    assert last("change_age(sm_active_ratio)", series) == pytest.approx(100, abs=3)


def test_noise_has_no_change_point():
    assert last("change_point(sm_active_ratio)", sm(*(0.8 + RNG.normal(0, 0.02, 300)))) == 0.0


def test_a_ramp_has_its_slope_and_time_left():
    series = ramp(1e6)
    assert last("slope(memory_used_bytes)", series) == pytest.approx(1e6)
    assert last("concordance(memory_used_bytes)", series) == 1.0
    assert last("acceleration(memory_used_bytes)", series) == pytest.approx(1.0, abs=0.15)
    assert last("rise(memory_used_bytes)", series) == pytest.approx(570e6)
    left = 80e9 - series["memory_used_bytes"][-1]
    assert last("time_to(memory_used_bytes, memory_total)", series) == pytest.approx(left / 1e6)


def test_the_robust_slope_ignores_a_spike():
    series = ramp(1e6)
    series["memory_used_bytes"][300:310] += 20e9
    assert last("slope(memory_used_bytes)", series) == pytest.approx(1e6, rel=0.15)


def test_the_interval_of_time_to_contains_its_middle():
    series = ramp(2e6)
    series["memory_used_bytes"] += RNG.normal(0, 5e7, 600)
    early, middle, late = (
        last(f"time_to(memory_used_bytes, memory_total, q={q})", series) for q in (0.9, 0.5, 0.1)
    )
    assert early < middle < late


def test_what_does_not_grow_never_arrives():
    assert last("time_to(memory_used_bytes, memory_total)", ramp(0.0)) == math.inf
    assert last("time_to(memory_used_bytes, memory_total)", ramp(0.0, start=81e9)) == 0.0


def test_growth_that_slows_down_has_little_acceleration():
    series = {"memory_used_bytes": 40e9 + 5e9 * (1 - np.exp(-np.arange(600) / 60))}
    assert last("acceleration(memory_used_bytes)", series) < 0.1


def test_bits_of_a_state():
    series = {"clock_event_reasons": np.array([0] * 20 + [0x40] * 10 + [0x24] * 30, dtype=float)}
    assert last("seconds(bits(clock_event_reasons, REASON_HARDWARE_THERMAL))", series) == 10
    assert last("seconds(bits(clock_event_reasons, 0x60))", series) == 40


def test_events_are_counted_in_their_window_and_by_code():
    events = tuple(
        Event(source, (START_S + at) * 1000 + 500, "xid", code)
        for source, at, code in [
            (GPUS[0], 5, 79),
            (GPUS[0], 25, 13),
            (GPUS[1], 28, 13),
            (Source("n1", NODE), 29, 0),
        ]
    )
    view = view_of(sm(*np.ones(60)), sm(*np.ones(60)), events=events)
    assert list(evaluate('events("xid", over=20)', view, 20)[0]) == [1, 1, 1, 1, 0, 0]
    assert list(evaluate('events("xid", 13, 31)', view)[:, -1]) == [1, 1]
    assert evaluate('job_events("xid")', view)[0, -1] == 4


def test_phases_mask_what_a_rule_sees():
    series = sm(*([0.9] * 30 + [0.1] * 30))
    view = view_of(series, gate=("train",))
    view.stretch.phases[HORIZON + 30 :] = PHASES.index("eval")
    assert evaluate("mean(sm_active_ratio)", view)[0, -1] == pytest.approx(0.9)
    assert evaluate('share(phase("eval"))', view)[0, -1] == 0.5


def test_a_counter_does_not_lose_what_it_grew_before_a_masked_phase():
    series = {"pcie_replays_total": np.arange(60.0)}
    view = view_of(series, gate=("train",))
    view.stretch.phases[HORIZON + 20 : HORIZON + 40] = PHASES.index("eval")
    assert evaluate("increase(pcie_replays_total)", view)[0, -1] == 39


def test_peers_leave_oneself_and_other_models_out():
    view = view_of(*(sm(*np.full(60, level)) for level in (0.2, 0.6, 0.8)), models=("A", "A", "B"))
    np.testing.assert_allclose(evaluate("peers_median(mean(sm_active_ratio))", view)[:, -1], [0.6, 0.2, NAN])
    assert list(evaluate("peers_count()", view)[:, -1]) == [1, 1, 0]


def test_peers_and_gpus_compute_over_the_rows():
    view = view_of(*(sm(*np.full(60, level)) for level in (0.2, 0.6, 0.9)))
    expected = {
        "peers_mean": [0.75, 0.55, 0.4], "peers_max": [0.9, 0.9, 0.6], "peers_min": [0.6, 0.2, 0.2],
        "gpus_mean": [0.5667] * 3, "gpus_median": [0.6] * 3, "gpus_max": [0.9] * 3, "gpus_min": [0.2] * 3,
    }  # fmt: skip
    for name, values in expected.items():
        np.testing.assert_allclose(evaluate(f"{name}(mean(sm_active_ratio))", view)[:, -1], values, rtol=1e-3)
    assert evaluate("peers_spread(mean(sm_active_ratio))", view)[0, -1] == pytest.approx(1.4826 * 0.15)
    assert evaluate("gpus_count(mean(sm_active_ratio) > 0.5)", view)[0, -1] == 2
    assert evaluate("gpus()", view)[0, -1] == 3


def test_a_gpu_that_is_not_measured_is_no_peer():
    view = view_of(sm(*np.full(60, 0.2)), sm(*np.full(60, NAN)), sm(*np.full(60, 0.8)))
    np.testing.assert_allclose(evaluate("peers_mean(mean(sm_active_ratio))", view)[:, -1], [0.8, 0.5, 0.2])
    assert evaluate("gpus_count(mean(sm_active_ratio) > 0.1)", view)[0, -1] == 2


def test_the_one_that_is_always_slowest_is_told_from_one_that_takes_turns():
    slow = [sm(*np.full(300, level)) for level in (0.9, 0.5, 0.9)]
    np.testing.assert_allclose(
        evaluate("share_lowest(sm_active_ratio)", view_of(*slow), 300)[:, -1], [0, 1, 0]
    )
    turns = np.arange(300) // 60 % 2 == 0
    rotating = [sm(*np.where(turns, 0.9, 0.5)), sm(*np.where(turns, 0.5, 0.9))]
    np.testing.assert_allclose(
        evaluate("share_highest(sm_active_ratio)", view_of(*rotating), 300)[:, -1], [0.6, 0.4]
    )


def test_job_facts_are_known():
    view = view_of(sm(*np.ones(60)))
    assert list(evaluate("job_age()", view)[0]) == [10, 20, 30, 40, 50, 60]
    assert evaluate('tag("nightly")', view)[0, -1] == 1
    assert evaluate('tag("interactive")', view)[0, -1] == 0
    assert evaluate("nodes()", view)[0, -1] == 1


def test_device_constants_come_from_the_device_or_the_samples():
    view = view_of(sm(*np.ones(60)))
    assert evaluate("memory_total", view)[0, -1] == 80e9
    assert evaluate("max_clock", view)[0, -1] == 2e9
    assert math.isnan(evaluate("power_limit", view)[0, -1])
    assert evaluate("power_limit", view_of({"power_limit_watts": np.full(60, 300.0)}))[0, -1] == 300


def test_the_link_peak_follows_the_link_as_it_runs():
    assert evaluate("link_peak", view_of(sm(*np.ones(60))))[0, -1] == pytest.approx(25.6e9)
    degraded = {"pcie_link_generation": np.full(60, 3.0), "pcie_link_width": np.full(60, 8.0)}
    assert evaluate("link_peak", view_of(degraded))[0, -1] == pytest.approx(6.4e9)


def test_values_of_two_are_chosen_and_rounded():
    view = view_of(sm(*np.full(60, 0.4)))
    assert evaluate("larger(mean(sm_active_ratio), mean(gpu_util_ratio))", view)[0, -1] == pytest.approx(0.4)
    assert evaluate("smaller(mean(sm_active_ratio), 0.1)", view)[0, -1] == pytest.approx(0.1)
    assert evaluate("size(mean(sm_active_ratio) - 1)", view)[0, -1] == pytest.approx(0.6)
    assert evaluate("round_down(7 * mean(sm_active_ratio))", view)[0, -1] == 2
    assert evaluate("round_up(7 * mean(sm_active_ratio))", view)[0, -1] == 3
    assert evaluate("square_root(9 * peers_count() + 16)", view)[0, -1] == 4


def test_host_metrics_are_shared_by_all_gpus_of_the_node():
    host = {"loader_cpu_ratio": np.full(60, 0.7)}
    view = view_of(sm(*np.ones(60)), sm(*np.ones(60)), host=host)
    np.testing.assert_allclose(
        evaluate("mean(loader_cpu_ratio) * mean(sm_active_ratio)", view)[:, -1], [0.7, 0.7]
    )


def test_dear_terms_are_computed_only_where_cheap_ones_hold(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    plain = kernels.quantile
    monkeypatch.setattr(kernels, "quantile", lambda rows, q: asked.append(len(rows)) or plain(rows, q))
    series = sm(*([0.9] * 1800 + [0.1] * 200 + [0.9] * 1600))
    evaluate("quantile(sm_active_ratio, 0.9) > 0 and mean(sm_active_ratio) < 0.5", view_of(series))
    assert 0 < sum(asked) < 30  # of 360 evaluations


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example_that_is_right(name: str):
    function = FUNCTIONS[name]
    problems: list[str] = []
    node = parse(function.example, Names("gpu", 300), lambda message, _: problems.append(message))
    assert not problems
    assert any(part.op == "call" and part.value == name for part in node)


@pytest.mark.parametrize("name", [*DEVICE_CONSTANTS, *MASKS])
def test_constants_of_devices_and_masks_are_names_of_the_language(name: str):
    problems: list[str] = []
    parse(f"{name} > 0", Names("gpu", 300), lambda message, _: problems.append(message))
    assert not problems
