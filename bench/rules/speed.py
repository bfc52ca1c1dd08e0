"""`python -m bench.rules.speed`: GPU-hours of stored samples judged per second of one core, on a healthy job."""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import numpy as np
from bench.report import day
from bench.storage import samples as stored

from gpudiag.rules.engine import judge
from gpudiag.rules.loader import builtin
from gpudiag.rules.memory import MemoryReader
from gpudiag.rules.model import PHASES
from gpudiag.rules.samples import JobSamples
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.open import open_reader
from gpudiag.storage.sample import Block, Source

START_MS = 1_700_000_000_000
BUDGET = 100
# level and spread of a healthy job's series
GPU = {
    "sm_active_ratio": (0.88, 0.05), "gpu_util_ratio": (0.98, 0.02), "tensor_active_ratio": (0.4, 0.05),
    "dram_active_ratio": (0.4, 0.05), "graphics_active_ratio": (0.97, 0.02), "fp32_active_ratio": (0.1, 0.02),
    "memory_used_bytes": (60e9, 3e8), "power_watts": (350, 20), "temperature_celsius": (60, 2), "sm_clock_hertz": (1.9e9, 2e7),
    "pcie_rx_bytes_per_second": (1e9, 2e8), "pcie_tx_bytes_per_second": (2e8, 5e7), "nvlink_rx_bytes_per_second": (3e10, 3e9),
    "nvlink_tx_bytes_per_second": (3e10, 3e9), "clock_event_reasons": (0, 0), "processes": (1, 0), "pcie_link_generation": (5, 0),
    "pcie_link_width": (16, 0), "ecc_uncorrected_total": (0, 0), "remap_pending": (0, 0), "remap_failed": (0, 0),
    "nvlink_errors_total": (0, 0), "pcie_replays_total": (0, 0), "remapped_rows_uncorrected_total": (0, 0),
}  # fmt: skip
NODE = {
    "pressure_io_some_ratio": (0.01, 0.01), "memory_available_bytes": (5e11, 1e9), "memory_total_bytes": (1e12, 0),
    "swap_in_bytes_per_second": (0, 0), "swap_out_bytes_per_second": (0, 0), "network_rx_bytes_per_second": (1e6, 1e5),
    "disk_read_bytes_per_second": (1e6, 1e5), "disk_write_bytes_per_second": (1e6, 1e5),
}  # fmt: skip
JOB = {
    "loader_cpu_ratio": (0.5, 0.1), "loader_workers": (16, 0), "job_cpu_busy_ratio": (0.5, 0.1), "job_cpus_allowed": (64, 0),
    "main_cpu_ratio": (0.8, 0.1), "job_memory_working_set_bytes": (1e11, 1e9), "job_memory_limit_bytes": (5e11, 0),
    "job_oom_kills_total": (0, 0), "job_pressure_io_some_ratio": (0.01, 0.01), "job_read_bytes_per_second": (1e8, 1e7),
    "job_write_bytes_per_second": (1e6, 1e5),
}  # fmt: skip


def healthy_job(gpus: int, hours: int) -> JobSamples:
    """Nothing wrong: noise around healthy levels, every second measured."""
    rng = np.random.default_rng(0)
    seconds = 3600 * hours
    job = Job("bench/1/0", "1", START_MS, START_MS + 1000 * seconds)
    times = START_MS + 200 + 1000 * np.arange(seconds, dtype=np.int64)
    own = [Source("n1", f"GPU-{k}") for k in range(gpus)]
    levels = dict.fromkeys(own, GPU) | {Source("n1", "node"): NODE, Source("n1", f"job:{job.key}"): JOB}
    blocks = {
        source: Block(source, times, {name: level + spread * rng.uniform(-1, 1, seconds) for name, (level, spread) in table.items()})
        for source, table in levels.items()
    }  # fmt: skip
    devices = [
        Device(gpu, 0, model="H100", memory_total_bytes=85e9, power_limit_watts=700, max_sm_clock_hertz=1.98e9,
               max_pcie_link_generation=5, max_pcie_link_width=16)
        for gpu in own
    ]  # fmt: skip
    reader = MemoryReader(
        blocks,
        jobs=[job],
        allocations=[Allocation(job.key, gpu, START_MS, None, "bench") for gpu in own],
        devices=devices,
    )
    return JobSamples.read(reader, job, 0)


def main() -> None:
    """Judge the job by all stable rules, three times, and print the best: its samples in memory, then from a database."""
    parser = argparse.ArgumentParser(prog="bench.rules.speed", description=__doc__)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--hours", type=int, default=24)
    options = parser.parse_args()
    _judge("in memory", healthy_job(options.gpus, options.hours), options.gpus * options.hours)
    with tempfile.TemporaryDirectory(prefix="gpudiag-bench-") as folder:
        url = f"sqlite:///{folder}/gpudiag.db"
        start_ms = START_MS // 86_400_000 * 86_400_000
        made = stored.days(start_ms, 3600 * options.hours)
        day.write(url, made, start_ms, 3600 * options.hours, nodes=1)
        reader = open_reader(url)
        (job,) = reader.jobs()
        _judge("in SQLite, reading included", JobSamples.read(reader, job, 0), len(made) * options.hours)
        reader.close()


def _judge(where: str, samples: JobSamples, gpu_hours: int) -> None:
    labels = np.full(samples.seconds, PHASES.index("train"), dtype=np.int8)
    rules = builtin().active()
    cpu = []
    for _ in range(3):
        fresh = JobSamples.read(samples.reader, samples.job, 0)
        began = time.process_time()
        fired = judge(fresh, rules, phases=labels).fired
        cpu.append(time.process_time() - began)
    print(f"{len(rules)} stable rules, {gpu_hours} GPU-hours at 1 s {where}: {min(cpu):.2f} s of CPU, "
          f"{gpu_hours / min(cpu):.0f} GPU-hours per second of one core (budget {BUDGET}), {len(fired)} findings "
          f"(load {os.getloadavg()[0]:.1f})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
