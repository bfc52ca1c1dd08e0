"""What a scenario is: a GPU generation, a workload, faults with onset and severity, and what they must lead to."""

from __future__ import annotations

from dataclasses import dataclass, field

GIB = 2**30


@dataclass(frozen=True)
class Generation:
    """A GPU model and what its driver can tell. `profiling` is the origin of SM activity and its kin, or ""."""

    model: str
    memory_bytes: float
    power_limit: float
    idle_watts: float
    clock_hertz: float
    link_generation: int
    nvlinks: int
    profiling: str
    pcie_snapshots: bool = False
    missing: frozenset[str] = frozenset()


H100 = Generation("NVIDIA H100 80GB HBM3", 80 * GIB, 700, 75, 1.98e9, 5, 18, "gpm")
A100_DCGM = Generation("NVIDIA A100-SXM4-80GB", 80 * GIB, 400, 55, 1.41e9, 4, 12, "dcgm")
A100_PLAIN = Generation("NVIDIA A100-SXM4-40GB", 40 * GIB, 400, 55, 1.41e9, 4, 12, "", True)
V100 = Generation("Tesla V100S-PCIE-32GB", 32 * GIB, 250, 35, 1.597e9, 3, 0, "", True)
L40S = Generation(
    "NVIDIA L40S", 45 * GIB, 350, 35, 2.52e9, 4, 0, "dcgm", missing=frozenset({"memory_temperature_celsius"})
)
BARE = Generation(
    "NVIDIA A10G", 23 * GIB, 300, 20, 1.71e9, 4, 0, "", True,
    missing=frozenset({
        "clock_event_reasons", "pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second", "energy_joules_total",
        "throttle_thermal_seconds_total", "throttle_power_seconds_total", "processes", "pcie_link_generation",
        "pcie_link_width", "ecc_corrected_total", "ecc_uncorrected_total", "temperature_celsius", "power_watts",
        "sm_clock_hertz", "memory_util_ratio", "pcie_replays_total",
    }),
)  # fmt: skip
MIG = Generation(
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40 * GIB, 400, 55, 1.41e9, 4, 0, "dcgm",
    missing=frozenset({"gpu_util_ratio", "memory_util_ratio"}),
)  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """A job without faults: lengths in seconds, shares of a step, levels while computing, and its host side.

    `comm` is exposed communication per step, `compute` levels are (SM, engine, tensor, DRAM, FP32).
    """

    hours: float = 1.0
    gpus: int = 4
    nodes: int = 1
    generation: Generation = H100
    second_generation: Generation | None = None
    step: float = 1.6
    step_spread: float = 0.04
    comm: float = 0.05
    h2d: float = 0.01
    optimiser: float = 0.06
    compute: tuple[float, float, float, float, float] = (0.87, 0.99, 0.52, 0.42, 0.06)
    power: float = 0.88
    memory: float = 0.68
    before: float = 25.0
    startup: float = 70.0
    warmup: float = 100.0
    warmup_kind: str = "staircase"
    tail: float = 4.0
    eval_every: float = 0.0
    eval_length: float = 45.0
    checkpoint_every: float = 1500.0
    checkpoint_length: float = 6.0
    workers: int = 8
    cpus_per_gpu: int = 12
    worker_load: float = 0.45
    link_load: float = 0.25
    host_memory: float = 0.45
    host_data: bool = True
    hook: bool = False


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: `size` in the fault's own unit, from `start` to `end` (shares of the job).

    `devices` are indices; empty means all.
    """

    kind: str
    size: float
    start: float = 0.3
    end: float = 1.0
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """Any of `rules` must fire; `cause` is the bucket it costs, "" when it costs no time.

    `margin` is the fault's size over the effect the reference calls worth a finding; below 1.5 it is not scored.
    """

    rules: tuple[str, ...]
    cause: str
    margin: float
    main: bool = True


@dataclass(frozen=True)
class Scenario:
    """A job with its faults, what must be found, and what may be found besides without being wrong."""

    name: str
    family: str
    seed: int
    workload: Workload = field(default_factory=Workload)
    faults: tuple[Fault, ...] = ()
    expected: tuple[Expectation, ...] = ()
    allowed: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    kind: str = "training"
    sampling: str = "normal"

    @property
    def healthy(self) -> bool:
        return not self.expected
