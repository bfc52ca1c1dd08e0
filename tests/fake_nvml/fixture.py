"""`fake_nvml`: a driver of eight H200 that the test drives; `fake_nvml_build`: the library with symbols left out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nvml.control import FakeNvml, build
from fake_nvml.harness import Bench
from programs import missing


@pytest.fixture(scope="session")
def fake_nvml_build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile the library once per set of missing symbols."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        missing("no C compiler (cc or gcc)")
    built: dict[tuple[str, ...], Path] = {}

    def library(*without: str) -> Path:
        if without not in built:
            built[without] = build(tmp_path_factory.mktemp("nvml"), without)
        return built[without]

    return library


@pytest.fixture
def fake_nvml(fake_nvml_build: Callable[..., Path], tmp_path: Path) -> Iterator[FakeNvml]:
    """Eight H200 under load; see `fake_nvml.control.FakeNvml`."""
    fake = FakeNvml(fake_nvml_build(), tmp_path / "nvml-state")
    yield fake
    fake.close()


@pytest.fixture
def nvml_bench(fake_nvml: FakeNvml, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make the collector on the fake driver, over an empty host root; see `fake_nvml.harness.Bench`."""
    made: list[Bench] = []

    def bench(**options: Any) -> Bench:
        made.append(Bench(fake_nvml, tmp_path, **options))
        return made[-1]

    yield bench
    fake_nvml.set(None, "stop", 1)  # calls that hang return, so that every child can end
    for one in made:
        one.collector.close()
        for probe in one.probes:
            probe.kill()
            probe.wait()
