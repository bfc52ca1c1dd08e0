"""A report's look back at the phases: the same labels with their true beginnings and ends, as spans."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gpudiag.rules.activity import Activity
from gpudiag.rules.marks import TRAIN, MarkFollower
from gpudiag.rules.model import PHASES, Interval, PhaseSpan
from gpudiag.rules.phase_machine import ACTIVE, IDLE
from gpudiag.rules.phases import CODE, Codes
from gpudiag.rules.smoothing import centred_mean
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Floats

Mask = npt.NDArray[np.bool_]

TAIL_S = 180
NEVER_S = 900
_WARMUP_MAX_S = 1200
_BRIDGED_S = 5
_LEVEL = 0.75


def refine(activity: Activity, codes: Codes, marks: Iterable[Event] = ()) -> Codes:
    """Labels with hindsight, [seconds]: an idle stretch from its first second, the tail, the true warm-up.

    A job whose `marks` say that it trains is not warming up any more, whatever its level.
    """
    refined = codes.copy()
    nothing = _below(activity["peak"], IDLE) & ~(activity["gpu_util_ratio"] > 0.01)
    _reach_back(refined, "idle", nothing, 90)
    _reach_back(refined, "hung", nothing | _no_math(activity), 1200)
    _reach_back(refined, "eval", _quiet(activity), 20)
    _bridge(refined)
    trains = MarkFollower().advance(marks, activity.start_ms // 1000, len(codes))[TRAIN]
    _warmup_ends(refined, activity["active"], len(codes) - int(trains.sum()))
    _tail(refined, activity, nothing)
    _ending(refined)
    for phase in ("inference", "interactive"):
        _throughout(refined, phase)
    return refined


def spans(activity: Activity, codes: Codes) -> tuple[PhaseSpan, ...]:
    """Runs of equal labels with clock times, in order, without gaps."""
    if not len(codes):
        return ()
    edges = np.concatenate(([0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]))
    at = activity.start_ms + edges * 1000
    return tuple(
        PhaseSpan(PHASES[codes[first]], Interval(int(begin), int(end)))
        for first, begin, end in zip(edges[:-1], at[:-1], at[1:], strict=True)
    )


def _bridge(codes: Codes) -> None:
    """A lost sample or two is no phase of its own."""
    lost = codes == CODE["not_measured"]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], lost.view(np.int8), [0]))))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if last - first <= _BRIDGED_S and last - first < len(codes):
            codes[first:last] = codes[first - 1] if first else codes[last]


def _ending(codes: Codes) -> None:
    """The second or two between the last process and the end of the job are no idle phase."""
    at_work = np.flatnonzero(codes != CODE["idle"])
    if len(at_work) and len(codes) - at_work[-1] - 1 <= _BRIDGED_S:
        codes[at_work[-1] + 1 :] = codes[at_work[-1]]


def _below(values: Floats, limit: float) -> Mask:
    with np.errstate(invalid="ignore"):
        result: Mask = values < limit
    return result


def _no_math(activity: Activity) -> Mask:
    dram = activity["dram_active_ratio"]
    dram = np.where(np.isnan(dram), activity["memory_util_ratio"], dram)
    tensor = np.nan_to_num(activity["tensor_active_ratio"])
    return _below(tensor, 0.005) & _below(dram, 0.02)


def _quiet(activity: Activity) -> Mask:
    link = activity["nvlink_tx_bytes_per_second"]
    return (
        _below(link, 0.1 * float(np.nanmedian(link))) if not np.isnan(link).all() else np.isnan(link) & False
    )


def _reach_back(codes: Codes, phase: str, alike: Mask, limit_s: int) -> None:
    """Let each run of `phase` begin where the seconds before it already looked `alike`."""
    inside = codes == CODE[phase]
    movable = np.isin(codes, [CODE["train"], CODE["warmup"], CODE["idle"], CODE["eval"]])
    for begin in np.flatnonzero(inside & ~np.roll(inside, 1)).tolist():
        first = max(0, begin - limit_s)
        same = (alike & movable)[first:begin]
        differs = np.flatnonzero(~same)
        codes[first + (differs[-1] + 1 if len(differs) else 0) : begin] = CODE[phase]


def _warmup_ends(codes: Codes, active: Floats, latest: int) -> None:
    """End the warm-up at the first three minutes near the level of the first trained hour, and by second `latest`."""
    warm = np.flatnonzero(codes == CODE["warmup"])
    if not len(warm):
        return
    begin = int(warm[0])
    working = np.isin(codes, [CODE["warmup"], CODE["train"]])
    hour = slice(begin, begin + 3600)
    minute = centred_mean(np.where(working, active, np.nan), 60)
    trained = minute[hour][(codes == CODE["train"])[hour]]
    if np.isnan(trained).all():
        return
    level = float(np.nanquantile(trained, 0.75))
    three = centred_mean(np.where(working, active, np.nan), 180)
    early = slice(begin, begin + _WARMUP_MAX_S)
    steady = minute[early] >= _LEVEL * level
    reached = np.flatnonzero(steady & (three[early] >= _LEVEL * level))
    end = begin + (_since(steady, int(reached[0])) if len(reached) else min(_WARMUP_MAX_S, len(warm)))
    end = min(end, max(begin, latest))
    before, after = slice(begin, end), slice(end, None)
    codes[before] = np.where(codes[before] == CODE["train"], CODE["warmup"], codes[before])
    codes[after] = np.where(codes[after] == CODE["warmup"], CODE["train"], codes[after])


def _never_worked(codes: Codes) -> None:
    """A start-up that never ends is no start-up: beyond a quarter of an hour the devices were just held."""
    if len(codes) >= NEVER_S:
        codes[codes == CODE["startup"]] = CODE["idle"]


def _throughout(codes: Codes, phase: str) -> None:
    """A job told to serve or to be interactive for most of its time was so from its first activity on."""
    alike = np.isin(codes, [CODE[name] for name in ("train", "warmup", "idle", "eval", "tail", phase)])
    if (codes == CODE[phase]).sum() > 0.4 * alike.sum():
        codes[alike] = CODE[phase]


def _since(steady: Mask, reached: int) -> int:
    """First second of the run of `steady` around `reached`; a centred minute crosses the level 15 s late."""
    before = np.flatnonzero(~steady[:reached])
    first = int(before[-1]) + 1 if len(before) else 0
    return max(0, first - 15)


def _tail(codes: Codes, activity: Activity, nothing: Mask) -> None:
    """From the last activity to the end, unless the job never worked, hung, or ended at once."""
    worked = np.flatnonzero(activity["peak"] > max(IDLE, ACTIVE / 2))
    if not len(worked):
        _never_worked(codes)
        return
    last = int(worked[-1]) + 1
    rest = codes[last:]
    rest[rest == CODE["restart"]] = CODE["idle"]
    if len(rest) < TAIL_S or (rest == CODE["hung"]).any() or not nothing[last:].any():
        return
    rest[rest != CODE["not_measured"]] = CODE["tail"]
