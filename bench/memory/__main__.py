"""`python -m bench.memory`: CPU and memory of `gpudiag oom` and `gpudiag memory` on large files, as processes."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.memory import files

GPUDIAG = Path(sys.executable).with_name("gpudiag")


@dataclass(frozen=True)
class Run:
    """One process and its children: CPU seconds, and the most memory that one of them had."""

    cpu: float
    peak_mib: float


def main() -> None:
    """Write each file, read it, and print what it took."""
    parser = argparse.ArgumentParser(prog="bench.memory", description=__doc__)
    parser.add_argument("--log-mib", type=int, default=256)
    parser.add_argument("--snapshot-mib", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpudiag-bench-") as folder:
        path = Path(folder) / "file"
        for what, line in files.LOGS.items():
            files.write_log(path, line, options.log_mib * files.MIB)
            _print(f"oom, {what}", path, run("oom", str(path), "--json"))
        blocks = files.write_snapshot(path, options.snapshot_mib * files.MIB)
        _print(f"memory, {blocks} blocks", path, run("memory", str(path), "--html", f"{folder}/page.html"))
        print(f"  its page: {Path(folder, 'page.html').stat().st_size / files.MIB:.1f} MiB")


def run(*arguments: str) -> Run:
    """Measured in a child of its own, since the most memory is told for all children together."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        done = subprocess.run([GPUDIAG, *arguments], stdout=subprocess.DEVNULL, check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(writing, f"{used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024}".encode())
        os._exit(min(abs(done.returncode), 255))
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"gpudiag {arguments[0]} failed with {os.waitstatus_to_exitcode(status)}")
    cpu, peak = os.read(reading, 200).split()
    return Run(float(cpu), float(peak))


def _print(what: str, path: Path, run: Run) -> None:
    mib = path.stat().st_size / files.MIB
    print(
        f"{what}: {mib:.0f} MiB, {run.cpu:.2f} s CPU ({mib / run.cpu:.0f} MiB/s), {run.peak_mib:.0f} MiB peak "
        f"(load {os.getloadavg()[0]:.1f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
