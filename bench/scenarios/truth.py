"""What is true about a simulated job: causes per GPU and second, onsets, the moment of an out-of-memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from bench.scenarios.plan import Plan, window
from bench.scenarios.spec import Scenario
from bench.scenarios.steps import STATES, Floats

from gpudiag.storage.sample import Source

CAUSES = (
    "before_start", "startup", "warmup", "train", "input_cpu", "input_disk", "input_other", "transfer",
    "checkpoint", "eval", "communication", "straggler", "throttle", "allocator", "host", "hung", "idle",
    "tail", "unattributed", "not_measured",
)  # fmt: skip
_OF_STATE = {
    "h2d": "transfer", "comm": "communication", "optimiser": "train", "checkpoint": "checkpoint", "eval": "eval",
    "allocator": "allocator", "host": "host", "launch": "host",
}  # fmt: skip
_CLOCKS = ("thermal", "brake", "power_limit", "low_clock")


@dataclass
class Truth:
    """`causes[source]` [seconds, 20] sums to 1; onset and end of each fault, and of OOM, in seconds of the job."""

    causes: dict[Source, Floats] = field(default_factory=dict)
    onsets: tuple[tuple[float, float], ...] = ()
    oom_s: float | None = None

    def note(self, scenario: Scenario, plan: Plan) -> None:
        """Remember when the faults lasted."""
        self.onsets = tuple(
            _lasted(f.kind, f.size, window(f, plan.train, plan.end), plan) for f in scenario.faults
        )
        if any(fault.kind in ("leak", "host_leak") for fault in scenario.faults):
            self.oom_s = plan.end

    def ratios(self) -> Floats:
        """Share of the allocation per cause, in the order of `CAUSES`."""
        total = np.sum([causes.sum(axis=0) for causes in self.causes.values()], axis=0)
        return np.asarray(total / total.sum())


def _lasted(kind: str, size: float, when: tuple[float, float], plan: Plan) -> tuple[float, float]:
    if kind in ("leak", "host_leak"):
        return plan.end - 60 * size, plan.end
    if kind in ("hung", "idle_tail"):
        return plan.end, float(plan.seconds)
    if kind in ("slow_start", "never_started"):
        return plan.start, float(plan.seconds if kind == "never_started" else plan.warmup)
    return when


def true_causes(scenario: Scenario, plan: Plan, gpu: int, shares: Floats, clock: Floats) -> Floats:
    """Causes of one GPU from its state shares [states, seconds] and its clock [seconds]."""
    t = np.arange(plan.seconds)
    out = np.zeros((plan.seconds, len(CAUSES)), np.float32)
    at = dict(zip(STATES, shares, strict=True))
    for state, cause in _OF_STATE.items():
        out[:, CAUSES.index(cause)] += at[state]
    out[:, CAUSES.index("train")] += at["compute"] * clock
    out[:, CAUSES.index("throttle")] += at["compute"] * (1 - clock)
    _waits(out, scenario, plan, at["wait"], at["input"], t)
    kinds = {fault.kind for fault in scenario.faults if not fault.devices or gpu in fault.devices}
    rest = "hung" if "hung" in kinds else "tail"
    if scenario.kind == "inference":
        out[:, CAUSES.index("train")] += out[:, CAUSES.index("eval")]
        out[:, CAUSES.index("eval")] = 0
    if scenario.kind in ("inference", "notebook"):
        rest = "idle"
        out[:, CAUSES.index("idle")] = 1 - out.sum(axis=1)
    if kinds & {"unused", "never_started"}:
        out[:] = 0
        out[:, CAUSES.index("idle")] = 1
        rest = "idle"
    _stretch(out, "before_start", t < plan.start)
    if "never_started" not in kinds:
        _stretch(out, "startup", (t >= plan.start) & (t < plan.warmup))
        _stretch(out, "warmup", (t >= plan.warmup) & (t < plan.train) & (scenario.kind != "inference"))
    _stretch(out, rest, (t >= plan.end) & (scenario.kind not in ("inference", "notebook")))
    return out / np.maximum(out.sum(axis=1, keepdims=True), 1e-9)


def _waits(
    out: Floats,
    scenario: Scenario,
    plan: Plan,
    waits: Floats,
    inputs: Floats,
    t: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    """Waiting for input or for a peer has the cause of the fault that lasts."""
    slow, source = np.full(len(t), CAUSES.index("straggler")), np.full(len(t), CAUSES.index("input_other"))
    for fault in scenario.faults:
        first, last = window(fault, plan.train, plan.end)
        on = (t >= first - 5) & (t < last + 60)
        if fault.kind == "bubble":
            slow[on] = CAUSES.index("communication")
        elif fault.kind in _CLOCKS:
            slow[on] = CAUSES.index("throttle")
        elif not scenario.workload.host_data:
            continue  # nobody could tell which input it was
        elif fault.kind in ("cpu_steady", "cpu_gappy", "main_bound"):
            source[on] = CAUSES.index("input_cpu")
        elif fault.kind in ("disk_steady", "disk_gappy"):
            source[on] = CAUSES.index("input_disk")
    rows = np.arange(len(t))
    np.add.at(out, (rows, slow), waits)
    np.add.at(out, (rows, source), inputs)


def unmeasured(causes: Floats, missing: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
    """Seconds that no tool measured belong to no cause, in place."""
    _stretch(causes, "not_measured", missing)


def _stretch(out: Floats, cause: str, when: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
    out[when] = 0
    out[when, CAUSES.index(cause)] = 1
