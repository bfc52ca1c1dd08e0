"""What is measured side by side on the same fake driver: our agent, its peers, and the least that any reader costs."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_process import AgentProcess
from bench.agent.usage import children, usage
from fake_nvml.control import FakeNvml

WARM_SECONDS = 12.0
SCRAPE_EVERY = 15.0

BARE_LOOP = """
import sys, time
import pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
calls = [n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetMemoryInfo, n.nvmlDeviceGetPowerUsage,
         n.nvmlDeviceGetTotalEnergyConsumption, n.nvmlDeviceGetEnforcedPowerLimit,
         n.nvmlDeviceGetCurrPcieLinkGeneration, n.nvmlDeviceGetCurrPcieLinkWidth, n.nvmlDeviceGetPcieReplayCounter,
         n.nvmlDeviceGetRemappedRows, n.nvmlDeviceGetPerformanceState, n.nvmlDeviceGetComputeRunningProcesses]
clocks = [n.NVML_CLOCK_SM, n.NVML_CLOCK_MEM, n.NVML_CLOCK_GRAPHICS]
while True:
    for h in handles:
        for call in calls:
            call(h)
        for clock in clocks:
            n.nvmlDeviceGetClockInfo(h, clock)
        n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)
        for counter in (0, 1):
            n.nvmlDeviceGetTotalEccErrors(h, counter, n.NVML_VOLATILE_ECC)
    time.sleep(1.0)
"""


@dataclass(frozen=True)
class Measured:
    """Per second of wall time: share of one core and calls into the driver; resident bytes at the end."""

    name: str
    cpu_ratio: float
    rss_bytes: int
    calls_per_second: float
    scrape_seconds: float | None = None
    note: str = ""


def agent(fake: FakeNvml, folder: Path, seconds: float, name: str, settings: dict[str, str]) -> Measured:
    """Our agent as its unit starts it, parent and probe together, scraped every 15 s."""
    judges = "" if settings.get("rules.enabled") == "false" else "judges, "
    note = f"samples, stores, {judges}attributes jobs, serves"
    process = AgentProcess(folder, {**fake.environ, **unit_environ()}, settings)
    try:
        process.wait_for(lambda: len(process.values("gpudiag_gpu_power_watts")) == 8)
        assert process.command("job", "start", "--job", "42", "--devices", "all", "--strict").returncode == 0
        process.wait_for(lambda: len(process.values("gpudiag_job_info")) == 8)
        process.wait_for(lambda: bool(process.values("gpudiag_job_processes")))
        url = process.address + "/metrics"
        pids = [process.pid, *children(process.pid)]
        return _measure(name, pids, fake, seconds, url, note)
    finally:
        process.stop()


def unit_environ() -> dict[str, str]:
    """What the systemd unit puts into the agent's environment."""
    lines = (Path(__file__).parents[2] / "systemd/gpudiag-agent.service").read_text().splitlines()
    (line,) = [line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")]
    return dict(part.split("=", 1) for part in line.split())


def nvitop(fake: FakeNvml, binary: Path, port: int, seconds: float) -> Measured:
    """nvitop-exporter at the same interval, scraped as often."""
    command = [str(binary), "--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
    with subprocess.Popen(command, env={**os.environ, **fake.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}/metrics"
            _until_answers(url)
            return _measure("nvitop-exporter", [process.pid], fake, seconds, url, "exports only")
        finally:
            process.terminate()


def bare_loop(fake: FakeNvml, seconds: float) -> Measured:
    """nvidia-ml-py alone: 17 calls per GPU and second, nothing kept."""
    with subprocess.Popen([sys.executable, "-c", BARE_LOOP], env={**os.environ, **fake.environ}) as process:
        try:
            return _measure("bare nvidia-ml-py loop", [process.pid], fake, seconds, None, "keeps nothing")
        finally:
            process.terminate()


def gpustat(fake: FakeNvml, binary: Path, seconds: float) -> Measured:
    """`gpustat --json` started once per second, as scripts do."""
    environ, runs = {**os.environ, **fake.environ}, 0
    calls, before = fake.calls(), resource.getrusage(resource.RUSAGE_CHILDREN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.monotonic()
        subprocess.run([str(binary), "--json"], env=environ, stdout=subprocess.DEVNULL, check=True)
        runs += 1
        time.sleep(max(1.0 - (time.monotonic() - started), 0.0))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    note = "a process per second"
    return Measured(
        "gpustat --json in a loop",
        cpu / runs,
        after.ru_maxrss * 1024,
        (fake.calls() - calls) / runs,
        None,
        note,
    )


def _measure(
    name: str, pids: list[int], fake: FakeNvml, seconds: float, url: str | None, note: str
) -> Measured:
    time.sleep(WARM_SECONDS)
    calls, before, started = fake.calls(), usage(pids), time.monotonic()
    scrapes: list[float] = []
    while (left := started + seconds - time.monotonic()) > 0:
        time.sleep(min(SCRAPE_EVERY, left))
        if url is not None:
            scrapes.append(_timed(lambda: urllib.request.urlopen(url, timeout=30).read()))
    wall = time.monotonic() - started
    after = usage(pids)
    cpu = (after.cpu_seconds - before.cpu_seconds) / wall
    scrape = statistics.median(scrapes) if scrapes else None
    return Measured(name, cpu, after.rss_bytes, (fake.calls() - calls) / wall, scrape, note)


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _until_answers(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).read()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return
