"""Scenarios that are only measured on: other seeds, machines, step lengths, onsets and combinations.

Nothing in the rules may be changed because of a single result here; when a result has led to a change, the seeds are
changed too before the next measurement (last: 31 to 33, after two looks at 11 to 13).
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.scenarios import families
from bench.scenarios.families import Style
from bench.scenarios.spec import A100_DCGM, H100, L40S, Scenario, Workload

STYLE = Style(
    name="heldout",
    workloads=(
        Workload(hours=1.5, gpus=4, nodes=2, generation=H100, step=2.7, comm=0.07, eval_every=1100),
        Workload(
            hours=1.1,
            gpus=4,
            generation=L40S,
            step=0.9,
            workers=6,
            worker_load=0.5,
            cpus_per_gpu=7,
            power=0.8,
        ),
        Workload(
            hours=1.3, gpus=8, generation=H100, step=6.5, comm=0.06, compute=(0.78, 0.98, 0.44, 0.5, 0.05)
        ),
        Workload(hours=1.2, gpus=1, generation=H100, step=0.3, comm=0.0, eval_every=700, eval_length=90),
        Workload(
            hours=1.4,
            gpus=2,
            generation=A100_DCGM,
            step=1.2,
            warmup=260,
            warmup_kind="compile",
            checkpoint_every=900,
        ),
    ),
    onsets=((0.55, 0.95), (0.15, 0.8), (0.35, 1.0)),
    seeds=(31, 32, 33),
    healthy_seeds=(31, 32),
)


def scenarios() -> Iterator[Scenario]:
    """All held-out scenarios."""
    yield from families.faulty(STYLE)
    yield from families.paired(STYLE)
    yield from families.healthy(STYLE, hours=5.0)
