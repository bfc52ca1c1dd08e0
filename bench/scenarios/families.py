"""Families of scenarios: one per fault and per healthy look-alike; a style says which workloads they ride on.

`base` in each family is the effect that the published sources call worth a word (rules.md cites them); a
scenario's margin is its fault's size over that. The rules' own thresholds are not read anywhere here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.scenarios.spec import (
    A100_DCGM,
    A100_PLAIN,
    BARE,
    H100,
    L40S,
    MIG,
    V100,
    Expectation,
    Fault,
    Scenario,
    Workload,
)

MARGINS = (0.5, 1.0, 1.5, 2.0, 3.0)
SYMPTOMS = ("util/low-sm-activity", "energy/waste")
STALL = "input/data-loader-stall"
OOM = "memory/gpu-oom-imminent"  # a staircase that reaches 95 % of the memory may be called so


@dataclass(frozen=True)
class Style:
    """How a set of scenarios differs from another: workloads, onsets and ends, seeds."""

    name: str
    workloads: tuple[Workload, ...]
    onsets: tuple[tuple[float, float], ...]
    seeds: tuple[int, ...]
    healthy_seeds: tuple[int, ...] = ()

    @property
    def multi(self) -> tuple[Workload, ...]:
        return tuple(work for work in self.workloads if work.gpus * work.nodes > 1)


@dataclass(frozen=True)
class Family:
    """One fault with a severity sweep. `sizes` overrides `base * margin`; `change` adapts the workload."""

    name: str
    fault: str
    base: float
    rules: tuple[str, ...]
    cause: str
    allowed: tuple[str, ...] = ()
    one_device: bool = False
    multi: bool = False
    margins: tuple[float, ...] = MARGINS
    change: Callable[[Workload], Workload] = lambda work: work
    whole: bool = False
    size: Callable[[float, float], float] = lambda base, margin: base * margin
    extra: tuple[Fault, ...] = ()


def _with(**changes: object) -> Callable[[Workload], Workload]:
    return lambda work: replace(work, **changes)  # type: ignore[arg-type]


def _nvlinked(work: Workload) -> Workload:
    return work if work.generation.nvlinks else replace(work, generation=H100)


FAULTS: tuple[Family, ...] = (
    Family("cpu-gappy", "cpu_gappy", 0.10, ("input/cpu-bound-loader",), "input_cpu", (STALL,)),
    Family("cpu-steady", "cpu_steady", 0.15, ("input/cpu-bound-loader",), "input_cpu", (STALL,)),
    Family("disk-gappy", "disk_gappy", 0.10, ("input/disk-bound-loader",), "input_disk", (STALL,)),
    Family("disk-steady", "disk_steady", 0.15, ("input/disk-bound-loader",), "input_disk", (STALL,)),
    Family("stall-no-host", "cpu_gappy", 0.10, (STALL,), "input_other", change=_with(host_data=False)),
    Family("stall-hook", "cpu_gappy", 0.10, (STALL, "input/cpu-bound-loader"), "input_cpu",
           (STALL, "input/cpu-bound-loader"), change=_with(hook=True)),
    Family("transfer", "transfer", 0.10, ("input/transfer-bound",), "transfer", (STALL,)),
    Family("checkpoint", "checkpoint", 0.05, ("input/checkpoint-stall",), "checkpoint"),
    Family("fragmentation-hook", "fragmentation", 0.01, ("memory/fragmentation",), "allocator",
           ("memory/fragmentation-suspected", "memory/allocator-thrash", OOM), margins=(1.5, 2.0),
           change=_with(hook=True, memory=0.55)),
    Family("fragmentation-blind", "fragmentation", 0.01, ("memory/fragmentation-suspected",), "allocator",
           (OOM,), margins=(1.5, 2.0), change=_with(memory=0.62)),
    Family("thrash", "thrash", 0.04, ("memory/allocator-thrash",), "allocator",
           ("memory/fragmentation", "memory/fragmentation-suspected", OOM),
           change=_with(hook=True, memory=0.8)),
    Family("leak", "leak", 30.0, ("memory/gpu-oom-imminent",), "", margins=(0.5, 1.0, 1.5, 2.0, 3.0),
           change=_with(hours=2.2, memory=0.55), size=lambda base, margin: base * (0.5 + margin)),
    Family("host-leak", "host_leak", 30.0, ("memory/host-oom-imminent",), "", margins=(1.0, 1.5, 2.0, 3.0),
           change=_with(hours=2.2), size=lambda base, margin: base * (0.5 + margin)),
    Family("swap", "swap", 0.06, ("memory/host-swap",), "host", ("memory/host-oom-imminent",),
           margins=(1.5, 2.0, 3.0)),
    Family("comm", "comm", 0.20, ("comm/communication-bound",), "communication", multi=True,
           margins=(0.5, 1.0, 1.5, 2.0), change=_nvlinked),
    Family("comm-pcie", "comm_pcie", 0.15, ("comm/nvlink-unused",), "communication",
           ("comm/communication-bound", "input/transfer-bound"), multi=True, margins=(1.5, 2.0, 3.0),
           change=_nvlinked, whole=True),
    Family("thermal", "thermal", 0.08, ("clocks/thermal-throttle",), "throttle",
           ("util/straggler", "util/load-imbalance"), one_device=True),
    Family("power-limit", "power_limit", 0.15, ("clocks/power-limited",), "throttle", margins=(0.5, 1.5, 2.0, 3.0)),
    Family("brake", "brake", 0.05, ("clocks/power-brake",), "throttle", ("util/straggler", "util/load-imbalance"),
           one_device=True, margins=(1.5, 2.0, 4.0)),
    Family("low-clock", "low_clock", 0.20, ("clocks/low-unexplained",), "throttle",
           ("util/straggler", "util/load-imbalance"), one_device=True, multi=True, margins=(0.3, 1.5, 2.0)),
    Family("narrow-link", "narrow_link", 2.0, ("health/pcie-link-degraded",), "", one_device=True,
           margins=(2.0, 4.0), size=lambda base, margin: margin),
    Family("replays", "replays", 8.0, ("health/pcie-link-degraded",), "", one_device=True, margins=(0.4, 1.5, 3.0)),
    Family("ecc", "ecc", 1.0, ("health/ecc",), "", one_device=True, margins=(1.5, 3.0)),
    Family("nvlink-errors", "nvlink_errors", 0.05, ("health/nvlink-errors",), "", one_device=True,
           margins=(1.5, 3.0), change=_nvlinked),
    Family("xid", "xid", 79.0, ("health/xid",), "", one_device=True, margins=(1.5,), size=lambda base, _: base),
    Family("never-started", "never_started", 1.0, ("util/allocated-idle",), "idle", ("util/slow-start", "util/hung"),
           margins=(1.5,), whole=True),
    Family("idle-tail", "idle_tail", 900.0, ("util/allocated-idle",), "tail", margins=(0.4, 1.5, 2.0)),
    Family("unused", "unused", 1.0, ("util/allocated-idle",), "idle", ("util/load-imbalance", "util/straggler"),
           one_device=True, multi=True, margins=(1.5,), whole=True),
    Family("hung", "hung", 600.0, ("util/hung",), "hung", ("comm/communication-bound", "util/low-tensor-use"),
           multi=True, margins=(1.5, 3.0), size=lambda base, margin: base * margin),
    Family("slow-start", "slow_start", 600.0, ("util/slow-start",), "startup", margins=(0.4, 1.5, 2.0)),
    Family("small-batch", "none", 1.0, ("util/batch-can-grow",), "", ("util/launch-bound",), margins=(1.5,),
           change=_with(compute=(0.33, 0.97, 0.16, 0.2, 0.04), memory=0.28, power=0.45, link_load=0.02)),
    Family("memory-limited", "none", 1.0, ("util/memory-limited",), "", margins=(1.5,),
           change=_with(compute=(0.33, 0.97, 0.16, 0.2, 0.04), memory=0.88, power=0.45, link_load=0.02)),
    Family("low-sm", "none", 1.0, ("util/low-sm-activity",), "", ("util/batch-can-grow", "util/launch-bound"),
           margins=(1.5,), change=_with(compute=(0.24, 0.96, 0.10, 0.12, 0.04), memory=0.66, power=0.4, link_load=0.02)),
    Family("launch", "launch", 0.25, ("util/launch-bound",), "host", (STALL, "util/batch-can-grow"), margins=(0.4, 1.5, 2.0),
           change=_with(step=0.2, compute=(0.4, 0.97, 0.1, 0.2, 0.05), memory=0.62, link_load=0.01, comm=0.0), whole=True),
    Family("low-tensor", "none", 1.0, ("util/low-tensor-use",), "", margins=(1.5,),
           change=_with(compute=(0.86, 0.99, 0.008, 0.33, 0.42))),
    Family("bandwidth", "none", 1.0, ("util/memory-bandwidth-bound",), "", margins=(1.5,),
           change=_with(compute=(0.83, 0.99, 0.12, 0.74, 0.08))),
    Family("straggler", "straggler", 0.18, ("util/straggler",), "straggler", ("util/load-imbalance",),
           one_device=True, multi=True),
    Family("imbalance", "imbalance", 0.25, ("util/load-imbalance",), "straggler", ("util/straggler",), multi=True,
           margins=(0.4, 1.5, 2.0)),
)  # fmt: skip


def faulty(style: Style) -> Iterator[Scenario]:
    """Every family at every margin on some of the style's workloads."""
    for number, family in enumerate(FAULTS):
        for margin in family.margins:
            for seed in style.seeds:
                yield _scenario(style, family, number, margin, seed)


def _scenario(style: Style, family: Family, number: int, margin: float, seed: int) -> Scenario:
    choices = style.multi if family.multi else style.workloads
    pick = number + seed + int(10 * margin)
    work = family.change(choices[pick % len(choices)])
    start, end = (0.0, 1.0) if family.whole else style.onsets[pick % len(style.onsets)]
    if family.fault in ("hung",):
        start = 1 - family.size(family.base, margin) / (work.hours * 3600 - 220)
    faults: tuple[Fault, ...] = ()
    if family.fault != "none":
        devices = _devices(family, work, seed)
        faults = (Fault(family.fault, family.size(family.base, margin), start, end, devices),)
    expected = (Expectation(family.rules, family.cause, margin),)
    name = f"{style.name}/{family.name}/{margin:g}/{seed}"
    return Scenario(name, family.name, seed, work, faults, expected, (*SYMPTOMS, *family.allowed))


def _devices(family: Family, work: Workload, seed: int) -> tuple[int, ...]:
    total = work.gpus * work.nodes
    if family.one_device:
        return (seed % total,)
    if family.fault == "imbalance":
        return tuple(range(max(1, total // 2)))
    return ()


PAIRS = (
    ("cpu-gappy", "checkpoint"), ("disk-gappy", "thermal"), ("cpu-steady", "straggler"), ("comm", "checkpoint"),
    ("transfer", "idle-tail"), ("disk-steady", "slow-start"), ("cpu-gappy", "leak"), ("thermal", "checkpoint"),
    ("straggler", "checkpoint"), ("cpu-gappy", "unused"), ("comm", "idle-tail"), ("power-limit", "disk-gappy"),
)  # fmt: skip


def paired(style: Style) -> Iterator[Scenario]:
    """Two faults at once, both at twice their base."""
    families = {family.name: family for family in FAULTS}
    for number, (one, two) in enumerate(PAIRS):
        for seed in style.seeds:
            a = _scenario(style, families[one], number, 2.0, seed)
            b = _scenario(style, families[two], number, 2.0, seed)
            work = b.workload if families[two].multi or two == "leak" else a.workload
            work = style.multi[(number + seed) % len(style.multi)] if "unused" in (one, two) else work
            devices = [
                replace(f, devices=tuple(d % (work.gpus * work.nodes) for d in f.devices)) for f in b.faults
            ]
            name = f"{style.name}/{one}+{two}/{seed}"
            allowed = tuple({*a.allowed, *b.allowed})
            yield Scenario(
                name, f"{one}+{two}", seed, work, (*a.faults, *devices), a.expected + b.expected, allowed
            )


Healthy = tuple[str, Workload, dict[str, object]]


def healthy(style: Style, hours: float) -> Iterator[Scenario]:
    """Look-alikes that must stay silent, long enough to count false alarms."""
    for name, work, more in _lookalikes(hours):
        for seed in style.healthy_seeds:
            allowed: Sequence[str] = more.get("allowed", ())  # type: ignore[assignment]
            yield Scenario(
                f"{style.name}/healthy-{name}/{seed}", f"healthy-{name}", seed, work,
                more.get("faults", ()), (), tuple(allowed), more.get("tags", ()),  # type: ignore[arg-type]
                str(more.get("kind", "training")), str(more.get("sampling", "normal")),
            )  # fmt: skip


def _lookalikes(hours: float) -> list[Healthy]:
    base = Workload(hours=hours, gpus=8)
    one = replace(base, gpus=1)
    return [
        ("plain", base, {}),
        ("single", one, {}),
        ("evaluation", replace(base, eval_every=900), {}),
        ("checkpoints", replace(base, checkpoint_every=600, checkpoint_length=5), {}),
        ("compile", replace(base, warmup=480, warmup_kind="compile"), {}),
        ("curriculum", replace(base, memory=0.5), {"faults": (Fault("curriculum", 0.3, 0.05),)}),
        ("variable-lengths", replace(base, memory=0.55, step_spread=0.15), {"kind": "variable_lengths"}),
        ("bubbles", base, {"faults": (Fault("bubble", 0.12, 0.0),)}),
        ("experts", base, {"faults": (Fault("moving_straggler", 0.05, 0.0),)}),
        ("preallocate", replace(base, memory=0.9, warmup_kind="preallocate"), {}),
        ("notebook", replace(one, workers=0), {"kind": "notebook", "tags": ("interactive",), "allowed": ("energy/waste",)}),
        ("notebook-untagged", replace(one, workers=0), {"kind": "notebook", "allowed": ("util/allocated-idle", "energy/waste")}),
        ("inference", replace(base, memory=0.88, workers=0, comm=0), {"kind": "inference", "tags": ("inference",), "allowed": ("energy/waste",)}),
        ("inference-untagged", replace(base, memory=0.88, workers=0, comm=0), {"kind": "inference", "allowed": ("energy/waste",)}),
        ("inference-bare", replace(one, memory=0.88, workers=0, comm=0, generation=BARE, host_data=False), {"kind": "inference", "allowed": ("energy/waste",)}),
        ("power-capped", replace(base, power=0.97, compute=(0.95, 1.0, 0.72, 0.5, 0.03)), {}),
        ("page-cache", base, {"kind": "page_cache"}),
        ("gc", base, {"faults": (Fault("gc", 0.01, 0.0),)}),
        ("mig", replace(one, generation=MIG), {}),
        ("mixed-models", replace(base, second_generation=A100_DCGM), {}),
        ("shared", replace(one, memory=0.45), {"kind": "shared"}),
        ("short", replace(base, hours=0.08, warmup=40, checkpoint_every=0), {}),
        ("gaps", base, {"sampling": "gaps", "allowed": ("data/quality",)}),
        ("paused", replace(base, generation=A100_DCGM), {"sampling": "paused", "allowed": ("data/quality",)}),
        ("slow-sampling", base, {"sampling": "slow"}),
        ("jitter", base, {"sampling": "jitter", "allowed": ("data/quality",)}),
        ("bare", replace(base, generation=BARE, host_data=False), {}),
        ("plain-a100", replace(base, generation=A100_PLAIN), {}),
        ("v100", replace(base, generation=V100), {}),
        ("l40s", replace(base, generation=L40S, step=0.5), {}),
        ("two-nodes", replace(base, gpus=4, nodes=2, comm=0.09), {}),
        ("full-memory", replace(base, memory=0.93), {}),
        ("short-steps", replace(base, step=0.25), {}),
        ("long-steps", replace(base, step=9.0), {}),
        ("busy-loader", replace(base, worker_load=0.72), {}),
        ("no-loader", replace(base, workers=0), {}),
        ("staging", replace(base, startup=400), {}),
        ("hook", replace(base, hook=True), {}),
    ]  # fmt: skip
