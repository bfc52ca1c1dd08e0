"""The sentence a report begins with: its figures agree with the waterfall and the list of jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from gpudiag.rules.coverage import CoverageFold
from gpudiag.rules.model import Bucket
from gpudiag.rules.verdict import verdict

ENOUGH = cast(CoverageFold, SimpleNamespace(enough=True))


def said(**gpu_hours: float) -> str:
    whole = sum(gpu_hours.values())
    buckets = [Bucket(cause, hours, hours / whole) for cause, hours in gpu_hours.items()]
    return verdict(ENOUGH, buckets, (), serving=False)


def test_a_job_of_less_than_a_gpu_hour_is_told_in_minutes() -> None:
    assert said(train=0.01, warmup=0.02) == (
        "33 % of 1.8 GPU-minutes did useful work; most was lost to warming up: 1.2 GPU-minutes, 67 %."
    )


def test_evaluation_is_work_and_never_the_largest_loss() -> None:
    assert said(train=5.0, eval=4.0, checkpoint=1.0) == (
        "90 % of 10.0 GPU-hours did useful work; most was lost to writing checkpoints: 1.0 GPU-hours, 10 %."
    )
