"""The script for a real GPU, run whole on the fake driver and a stand-in for PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml.control import FakeNvml

TESTS = Path(__file__).parents[1]
LINKS = (
    "nvlink_tx_rate_kib",
    "nvlink_rx_rate_kib",
    "pcie_tx_rate",
    "pcie_rx_rate",
    "pcie_tx_kbs",
    "pcie_rx_kbs",
)
SCRIPT = TESTS.parent / "bench/gpu/provoke.py"


def provoke(out: Path, fake: FakeNvml, *options: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(TESTS / "fake_torch"), str(TESTS)))
    environ = {**os.environ, **fake.environ, "PYTHONPATH": path}
    command = [sys.executable, str(SCRIPT), str(out), *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("provoke", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "provoke", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("expected", "found", "right"),
    [
        ((), {}, True),
        ((), {"energy/waste": "info"}, True),
        ((), {"energy/waste": "info", "util/hung": "warning"}, False),
        (("memory/fragmentation", "memory/allocator-thrash"), {"memory/allocator-thrash": "critical"}, True),
        (("memory/fragmentation",), {"util/hung": "warning"}, False),
        (("memory/fragmentation",), {}, False),
    ],
)
def test_a_healthy_run_must_be_silent_and_a_fault_be_named(
    script: Any, expected: tuple[str, ...], found: dict[str, str], right: bool
) -> None:
    assert script.is_right(script.Scenario("one", 1, expected), found) is right


@pytest.fixture
def one_gpu(fake_nvml: FakeNvml) -> FakeNvml:
    fake_nvml.set(None, "gpu_count", 1)
    for name in ("gpu_util", "memory_used", *LINKS):
        fake_nvml.set(0, name, 0)
    for metric in (1, 2, 20, 21, 60, 61):  # graphics, SM, PCIe and NVLink: one GPU that nobody uses yet
        fake_nvml.gpm(0, metric, 0.0)
    return fake_nvml


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_each_program_makes_the_fault_that_it_is_for(one_gpu: FakeNvml, tmp_path: Path) -> None:
    done = provoke(tmp_path / "out", one_gpu)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes: list[dict[str, Any]] = json.loads((tmp_path / "out/result.json").read_text())
    assert [(one["scenario"], one["right"]) for one in outcomes] == [
        ("healthy", True), ("loader_stall", True), ("leak", True), ("fragmentation", True),
    ]  # fmt: skip
    assert sum(one["seconds"] for one in outcomes) < 300
    assert max(path.stat().st_size for path in (tmp_path / "out").glob("*.csv")) < 400_000


def test_without_a_gpu_it_says_that_it_did_not_run(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == "not run: that interpreter has no PyTorch with a CUDA device\n"
    assert not (tmp_path / "out").exists()
