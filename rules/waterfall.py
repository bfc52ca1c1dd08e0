"""The waterfall: GPU-seconds of the allocation are 100 %, and every one of them is in exactly one bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpudiag.rules.model import CAUSES, Bucket, Interval
from gpudiag.rules.phase_machine import IDLE
from gpudiag.rules.phases import CODE, Codes
from gpudiag.rules.shortfall import CAUSE, Causes, Shortfall
from gpudiag.storage.sample import Floats

Mask = npt.NDArray[np.bool_]

IDLE_DEVICE_S = 600
_BUCKET_OF_PHASE = {
    "before_start": "before_start", "startup": "startup", "warmup": "warmup", "train": "train", "eval": "eval",
    "checkpoint": "checkpoint", "hung": "hung", "idle": "idle", "interactive": "train", "inference": "train",
    "restart": "startup", "tail": "tail", "not_measured": "not_measured",
}  # fmt: skip
_CAUSE_OF_CODE = np.zeros(len(CODE), np.int8)
for _phase, _bucket in _BUCKET_OF_PHASE.items():
    _CAUSE_OF_CODE[CODE[_phase]] = CAUSE[_bucket]


@dataclass(frozen=True)
class Claim:
    """A finding's word on a device: `cause` explains what is missing inside `intervals`."""

    cause: str
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class Ledger:
    """One device's allocation by the second: `cause` of the `share` (0..1) not trained, NaN outside it."""

    start_ms: int
    cause: Causes
    share: Floats

    def seconds(self) -> Floats:
        """GPU-seconds of each cause, in the order of `CAUSES`; they sum to the allocated seconds."""
        allocated = ~np.isnan(self.share)
        lost = np.bincount(self.cause[allocated], self.share[allocated], len(CAUSES)).astype(np.float64)
        lost[CAUSE["train"]] += allocated.sum() - lost.sum()
        return lost

    def lost_to(self, causes: Sequence[str], intervals: Sequence[Interval]) -> float:
        """GPU-seconds of these causes inside the intervals."""
        chosen = np.isin(self.cause, [CAUSE[cause] for cause in causes])
        chosen &= within(intervals, self.start_ms, len(self.cause))
        return float(np.nansum(np.where(chosen, self.share, 0.0)))


def within(intervals: Sequence[Interval], start_ms: int, seconds: int) -> Mask:
    """Seconds of the grid that lie inside any of the intervals, [seconds]."""
    inside = np.zeros(seconds, bool)
    for interval in intervals:
        first, last = (interval.start_ms - start_ms) // 1000, -((start_ms - interval.end_ms) // 1000)
        inside[max(0, first) : max(0, last)] = True
    return inside


def device_phases(codes: Codes, active: Floats) -> Codes:
    """The job's phases as they hold for one device: it may be unmeasured, or left idle while others work."""
    own = codes.copy()
    measured = ~np.isnan(active)
    working = np.isin(codes, [CODE[name] for name in ("train", "warmup", "eval", "checkpoint")])
    with np.errstate(invalid="ignore"):
        still = working & ~(active >= IDLE)
    for first, last in _runs(still):
        if last - first >= IDLE_DEVICE_S:
            own[first:last] = CODE["idle"]
    own[~measured] = CODE["not_measured"]
    return own


def ledger(
    start_ms: int, phases: Codes, missing: Shortfall, allocated: Mask, claims: Sequence[Claim] = ()
) -> Ledger:
    """Book each second of a device; what has no evidence of its own goes to a claim on it, else unattributed."""
    cause = _CAUSE_OF_CODE[phases]
    training = cause == CAUSE["train"]
    serving = np.isin(phases, [CODE["interactive"], CODE["inference"]])
    cause = np.where(training, missing.cause, cause)
    cause[serving] = CAUSE["idle"]
    open_ended = training & ~serving & (cause == CAUSE["unattributed"])
    for claim in claims:
        covered = open_ended & within(claim.intervals, start_ms, len(phases))
        cause[covered] = CAUSE[claim.cause]
        open_ended &= ~covered
    share = np.where(training, missing.share, 1.0)
    return Ledger(start_ms, cause.astype(np.int8), np.where(allocated, share, np.nan))


@dataclass
class Waterfall:
    """Adds up devices; `buckets` are in the order of `CAUSES`, those without time left out."""

    totals: Floats = field(default_factory=lambda: np.zeros(len(CAUSES)))

    def add(self, device: Ledger) -> None:
        self.totals = self.totals + device.seconds()

    def add_all(self, other: Waterfall) -> None:
        """Add the devices of another."""
        self.totals = self.totals + other.totals

    @property
    def total_gpu_hours(self) -> float:
        return float(self.totals.sum() / 3600)

    def buckets(self) -> tuple[Bucket, ...]:
        total = self.totals.sum()
        return tuple(
            Bucket(cause, float(seconds / 3600), float(seconds / total))
            for cause, seconds in zip(CAUSES, self.totals, strict=True)
            if seconds > 0
        )


def _runs(mask: Mask) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [(int(first), int(last)) for first, last in zip(edges[::2], edges[1::2], strict=True)]
