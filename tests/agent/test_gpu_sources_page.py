"""docs/gpu-sources.md says what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudiag.agent import origins
from gpudiag.agent.collectors import dcgm, dcgm_exporter, gpu_values
from gpudiag.agent.probe import dcgm as probe_dcgm
from gpudiag.agent.probe import keeper

PAGE = (Path(__file__).parents[2] / "docs/gpu-sources.md").read_text()
SOURCES = "".join(path.read_text() for path in (Path(__file__).parents[2] / "agent").rglob("*.py"))


def table(heading: str) -> list[list[str]]:
    """Rows of the table whose header starts with this."""
    body = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body.splitlines()[2:]]


def test_each_origin_is_explained() -> None:
    known = {dcgm.ORIGIN, dcgm_exporter.ORIGIN, gpu_values.GPM, gpu_values.NVML, gpu_values.SNAPSHOT}
    assert {row[0].strip("`") for row in table("origin")} == known
    assert known == set(origins.ELSE) == set(origins.INSIDE_SM)


def test_the_order_of_origins_is_the_one_that_is_used() -> None:
    inside, rest = table("metrics")
    assert re.findall(r"`([^`]+)`", inside[1]) == list(origins.INSIDE_SM)
    assert re.findall(r"`([^`]+)`", rest[1]) == list(origins.ELSE)
    for name in re.findall(r"`([^`]+)`", inside[0]):
        assert origins.rank(name, "dcgm") == 0
    assert origins.rank("power_watts", "nvml") == 0


@pytest.mark.parametrize("row", table("what happens"), ids=lambda row: row[0][:40])
def test_each_event_exists(row: list[str]) -> None:
    for kind in re.findall(r"`(\w+)`", row[1])[:1]:
        assert f'"{kind}"' in SOURCES


def test_times_and_places_are_the_ones_that_are_used() -> None:
    assert f"for {keeper.HANG_AFTER:.0f} s ({keeper.START_AFTER:.0f} s while" in PAGE
    assert f"every {dcgm_exporter.EVERY:.0f} s" in PAGE
    assert all(f"`{folder}`" in PAGE for folder in probe_dcgm.FOLDERS)
