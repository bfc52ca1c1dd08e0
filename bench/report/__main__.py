"""`python -m bench.report [--write]`: wall, CPU and memory of `gpudiag report`, as a process, from start to finish."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.report import day
from bench.storage import samples

from gpudiag.storage.upgrade import upgrade

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

GPUDIAG = Path(sys.executable).with_name("gpudiag")


@dataclass(frozen=True)
class Run:
    """One process: seconds, and the most memory that it had (the kernel's `ru_maxrss`)."""

    wall: float
    cpu: float
    peak_mib: float


def main() -> None:
    """Write the databases, report from each, and print what it took."""
    parser = argparse.ArgumentParser(prog="bench.report", description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument(
        "--fleet-hours", type=int, default=24, help="hours of the job of 64 GPUs (0: without)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="keep the SQLite database here, and use it again")
    options = parser.parse_args()
    start_ms = (time.time_ns() // 1_000_000 // 86_400_000 - 2) * 86_400_000
    made = samples.days(start_ms, 3600 * max(options.hours, options.fleet_hours))
    with tempfile.TemporaryDirectory(prefix="gpudiag-bench-") as folder:
        path = options.keep or Path(folder) / "gpudiag.db"
        url = f"sqlite:///{path}"
        if not path.exists():
            day.write(url, made, start_ms, 3600 * options.hours, nodes=1)
        _print(f"8 GPUs x {options.hours} h, SQLite", [report(url) for _ in range(options.runs)])
        page = Path(folder) / "report.html"
        runs = [report(url, "--html", str(page)) for _ in range(options.runs)]
        _print(f"the same as a page of {page.stat().st_size / 1e6:.1f} MB", runs)
    if options.fleet_hours:
        _fleet(made, start_ms, options.fleet_hours)


def _fleet(made: list[samples.GpuDay], start_ms: int, hours: int) -> None:
    from postgres import running_cluster

    with running_cluster() as cluster:
        for nodes in (1, 8):
            url = cluster.new_database()
            upgrade(url, start_ms)
            day.write(url, made, start_ms, 3600 * hours, nodes)
            _print(f"{8 * nodes} GPUs x {hours} h, {nodes} nodes, Postgres", [report(url)])


def report(url: str, *options: str) -> Run:
    """`gpudiag report` of the job; its output is thrown away, a failure is raised."""
    environment = {**os.environ, "GPUDIAG_DB": url, "PYTHONWARNINGS": "ignore"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [GPUDIAG, "report", "--job", day.JOB, *options], stdout=subprocess.DEVNULL, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"gpudiag report failed with {process.returncode}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _print(what: str, runs: list[Run]) -> None:
    every = ", ".join(f"{run.wall:.2f} s wall, {run.cpu:.2f} s CPU, {run.peak_mib:.0f} MiB" for run in runs)
    print(f"{what}: {every} (load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()
