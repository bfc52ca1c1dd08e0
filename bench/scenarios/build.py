"""From a scenario to a recording: samples as a collector would have stored them, and what is true about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from bench.scenarios import health, memory, services
from bench.scenarios.gpu import ticks as gpu_ticks
from bench.scenarios.host import Busy, HostModel
from bench.scenarios.plan import Plan, plan, window
from bench.scenarios.sensors import PROFILED, Sensors, by_second, lose
from bench.scenarios.spec import Generation, Scenario
from bench.scenarios.steps import STATES, TICKS, Floats, durations, fractions
from bench.scenarios.truth import Truth, true_causes, unmeasured

from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Block, Source

EPOCH_MS = 1_760_000_000_000


@dataclass
class Recording:
    """One stored job and its ground truth."""

    scenario: Scenario
    job: Job
    devices: dict[Source, Device]
    allocations: list[Allocation]
    events: list[Event]
    blocks: dict[Source, Block] = field(default_factory=dict)
    truth: Truth = field(default_factory=Truth)

    @property
    def gpu_hours(self) -> float:
        end_ms = self.job.end_ms or 0
        return len(self.devices) * (end_ms - self.job.start_ms) / 3.6e6


def build(scenario: Scenario) -> Recording:
    """Simulate the job; the same scenario and seed give the same recording."""
    rng = np.random.default_rng([scenario.seed, *scenario.name.encode()])
    course = plan(scenario, rng)
    recording = _frame(scenario, course, rng)
    sources = list(recording.devices)
    shares, course = _shares(scenario, course, rng)
    work = scenario.workload
    for node in range(work.nodes):
        mine = range(node * work.gpus, (node + 1) * work.gpus)
        busy = np.zeros((len(STATES), course.seconds))
        for gpu in mine:
            own = _own(scenario, shares, gpu)
            busy += _measure_gpu(recording, course, gpu, sources[gpu], own, rng) / work.gpus
        if work.host_data:
            _measure_host(recording, course, sources[mine[0]].node, busy, rng)
    recording.events += health.events(scenario, course, sources, recording.job.start_ms)
    recording.truth.note(scenario, course)
    return recording


def _frame(scenario: Scenario, course: Plan, rng: np.random.Generator) -> Recording:
    start_ms = EPOCH_MS + int(rng.integers(0, 86_400_000))
    end_ms = start_ms + course.seconds * 1000
    killed = any(fault.kind in ("leak", "host_leak") for fault in scenario.faults)
    key = f"bench/{scenario.name}/{start_ms // 1000}"
    job = Job(
        key, scenario.name, start_ms, end_ms, state="oom" if killed else "completed", tags=scenario.tags
    )
    devices = {}
    for gpu in range(scenario.workload.gpus * scenario.workload.nodes):
        source = Source(f"node{gpu // scenario.workload.gpus}", f"GPU-{scenario.seed:08x}-{gpu:04d}")
        devices[source] = _device(
            source, generation_of(scenario, gpu), gpu % scenario.workload.gpus, start_ms
        )
    allocations = [Allocation(key, source, start_ms, end_ms, "cgroup") for source in devices]
    return Recording(scenario, job, devices, allocations, [])


def generation_of(scenario: Scenario, gpu: int) -> Generation:
    """The model of a GPU; in a mixed job the upper half has the second one."""
    work = scenario.workload
    upper = gpu % work.gpus >= work.gpus // 2
    return work.second_generation if work.second_generation and upper else work.generation


def _device(source: Source, kind: Generation, index: int, since_ms: int) -> Device:
    return Device(
        source, since_ms, index, index, f"0000:{index + 1:02x}:00.0", kind.model, "570.86",
        memory_total_bytes=kind.memory_bytes, power_limit_watts=kind.power_limit, max_sm_clock_hertz=kind.clock_hertz,
        max_pcie_link_generation=kind.link_generation, max_pcie_link_width=16, nvlink_count=kind.nvlinks,
    )  # fmt: skip


def _shares(scenario: Scenario, course: Plan, rng: np.random.Generator) -> tuple[list[Floats], Plan]:
    """Per GPU the share of each tick in each state, [states, ticks]; and the plan with the stops as they came."""
    gpus = scenario.workload.gpus * scenario.workload.nodes
    if scenario.kind in ("inference", "notebook"):
        return services.activity(scenario.kind, course, gpus, rng), course
    if any(fault.kind == "never_started" for fault in scenario.faults):
        return [np.zeros((len(STATES), course.seconds * TICKS)) for _ in range(gpus)], course
    work = scenario.workload
    table, starts, stops = durations(
        course.train, course.end, work.step, work.step_spread, course.pace, course.stops, rng
    )
    begin = float(starts[0]) if len(starts) else course.train
    shares = [fractions(table, gpu, begin, course.seconds) for gpu in range(gpus)]
    for own in shares:
        own[:, int(course.end * TICKS) :] = 0.0
        if any(fault.kind == "hung" for fault in scenario.faults):
            own[STATES.index("wait"), int(course.end * TICKS) : (course.seconds - 2) * TICKS] = 1.0
    return shares, replace(course, stops=stops)


def _own(scenario: Scenario, shares: list[Floats], gpu: int) -> Floats:
    unused = any(fault.kind == "unused" and gpu in fault.devices for fault in scenario.faults)
    return np.zeros_like(shares[gpu]) if unused else shares[gpu]


def _measure_gpu(
    recording: Recording, course: Plan, gpu: int, source: Source, shares: Floats, rng: np.random.Generator
) -> Floats:
    """Store what is seen and what is true of one GPU; its state shares by second, [states, seconds]."""
    scenario, kind = recording.scenario, generation_of(recording.scenario, gpu)
    ticks = gpu_ticks(scenario, course, kind, shares, rng)
    if scenario.faults and any(
        f.kind in ("never_started", "unused") and _hit(f, gpu) for f in scenario.faults
    ):
        ticks.signals[:] = 0.0
        ticks.signals[:] *= 0.0
    seconds = np.stack([by_second(row) for row in shares])
    used = memory.used_ratio(scenario, course, seconds[STATES.index("eval")], rng)
    if any(f.kind in ("unused", "never_started") and _hit(f, gpu) for f in scenario.faults):
        used = np.minimum(used, 0.004)
    if scenario.kind == "shared":
        t = np.arange(course.seconds)
        used = np.minimum(
            0.99, used + np.where((t > 0.4 * course.seconds) & (t < 0.8 * course.seconds), 0.2, 0.0)
        )
    columns = Sensors(scenario, course, kind, gpu, rng).read(ticks, used)
    _store(recording, source, columns, kind.profiling, rng)
    clock = course.clocks[gpu](np.arange(course.seconds, dtype=float))
    causes = true_causes(scenario, course, gpu, seconds, clock)
    if scenario.sampling != "slow":
        unmeasured(causes, _unseen(recording, source, kind))
    recording.truth.causes[source] = causes
    return seconds


def _unseen(recording: Recording, source: Source, kind: Generation) -> npt.NDArray[np.bool_]:
    """Seconds without the activity metric that this GPU has: single lost samples are bridged by their neighbours."""
    missing = np.isnan(
        recording.blocks[source].columns["sm_active_ratio" if kind.profiling else "gpu_util_ratio"]
    )
    alone = missing & ~np.roll(missing, 1) & ~np.roll(missing, -1)
    return np.asarray(missing & ~alone)


def _hit(fault: object, gpu: int) -> bool:
    devices = getattr(fault, "devices", ())
    return not devices or gpu in devices


def _measure_host(
    recording: Recording, course: Plan, node: str, busy: Floats, rng: np.random.Generator
) -> None:
    at = dict(zip(STATES, busy, strict=True))
    names = ("input", "checkpoint", "compute", "comm", "host", "launch", "eval")
    model = HostModel(recording.scenario, course, Busy(**{name: at[name] for name in names}), rng)
    _store(recording, Source(node, "node"), model.node(), "", rng)
    _store(recording, Source(node, f"job:{recording.job.key}"), model.job(), "", rng)


def _store(
    recording: Recording,
    source: Source,
    columns: Mapping[str, Floats],
    profiling: str,
    rng: np.random.Generator,
) -> None:
    seen = lose(dict(columns), recording.scenario, rng)
    seconds = len(next(iter(seen.values())))
    jitter = np.clip(rng.normal(0, 25, seconds), -200, 200).astype(np.int64)
    times = recording.job.start_ms + 500 + 1000 * np.arange(seconds, dtype=np.int64) + jitter
    if recording.scenario.sampling == "slow":
        times, seen = times[::5], {name: values[::5] for name, values in seen.items()}
    elif recording.scenario.sampling == "jitter":
        times = times + np.cumsum(rng.integers(0, 2, len(times)))
    origins = (
        {name: profiling if name in PROFILED else "nvml" for name in seen} if source.scope == "gpu" else {}
    )
    recording.blocks[source] = Block(source, times, seen, origins)


__all__ = ["Recording", "build", "window"]
