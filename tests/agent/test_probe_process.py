"""The child itself: what it loads, weighs and costs, and what it says while it hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml.control import FakeNvml
from fake_nvml.harness import Bench

pytestmark = pytest.mark.integration
MIB = 1024  # KiB
HEAVY = ("numpy", "sqlalchemy", "prometheus_client", "psutil", "yaml", "click")


def status(pid: int, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found.group(1))


def test_the_child_imports_nothing_heavy() -> None:
    code = "import sys, gpudiag.agent.probe.__main__; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    environ = {**os.environ, "PYTHONPATH": "src"}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert not set(HEAVY) & set(loaded.stdout.split())


def test_the_parent_does_not_load_the_binding() -> None:
    code = "import sys, gpudiag.agent.collectors.nvml; print('pynvml' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": "src"}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "False"


def test_the_child_stays_small_and_flat(fake_nvml: FakeNvml, nvml_bench: Callable[..., Bench]) -> None:
    bench = nvml_bench()
    bench.settled()
    for _ in range(100):
        bench.cycle()
    pid = bench.probes[0].pid
    before, descriptors = status(pid, "VmRSS"), len(os.listdir(f"/proc/{pid}/fd"))
    for turn in range(1500):
        fake_nvml.set(turn % 8, "power_mw", 400_000 + turn)
        if turn % 50 == 0:
            fake_nvml.slice(0, [(f"MIG-{turn}", 3), (f"MIG-{turn}-b", 4)] if turn % 100 else [])
        bench.cycle()
    assert before < 22 * MIB
    assert status(pid, "VmRSS") - before < 1 * MIB
    assert len(os.listdir(f"/proc/{pid}/fd")) == descriptors
    assert status(pid, "Threads") == 1


def test_signals_meant_for_the_agent_do_not_end_the_child(
    fake_nvml: FakeNvml, nvml_bench: Callable[..., Bench]
) -> None:
    bench = nvml_bench()
    bench.settled()
    for number in (1, 2, 15):
        os.kill(bench.probes[0].pid, number)
    assert len(bench.next().frames) == 8
    assert bench.collector.status.starts == 1


def test_a_hang_can_be_seen_from_outside(fake_nvml: FakeNvml, nvml_bench: Callable[..., Bench]) -> None:
    bench = nvml_bench()
    bench.settled()
    fake_nvml.fail(6, "nvmlDeviceGetTemperature", "hang")
    bench.cycle()
    assert bench.probes[0].operation() == ("nvmlDeviceGetTemperature", fake_nvml.uuid(6))
    stuck = bench.probes[0].stuck()
    assert (stuck.operation, stuck.device) == ("nvmlDeviceGetTemperature", fake_nvml.uuid(6))
    assert stuck.stat.startswith(f"{stuck.pid} (")
