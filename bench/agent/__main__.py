"""`python -m bench.agent`: what the agent costs, beside its peers, on one fake driver in one run."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from agent_process import AgentProcess
from bench.agent import report, subjects
from fake_nvml.control import GIB, FakeNvml, build
from prometheus import free_port

from gpudiag.storage.open import open_reader
from gpudiag.storage.sample import Source

GPUS = 8
WORKERS = 4
RULES_OFF = {"rules.enabled": "false"}
Subject = Callable[[FakeNvml], subjects.Measured]
JOB = f"""
import multiprocessing as m, time
def work():
    while True:
        sum(range(20000)); time.sleep(0.05)
for _ in range({WORKERS}): m.Process(target=work, daemon=True).start()
while True:
    sum(range(20000)); time.sleep(0.05)
"""


def main() -> None:
    """Measure, print the section, write it when asked; exit 1 when a budget is missed."""
    parser = argparse.ArgumentParser(prog="bench.agent", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--peers", type=Path, help="bin directory that holds nvitop-exporter and gpustat")
    parser.add_argument("--write", action="store_true", help=f"put the section into {report.RESULTS.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured = _all(folder, build(folder), options.seconds, options.peers)
        with _driver(folder / "wedged-driver", build(folder)) as fake:
            wedged = wedge(fake, folder)
    section = report.section(measured, wedged, GPUS, options.seconds)
    print(section)
    if options.write:
        report.put(section)
    sys.exit(0 if report.within_budget(measured, wedged) else 1)


def _all(folder: Path, library: Path, seconds: float, peers: Path | None) -> list[subjects.Measured]:
    """All that run for long are measured in the same seconds, each on a driver of its own: load meets them alike."""
    wanted: list[Subject] = [
        lambda fake: subjects.agent(fake, fake.state_file.parent, seconds, "gpudiag agent", {}),
        lambda fake: subjects.agent(
            fake, fake.state_file.parent, seconds, "gpudiag agent, rules off", RULES_OFF
        ),
        lambda fake: subjects.bare_loop(fake, seconds),
    ]
    if peers is not None and (peers / "nvitop-exporter").exists():
        wanted.append(lambda fake: subjects.nvitop(fake, peers / "nvitop-exporter", free_port(), seconds))
    with ExitStack() as stack:
        fakes = [stack.enter_context(_driver(folder / f"subject-{n}", library)) for n in range(len(wanted))]
        stack.enter_context(_job(fakes))
        with ThreadPoolExecutor(len(wanted)) as pool:
            measured = list(pool.map(lambda one, fake: one(fake), wanted, fakes))
        if peers is not None and (peers / "gpustat").exists():
            measured.append(subjects.gpustat(fakes[0], peers / "gpustat", min(seconds, 20.0)))
    return measured


def wedge(fake: FakeNvml, folder: Path) -> report.Wedged:
    """Hang every call of the driver for ever in the middle of a run: gaps between the host's samples, and recovery."""
    own = folder / "wedged"
    own.mkdir()
    agent = AgentProcess(own, fake.environ)
    try:
        agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == GPUS)
        agent.wait_for_ticks(10)
        from_ms = time.time_ns() // 1_000_000
        fake.fail(None, "*", "hang")
        agent.wait_for_ticks(30)
        to_ms = time.time_ns() // 1_000_000
        alive = agent.get("/healthz")[0] == 200
    finally:
        fake.heal(None)
        agent.stop()
    reader = open_reader(agent.url)
    block = reader.read(Source("node-a", "node"), from_ms - 3000, to_ms, ["cpus"])
    reader.close()
    gaps = [after - before for before, after in itertools.pairwise(block.times_ms.tolist())]
    return report.Wedged(max(gaps) / 1000 - 1.0, statistics.median(gaps) / 1000, alive)


@contextmanager
def _driver(folder: Path, library: Path) -> Iterator[FakeNvml]:
    folder.mkdir()
    fake = FakeNvml(library, folder / "state", gpus=GPUS)
    try:
        yield fake
    finally:
        fake.close()


@contextmanager
def _job(fakes: Sequence[FakeNvml]) -> Iterator[None]:
    """A training-like process tree that every GPU lists: attribution and process reading have their real cost."""
    command, environ = [sys.executable, "-c", JOB], {**os.environ, "SLURM_JOB_ID": "42"}
    with subprocess.Popen(command, env=environ, start_new_session=True, stdout=subprocess.DEVNULL) as job:
        for fake, gpu in itertools.product(fakes, range(GPUS)):
            fake.processes(gpu, [(job.pid, 60 * GIB)])
        try:
            yield
        finally:
            os.killpg(job.pid, signal.SIGTERM)  # its workers too


if __name__ == "__main__":
    main()
