"""Scenarios to develop the rules on."""

from __future__ import annotations

from collections.abc import Iterator

from bench.scenarios import families
from bench.scenarios.families import Style
from bench.scenarios.spec import A100_DCGM, H100, Scenario, Workload

STYLE = Style(
    name="development",
    workloads=(
        Workload(hours=1.2, gpus=4, generation=H100, step=1.6),
        Workload(hours=1.2, gpus=8, generation=A100_DCGM, step=0.4),
        Workload(hours=1.2, gpus=2, generation=H100, step=4.0, comm=0.08),
        Workload(hours=1.2, gpus=1, generation=A100_DCGM, step=0.8, comm=0.0),
    ),
    onsets=((0.3, 1.0), (0.0, 1.0), (0.45, 1.0)),
    seeds=(1, 2),
    healthy_seeds=(1,),
)


def scenarios() -> Iterator[Scenario]:
    """All development scenarios."""
    yield from families.faulty(STYLE)
    yield from families.paired(STYLE)
    yield from families.healthy(STYLE, hours=4.0)
