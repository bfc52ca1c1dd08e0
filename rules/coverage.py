"""How much of a job's allocation was measured; a verdict without that is a guess."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpudiag.rules.model import Coverage, Interval
from gpudiag.rules.samples import JobSamples
from gpudiag.storage.sample import Floats, Source

Mask = npt.NDArray[np.bool_]

LEAST_RATIO = 0.5
LEAST_SAMPLES = 10
_GAP_S = 30
_MOST_GAPS = 50
_FEW_SECONDS = LEAST_SAMPLES * 120


def allocated_seconds(samples: JobSamples, source: Source) -> Mask:
    """Seconds of the grid in which the device belonged to the job, [seconds]."""
    belongs = np.zeros(samples.seconds, bool)
    for allocation in samples.allocations:
        if allocation.source == source:
            end_ms = samples.end_ms if allocation.end_ms is None else allocation.end_ms
            first = max(0, (allocation.start_ms - samples.start_ms) // 1000)
            belongs[first : max(0, -((samples.start_ms - end_ms) // 1000))] = True
    return belongs


@dataclass
class CoverageFold:
    """Gathers the coverage of a job, device by device."""

    expected: int = 0
    measured: int = 0
    allocated_devices: int = 0
    measured_devices: int = 0
    samples: int = 0
    gaps: list[tuple[Source, Interval]] = field(default_factory=list)

    def add(self, job: JobSamples, source: Source, headline: str, active: Floats, allocated: Mask) -> float:
        """Coverage 0..1 of one device, whose headline metric is `active`."""
        seen = allocated & ~np.isnan(active)
        count = int(seen.sum())
        self.expected += int(allocated.sum())
        self.measured += count
        self.allocated_devices += 1
        self.measured_devices += count > 0
        self.samples = max(self.samples, _count_samples(job, source, headline, count))
        self._note_gaps(source, allocated & ~seen, job.start_ms)
        return count / max(1, int(allocated.sum()))

    def add_all(self, other: CoverageFold) -> None:
        """Add the devices that another fold has seen."""
        self.expected += other.expected
        self.measured += other.measured
        self.allocated_devices += other.allocated_devices
        self.measured_devices += other.measured_devices
        self.samples = max(self.samples, other.samples)
        self.gaps = [*self.gaps, *other.gaps][:_MOST_GAPS]

    def _note_gaps(self, source: Source, missing: Mask, start_ms: int) -> None:
        edges = np.flatnonzero(np.diff(np.concatenate(([0], missing.view(np.int8), [0]))))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if last - first >= _GAP_S and len(self.gaps) < _MOST_GAPS:
                self.gaps.append((source, Interval(start_ms + first * 1000, start_ms + last * 1000)))

    def result(self, job: JobSamples) -> Coverage:
        damaged = [(s, Interval(a, b)) for s, stretches in job.damaged.items() for a, b in stretches]
        ratio = self.measured / self.expected if self.expected else 0.0
        told = job.job.meta.get("gpus")  # by the scheduler, for all nodes: some may have no agent
        allocated = max(self.allocated_devices, told if isinstance(told, int) else 0)
        return Coverage(ratio, allocated, self.measured_devices, tuple(self.gaps), tuple(damaged))

    @property
    def enough(self) -> bool:
        """Whether a verdict may rest on this."""
        return (
            self.expected > 0
            and self.measured >= LEAST_RATIO * self.expected
            and self.samples >= LEAST_SAMPLES
        )


def _count_samples(job: JobSamples, source: Source, headline: str, seconds: int) -> int:
    """Samples taken; looked up only where so little was measured that it may be under the limit."""
    if not headline or seconds > _FEW_SECONDS:
        return seconds
    block = job.reader.read(source, job.start_ms, job.end_ms, [headline])
    column = block.columns.get(headline)
    return 0 if column is None else int((~np.isnan(column)).sum())
