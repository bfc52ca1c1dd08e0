"""The simulated node as the agent meets it: collectors, a scheduler, and a clock that runs as fast as it is asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.sampler import RunningJob
from gpudiag.agent.simulation import gpus, host
from gpudiag.agent.simulation.course import plan
from gpudiag.agent.simulation.script import GPUS, Script
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import JOB_PREFIX, NODE, Floats, Frame, Source

NODE_NAME = "node01"
DEFAULT_SCRIPT = Script()
_MODEL = "NVIDIA H100 80GB HBM3"
_FROM_GPM = (
    "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio", "graphics_active_ratio",
    "fp32_active_ratio", "fp16_active_ratio",
)  # fmt: skip
_ORIGINS = {**dict.fromkeys(_FROM_GPM, "gpm"), "gpu_util_ratio": "nvml", "memory_util_ratio": "nvml"}


class SimulatedClock:
    """Time that moves only when somebody sleeps."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return (self._now_ms - self._start_ms) / 1000

    def boottime(self) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)


class Recording:
    """Arrays of (seconds, ...) that are handed out second by second."""

    def __init__(self, metrics: Mapping[str, Floats], start_ms: int) -> None:
        self.names = tuple(metrics)
        self._values = np.stack(tuple(metrics.values()), axis=-1)
        self._start_ms = start_ms

    def at(self, now_ms: int) -> Floats:
        """Values of the second; raises NothingToCollect outside of the recording."""
        index = (now_ms - self._start_ms) // 1000
        if not 0 <= index < len(self._values):
            raise NothingToCollect("the simulation is over")
        row: Floats = self._values[index]
        return row

    def frame(self, source: Source, now_ms: int, row: Floats, origins: Mapping[str, str]) -> Frame:
        """What was measured of one source; NaN is left out."""
        values = {
            name: value for name, value in zip(self.names, row.tolist(), strict=True) if not math.isnan(value)
        }
        return Frame(source, now_ms, values, origins)


class GpuCollector:
    """The eight GPUs."""

    name = "simulated_gpu"

    def __init__(self, recording: Recording, sources: Sequence[Source], memory: float) -> None:
        self._recording = recording
        self._sources = sources
        self._memory = memory
        self._announced = False

    def collect(self, now_ms: int) -> Iterable[Frame | Event | Device]:
        if not self._announced:
            self._announced = True
            yield from (
                _device(source, index, now_ms, self._memory) for index, source in enumerate(self._sources)
            )
        rows = self._recording.at(now_ms)
        for source, row in zip(self._sources, rows, strict=True):
            yield self._recording.frame(source, now_ms, row, _ORIGINS)

    def close(self) -> None:
        """Nothing to let go of."""


class HostCollector:
    """One source of the host: the node, or the job's processes."""

    def __init__(self, name: str, recording: Recording, source: Source) -> None:
        self.name = name
        self._recording = recording
        self._source = source

    def collect(self, now_ms: int) -> Iterable[Frame | Event | Device]:
        frame = self._recording.frame(self._source, now_ms, self._recording.at(now_ms), {})
        if not frame.values:
            raise NothingToCollect("no job runs")
        yield frame

    def close(self) -> None:
        """Nothing to let go of."""


class SimulatedScheduler:
    """Says when the job starts and ends, as a scheduler's hooks do."""

    def __init__(self, job: Job, end_ms: int, state: str, exit_code: int, sources: Sequence[Source]) -> None:
        self._pending: Job | None = job
        self._ended = Job(
            job.key,
            job.id,
            job.start_ms,
            end_ms,
            job.cluster,
            job.raw_id,
            job.name,
            job.user,
            state,
            exit_code,
        )
        self._end_ms = end_ms
        self._sources = sources
        self.running: tuple[RunningJob, ...] = ()

    def reconcile(
        self, now_ms: int, devices: Mapping[Source, Device]
    ) -> tuple[Sequence[Job], Sequence[Allocation], Sequence[Event]]:
        """The job when it starts, and again when it ends."""
        if self._pending is not None and now_ms >= self._pending.start_ms:
            job, self._pending = self._pending, None
            allocations = self._allocations(None)
            self.running = (RunningJob(job, allocations),)
            return (job,), allocations, ()
        if self.running and now_ms >= self._end_ms:
            self.running = ()
            return (self._ended,), self._allocations(self._end_ms), ()
        return (), (), ()

    def _allocations(self, end_ms: int | None) -> tuple[Allocation, ...]:
        job = self._ended
        return tuple(Allocation(job.key, source, job.start_ms, end_ms, "hook") for source in self._sources)


class SimulatedNode:
    """Everything the sampler needs to live through the script, from `start_ms` (UNIX milliseconds) on."""

    def __init__(self, start_ms: int, script: Script = DEFAULT_SCRIPT, job_id: str = "42") -> None:
        rng = np.random.default_rng(script.seed)
        course = plan(script, rng)
        self.script = script
        self.clock = SimulatedClock(start_ms)
        self.sources = tuple(Source(NODE_NAME, _uuid(index)) for index in range(GPUS))
        job_start = start_ms + script.idle_before * 1000
        self.job = Job(
            f"local/{job_id}/{job_start // 1000}", job_id, job_start,
            raw_id=job_id, name="sft-7b", user="ana", state="running",
        )  # fmt: skip
        self.scheduler = SimulatedScheduler(
            self.job, job_start + script.length * 1000, "failed", 1, self.sources
        )
        job_source = Source(NODE_NAME, JOB_PREFIX + self.job.key)
        self.collectors = (
            GpuCollector(
                Recording(gpus.simulate(script, course, rng), start_ms), self.sources, script.gpu_memory
            ),
            HostCollector(
                "simulated_host",
                Recording(host.simulate_node(script, course, rng), start_ms),
                Source(NODE_NAME, NODE),
            ),
            HostCollector(
                "simulated_job", Recording(host.simulate_job(script, course, rng), start_ms), job_source
            ),
        )


def _uuid(index: int) -> str:
    return f"GPU-5f1a77c0-42d0-4e5e-9a00-0000000000{index:02d}"


def _device(source: Source, index: int, since_ms: int, memory: float) -> Device:
    return Device(
        source, since_ms, index=index, minor=index, pci_bus_id=f"00000000:{0x18 + 16 * index:02X}:00.0", model=_MODEL,
        driver="570.124.06", memory_total_bytes=memory, power_limit_watts=gpus.POWER_LIMIT,
        max_sm_clock_hertz=gpus.FULL_CLOCK, max_memory_clock_hertz=gpus.MEMORY_CLOCK, max_pcie_link_generation=5,
        max_pcie_link_width=16, nvlink_count=18, compute_capability="9.0",
    )  # fmt: skip
