"""The one sentence a report begins with."""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.message import Message
from gpudiag.rules.coverage import LEAST_RATIO, LEAST_SAMPLES, CoverageFold
from gpudiag.rules.model import Bucket, Finding

CAUSE_WORDS = {
    "before_start": "waiting for the job to start",
    "startup": "starting up",
    "warmup": "warming up",
    "input_cpu": "a data loader that is short of CPU",
    "input_disk": "a data loader that waits for storage",
    "input_other": "waiting for input",
    "transfer": "copies from host to GPU",
    "checkpoint": "writing checkpoints",
    "communication": "communication between GPUs",
    "straggler": "waiting for a slower GPU",
    "throttle": "lowered clocks",
    "allocator": "the memory allocator",
    "host": "the main process on the CPU",
    "hung": "hanging",
    "idle": "idle GPUs",
    "tail": "holding GPUs after the work had ended",
}
PRODUCTIVE = frozenset(("train", "eval"))
_NEVER_NAMED = (*PRODUCTIVE, "unattributed", "not_measured")
_WORTH_NAMING = 0.02


def verdict(
    coverage: CoverageFold, buckets: Sequence[Bucket], findings: Sequence[Finding], serving: bool
) -> str:
    """How much of the allocation was useful and what cost most; or why nothing can be said."""
    withheld = _withheld(coverage)
    if withheld:
        return withheld
    total = sum(bucket.gpu_hours for bucket in buckets)
    useful = sum(bucket.ratio for bucket in buckets if bucket.cause in PRODUCTIVE)
    if serving:
        return Message(
            "The job served requests: GPUs were busy {useful} of {time}; gaps between requests are no fault.",
            useful=f"{useful * 100:.0f} %",
            time=_gpu_time(total, total),
        )
    head = Message(
        "{useful} of {time} did useful work", useful=f"{useful * 100:.0f} %", time=_gpu_time(total, total)
    )
    alarm = _alarm(findings)
    if alarm:
        return Message("{head}; {worst}. {alarm}", head=head, worst=_worst(buckets, total), alarm=alarm)
    return Message("{head}; {worst}.", head=head, worst=_worst(buckets, total))


def _withheld(coverage: CoverageFold) -> str:
    if coverage.enough:
        return ""
    ratio = coverage.measured / max(1, coverage.expected)
    if ratio < LEAST_RATIO:
        return Message(
            "No verdict: only {ratio} of the allocation was measured, at least {least} is needed.",
            ratio=f"{ratio * 100:.0f} %",
            least=f"{LEAST_RATIO * 100:.0f} %",
        )
    return Message(
        "No verdict: too few samples, {samples} of the {least} that are needed at least.",
        samples=str(coverage.samples),
        least=str(LEAST_SAMPLES),
    )


def _gpu_time(gpu_hours: float, whole: float) -> str:
    """In hours; in minutes where even the whole is less than one hour."""
    if whole < 1:
        return Message("{minutes} GPU-minutes", minutes=f"{gpu_hours * 60:.1f}")
    return Message("{hours} GPU-hours", hours=f"{gpu_hours:.{1 if gpu_hours >= 1 else 2}f}")


def _worst(buckets: Sequence[Bucket], total: float) -> str:
    named = [
        bucket for bucket in buckets if bucket.cause not in _NEVER_NAMED and bucket.ratio >= _WORTH_NAMING
    ]
    if not named:
        return Message("nothing cost more than a fiftieth of it")
    worst = max(named, key=lambda bucket: bucket.gpu_hours)
    return Message(
        "most was lost to {cause}: {time}, {ratio}",
        cause=CAUSE_WORDS[worst.cause],
        time=_gpu_time(worst.gpu_hours, total),
        ratio=f"{worst.ratio * 100:.0f} %",
    )


def _alarm(findings: Sequence[Finding]) -> str:
    """Trouble that costs no time yet is said as well."""
    urgent = [f for f in findings if f.severity == "critical" and not f.lost_gpu_hours and not f.explained_by]
    return urgent[0].summary if urgent else ""
