"""The functions of the rule language: signatures, units and one-line documentation; `docs/rule-language.md` is checked against this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpudiag.rules.units import COUNT, NAMED, NUMBER, RATIO, SECONDS, Unit

Takes = Literal[
    "series",
    "condition",
    "counter",
    "state",
    "window",
    "either",
    "truth",
    "same",
    "number",
    "seconds",
    "text",
]
Gives = Literal["series", "window", "const"]
UnitOf = Callable[[Sequence[Unit]], Unit]


@dataclass(frozen=True)
class Parameter:
    """An argument: what it takes, its default when it may be left out, and whether it may be repeated."""

    name: str
    takes: Takes
    default: float | None = None
    repeated: bool = False


@dataclass(frozen=True)
class Function:
    """One function; `gives` a series or a value per evaluation (`window`).

    `over`: it looks at a stretch of time, which `over=` changes from the rule's window. `reach` and `lag` are
    seconds before and after that a series function needs, from its options. `expensive` ones are only evaluated
    where the cheap terms of an `and` already hold.
    """

    name: str
    parameters: tuple[Parameter, ...]
    gives: Gives
    unit: UnitOf
    summary: str
    example: str
    boolean: bool = False
    over: bool = False
    expensive: bool = False
    group: bool = False
    reach: Callable[[Mapping[str, float]], float] = lambda options: 0
    lag: Callable[[Mapping[str, float]], float] = lambda options: 0
    only: str = ""


def _same(units: Sequence[Unit]) -> Unit:
    return units[0]


def _is(unit: Unit) -> UnitOf:
    return lambda units: unit


def _per_second(units: Sequence[Unit]) -> Unit:
    return units[0].times(SECONDS, -1)


def _difference(units: Sequence[Unit]) -> Unit:
    return units[0]


X = Parameter("x", "series")
CONDITION = Parameter("condition", "condition")
COUNTER = Parameter("counter", "counter")
VALUE = Parameter("value", "window")
MIN_S = Parameter("min", "seconds", 1.0)
MAX_S = Parameter("max", "seconds", 0.0)


def _series(name: str, parameters: tuple[Parameter, ...], unit: UnitOf, summary: str, example: str, *, boolean: bool = False,
            reach: Callable[[Mapping[str, float]], float] = lambda options: 0,
            lag: Callable[[Mapping[str, float]], float] = lambda options: 0) -> Function:  # fmt: skip
    return Function(name, parameters, "series", unit, summary, example, boolean, reach=reach, lag=lag)


def _window(name: str, parameters: tuple[Parameter, ...], unit: UnitOf, summary: str, example: str, *, expensive: bool = False,
            only: str = "") -> Function:  # fmt: skip
    return Function(
        name, parameters, "window", unit, summary, example, over=True, expensive=expensive, only=only
    )


def _group(name: str, parameters: tuple[Parameter, ...], unit: UnitOf, summary: str, example: str, only: str = "") -> Function:  # fmt: skip
    return Function(name, parameters, "window", unit, summary, example, group=True, only=only)


def _settled(options: Mapping[str, float]) -> float:
    return max(options["min"], options["max"] + 1 if options["max"] else 0)


# fmt: off
_SERIES = (
    _series("segments", (CONDITION, MIN_S, MAX_S), _is(NUMBER), "Seconds inside a run of the condition that lasts at least `min` and, unless 0, at most `max`", "share(segments(sm_active_ratio < 0.1, min=2, max=30))", boolean=True, reach=_settled, lag=_settled),
    _series("sustained", (CONDITION, Parameter("seconds", "seconds")), _is(NUMBER), "Seconds by which the condition has held without a break for that long", "share(sustained(sm_active_ratio > 0.05, 30)) > 0", boolean=True, reach=lambda o: o["seconds"]),
    _series("near", (CONDITION, Parameter("before", "seconds", 0.0), Parameter("after", "seconds", 0.0)), _is(NUMBER), "Seconds from `before` ahead of the condition to `after` behind it", "overlap(sm_active_ratio < 0.1, near(pcie_tx_bytes_per_second > 1 * GB / second, before=3, after=3))", boolean=True, reach=lambda o: o["after"], lag=lambda o: o["before"]),
    _series("smooth", (X, Parameter("seconds", "seconds")), _same, "Mean of the last seconds, second by second", "max(smooth(power_watts, 10)) > 0.95 * power_limit", reach=lambda o: o["seconds"]),
    _series("earlier", (X, Parameter("seconds", "seconds")), _same, "What the series was that long ago", "mean(sm_active_ratio) < 0.8 * mean(earlier(sm_active_ratio, 30 * minute))", reach=lambda o: o["seconds"]),
    _series("difference", (X, Parameter("seconds", "seconds", 1.0)), _difference, "Change since that many seconds ago", "seconds(difference(memory_used_bytes, 1) < -1 * GiB)", reach=lambda o: o["seconds"]),
    _series("per_second", (COUNTER,), _per_second, "How much a counter grew in each second; a reset counts from zero. A counter read every ten seconds grows in every tenth", "share(per_second(throttle_thermal_seconds_total) > 0.05)", reach=lambda o: 120),
    _series("bits", (Parameter("state", "state"), Parameter("mask", "number")), _is(NUMBER), "Seconds in which any of the mask's bits is set", "share(bits(clock_event_reasons, 0x60)) > 0.05", boolean=True),
    _series("phase", (Parameter("name", "text", repeated=True),), _is(NUMBER), "Seconds the job spent in one of these phases", "share(phase(\"checkpoint\"), over=1 * hour) > 0.05", boolean=True, lag=lambda o: 20),
)

_WINDOWS = (
    _window("mean", (X,), _same, "Mean of what was measured", "mean(sm_active_ratio) < 0.5"),
    _window("max", (X,), _same, "Highest value", "max(sm_active_ratio) < 0.02"),
    _window("min", (X,), _same, "Lowest value", "min(memory_available_bytes) < 2 * GiB"),
    _window("first", (X,), _same, "First value in the window", "last(memory_used_bytes) > first(memory_used_bytes)", expensive=True),
    _window("last", (X,), _same, "Latest value in the window", "last(memory_used_bytes) / memory_total > 0.97", expensive=True),
    _window("quantile", (X, Parameter("q", "number")), _same, "The value that a share `q` of the samples does not exceed", "quantile(sm_active_ratio, 0.9)", expensive=True),
    _window("median", (X,), _same, "The 0.5 quantile", "median(sm_clock_hertz) < 0.9 * max_clock", expensive=True),
    _window("deviation", (X,), _same, "Standard deviation", "deviation(power_watts) > 50", expensive=True),
    _window("share", (CONDITION,), _is(RATIO), "Share of the measured seconds in which the condition holds", "share(sm_active_ratio < 0.05) > 0.15"),
    _window("seconds", (CONDITION,), _is(SECONDS), "Number of seconds in which the condition holds", "seconds(bits(clock_event_reasons, 0x80)) >= 3"),
    _window("samples", (X,), _is(COUNT), "Number of seconds with a value; never unknown", "samples(torch_reserved_bytes) > 0"),
    _window("episodes", (CONDITION,), _is(COUNT), "How often the condition began to hold", "episodes(sm_active_ratio < 0.1) >= 3", expensive=True),
    _window("longest", (CONDITION,), _is(SECONDS), "Longest run of the condition", "longest(sm_active_ratio < 0.02) > 5 * minute", expensive=True),
    _window("typical_length", (CONDITION,), _is(SECONDS), "Median length of the condition's runs", "typical_length(sm_active_ratio < 0.1) < 30", expensive=True),
    _window("overlap", (CONDITION, Parameter("other", "condition")), _is(RATIO), "Share of the condition's seconds in which the other holds too", "overlap(sm_active_ratio < 0.1, loader_dstate_ratio > 0) > 0.5"),
    _window("mean_while", (X, CONDITION), _same, "Mean of the series over the seconds in which the condition holds", "mean_while(pressure_io_some_ratio, sm_active_ratio < 0.1) > 0.2"),
    _window("delta", (X,), _same, "Last value less first value", "delta(memory_used_bytes) > 4 * GiB", expensive=True),
    _window("increase", (COUNTER,), _same, "How much a counter grew; a reset counts from zero", "increase(pcie_replays_total) > 8"),
    _window("rate", (COUNTER,), _per_second, "`increase` per second of the measured time", "rate(torch_alloc_retries_total) > 1 / minute"),
    _window("correlation", (X, Parameter("other", "series"), Parameter("lag", "number", 0.0)), _is(NUMBER), "Pearson correlation; `lag` seconds shift the other series to later", "correlation(sm_active_ratio, pcie_rx_bytes_per_second) < -0.5", expensive=True),
    _window("best_correlation", (X, Parameter("other", "series"), Parameter("max_lag", "number", 5.0)), _is(NUMBER), "Correlation with the largest size over lags of -`max_lag` to `max_lag` seconds", "best_correlation(sm_active_ratio, pcie_rx_bytes_per_second) > 0.4", expensive=True),
    _window("period", (X,), _is(SECONDS), "Dominant period (autocorrelation), unknown when there is none", "period(sm_active_ratio) > 60", expensive=True),
    _window("period_strength", (X,), _is(NUMBER), "Autocorrelation at the dominant period, 0 without one", "period_strength(sm_active_ratio) > 0.8", expensive=True),
    _window("change_point", (X,), _is(NUMBER), "Relative change of the mean at the likeliest change point, 0 when it is no clear one", "change_point(sm_active_ratio) < -0.1", expensive=True),
    _window("change_age", (X,), _is(SECONDS), "Seconds since the likeliest change point", "change_age(sm_active_ratio) < 5 * minute", expensive=True),
    _window("slope", (X,), _per_second, "Robust trend: Theil-Sen over 30 s block maxima", "slope(memory_used_bytes) > 1 * MiB / second", expensive=True),
    _window("concordance", (X,), _is(RATIO), "Share of the block pairs that rise", "concordance(memory_used_bytes) >= 0.75", expensive=True),
    _window("rise", (X,), _same, "Last block maximum less the first", "rise(memory_used_bytes) > 0.02 * memory_total", expensive=True),
    _window("acceleration", (X,), _is(NUMBER), "Growth in the second half of the window relative to the first half", "acceleration(memory_used_bytes) >= 0.5", expensive=True),
    _window("time_to", (X, Parameter("target", "window"), Parameter("q", "number", 0.5)), _is(SECONDS), "Seconds until the trend reaches the target; `q` picks a quantile of the pair slopes, so 0.9 is the early and 0.1 the late end of the interval", "time_to(memory_used_bytes, memory_total) < 30 * minute", expensive=True),
    _window("share_highest", (X,), _is(RATIO), "Share of the minutes in which this GPU's mean is the highest of the job on the node", "share_highest(tensor_active_ratio) > 0.7", expensive=True, only="gpu"),
    _window("share_lowest", (X,), _is(RATIO), "Share of the minutes in which this GPU's mean is the lowest of the job on the node", "share_lowest(sm_clock_hertz) > 0.7", expensive=True, only="gpu"),
    Function("events", (Parameter("kind", "text"), Parameter("code", "number", repeated=True)), "window", _is(COUNT), "How many events of a kind, optionally of these codes, this source had", "events(\"xid\", 79) > 0", over=True),
    Function("job_events", (Parameter("kind", "text"), Parameter("code", "number", repeated=True)), "window", _is(COUNT), "How many events of a kind the job had on this node, whichever source they belong to", "job_events(\"oom_kill\") > 0", over=True),
)

_GROUPS = (
    _group("peers_median", (VALUE,), _same, "Median of the job's other GPUs of the model on the node", "mean(sm_clock_hertz) < 0.9 * peers_median(mean(sm_clock_hertz))", "gpu"),
    _group("peers_mean", (VALUE,), _same, "Mean of the peers", "mean(power_watts) - peers_mean(mean(power_watts)) > 50", "gpu"),
    _group("peers_max", (VALUE,), _same, "Highest of the peers", "peers_max(mean(sm_active_ratio)) > 0.2", "gpu"),
    _group("peers_min", (VALUE,), _same, "Lowest of the peers", "peers_min(mean(sm_active_ratio)) > 0.5", "gpu"),
    _group("peers_spread", (VALUE,), _same, "Spread of the peers: 1.4826 times the median absolute deviation", "mean(power_watts) > peers_median(mean(power_watts)) + 3 * peers_spread(mean(power_watts))", "gpu"),
    _group("peers_count", (), _is(COUNT), "How many peers there are", "peers_count() >= 2", "gpu"),
    _group("gpus_mean", (VALUE,), _same, "Mean over the job's GPUs on the node", "gpus_mean(mean(sm_active_ratio)) < 0.1"),
    _group("gpus_median", (VALUE,), _same, "Median over the job's GPUs on the node", "gpus_median(mean(sm_active_ratio))"),
    _group("gpus_max", (VALUE,), _same, "Highest over the job's GPUs on the node", "gpus_max(max(sm_active_ratio)) < 0.02"),
    _group("gpus_min", (VALUE,), _same, "Lowest over the job's GPUs on the node", "gpus_min(mean(sm_active_ratio))"),
    _group("gpus_count", (Parameter("condition", "truth"),), _is(COUNT), "Over how many of the job's GPUs on the node the condition holds", "gpus_count(max(sm_active_ratio) < 0.02) >= 1"),
    _group("gpus", (), _is(COUNT), "How many GPUs the job has on the node", "gpus() >= 2"),
    _group("nodes", (), _is(COUNT), "How many nodes the job has", "nodes() == 1"),
    _group("job_age", (), _is(SECONDS), "Seconds since the job started", "job_age() > 15 * minute"),
    _group("tag", (Parameter("name", "text"),), _is(NUMBER), "Whether the job carries a tag", "not tag(\"interactive\")"),
)

_VALUES = (
    Function("default", (Parameter("value", "either"), Parameter("otherwise", "same")), "window", _same, "The value, or the second one where it is unknown", "default(mean(loader_cpu_ratio) > 0.9, true)"),
    Function("known", (Parameter("value", "either"),), "window", _is(NUMBER), "Whether the value is known: measured, and over enough of the window", "known(mean(tensor_active_ratio))", boolean=True),
    Function("larger", (VALUE, Parameter("other", "window")), "window", _same, "The larger of two values; the known one when one is unknown", "larger(mean(disk_busy_ratio), mean(pressure_io_some_ratio)) > 0.5"),
    Function("smaller", (VALUE, Parameter("other", "window")), "window", _same, "The smaller of two values; the known one when one is unknown", "smaller(mean(job_cpus_allowed), 16)"),
    Function("size", (VALUE,), "window", _same, "The value without its sign", "size(change_point(sm_active_ratio)) > 0.1"),
    Function("round_down", (VALUE,), "window", _same, "The whole number below", "round_down(mean(job_cpus_allowed) / gpus())"),
    Function("round_up", (VALUE,), "window", _same, "The whole number above", "round_up(1.5 * mean(loader_workers))"),
    Function("batch_growth", (VALUE, Parameter("capacity", "window")), "window", _is(NUMBER), "By what factor the batch can grow, from the peak of memory in use and its capacity, as `gpudiag estimate` computes it", "batch_growth(max(memory_used_bytes), memory_total) > 1.5"),
    Function("square_root", (VALUE,), "window", _is(NUMBER), "Square root", "square_root(2 * 4)"),
)
# fmt: on

FUNCTIONS = {function.name: function for function in (*_SERIES, *_WINDOWS, *_GROUPS, *_VALUES)}

# device constants: unit, summary
DEVICE_CONSTANTS: dict[str, tuple[Unit, str]] = {
    "memory_total": (NAMED["bytes"], "Memory of the GPU"),
    "power_limit": (NAMED["watts"], "Power limit in force when the device was first seen"),
    "max_clock": (NAMED["hertz"], "Highest SM clock"),
    "link_peak": (NAMED["bytes_per_second"], "What the PCIe link can carry in one direction as it runs now"),
    "max_link_generation": (NAMED["state"], "Highest PCIe generation of GPU and slot"),
    "max_link_width": (NAMED["state"], "Most PCIe lanes of GPU and slot"),
    "nvlink_count": (COUNT, "Active NVLinks"),
}

MASKS = {
    "REASON_IDLE": 0x1,
    "REASON_APPLICATION_CLOCKS": 0x2,
    "REASON_POWER_CAP": 0x4,
    "REASON_HARDWARE_SLOWDOWN": 0x8,
    "REASON_SYNC_BOOST": 0x10,
    "REASON_SOFTWARE_THERMAL": 0x20,
    "REASON_HARDWARE_THERMAL": 0x40,
    "REASON_POWER_BRAKE": 0x80,
}
