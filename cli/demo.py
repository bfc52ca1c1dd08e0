"""`gpudiag demo`: a simulated job goes through the pipeline of the service, faster than real time."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.messages import ENGLISH, Words, language_of, load, spoken_on
from gpudiag.errors import GpudiagError

if TYPE_CHECKING:
    from gpudiag.agent.sampler import Judge
    from gpudiag.agent.simulation.node import SimulatedNode

NODE_START_MS = 1_772_528_340_000  # 2026-03-03 08:59 UTC: the same report on every run
DATABASE = Path("demo") / "demo.db"
INTERVAL = 2.0  # seconds; half the work of the service's default
_DAY_MS = 86_400_000
_FOR_EVER_MS = 1 << 60
JUDGED_MS = 60_000  # six points of the rules' grid at once, which gives the same findings in less time


@click.command()
@click.option(
    "--database", type=click.Path(dir_okay=False, path_type=Path), default=DATABASE, show_default=True,
    help="SQLite file to leave behind; an earlier demo is replaced.",
)  # fmt: skip
@click.option("--lang", "language", default="", metavar="en|zh", help="Language (default: the locale's).")
def command(database: Path, language: str) -> int:
    """Run a simulated slow job through the real pipeline and report it.

    Job 42 trains on eight GPUs for four hours: its data loader stalls, its memory fragments, one GPU
    overheats, and a leak ends it. Nothing but the machine is simulated.
    """
    from gpudiag.cli.report import Output, report
    from gpudiag.storage.location import url_of

    words = load(language_of(language, os.environ))
    started = time.monotonic()
    _clear(database)
    url = url_of(database)
    ticks = simulate(url, words)
    told = words(
        "Sampled a simulated node of 8 GPUs every {interval} s for 4 hours ({ticks} samples of each source, "
        "{seconds} s of real time).",
        interval=f"{INTERVAL:g}",
        ticks=str(ticks),
        seconds=f"{time.monotonic() - started:.0f}",
    )
    click.echo(f"{told}\n", err=True)
    status = report("42", None, url, Output(language=language), None, (), os.environ)
    click.echo("\n" + next_commands(database, spoken_on(sys.stdout, words)), nl=False)
    return status


def simulate(url: str, words: Words = ENGLISH) -> int:
    """Live through the simulation into the database; the number of ticks. Raises StoreError."""
    from gpudiag.agent.live import LiveJudge
    from gpudiag.agent.simulation.node import NODE_NAME, SimulatedNode
    from gpudiag.rules.loader import builtin

    node = SimulatedNode(NODE_START_MS)
    return record(node, url, LiveJudge(builtin(), NODE_NAME, JUDGED_MS), words)


def record(node: SimulatedNode, url: str, judge: Judge | None, words: Words = ENGLISH) -> int:
    """Drive the service's sampler, recorder and live rules over a simulated node as fast as they go."""
    from gpudiag.agent.recorder import Recorder
    from gpudiag.agent.sampler import Sampler
    from gpudiag.agent.simulation.node import NODE_NAME
    from gpudiag.cli.progress import progress
    from gpudiag.storage.open import open_store
    from gpudiag.storage.store import Store

    def open_again() -> Store:
        return open_store(url, node=NODE_NAME, agent=True)

    recorder = Recorder(open_again, NODE_NAME, node.clock, store=open_again())
    sampler = Sampler(node.collectors, recorder, node.clock, NODE_NAME, INTERVAL, node.scheduler, judge)
    ticks = int(node.script.seconds / INTERVAL)
    for _ in progress(range(ticks), ticks, words("sampling")):
        sampler.tick()
        node.clock.sleep(INTERVAL)
    sampler.close()
    if recorder.state.error:
        raise GpudiagError(f"the demo could not be stored: {recorder.state.error}")
    return ticks


def next_commands(database: Path, words: Words = ENGLISH) -> str:
    """What to try on the database that was left."""
    from gpudiag.storage.location import url_of

    setting = f"export GPUDIAG_DB={shlex.quote(url_of(database))}"
    told = words("The database stays in {file}. Try next:", file=str(database))
    return f"""{told}
  {setting}
  gpudiag report --job 42 --verbose
  gpudiag report --job 42 --json
  gpudiag report --job 42 --html job42.html
  gpudiag jobs
  gpudiag rules explain input/cpu-bound-loader
"""


def _clear(database: Path) -> None:
    """Remove an earlier demo, and nothing that is not one."""
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        for path in (
            database,
            *(database.with_name(database.name + end) for end in ("-wal", "-shm", ".lock")),
        ):
            if path == database and path.exists() and not _is_demo(path):
                raise GpudiagError(
                    f"{path} exists and is not an earlier demo; name another file with --database"
                )
            path.unlink(missing_ok=True)
    except OSError as error:
        raise GpudiagError(f"cannot write {database}: {error.strerror}") from error


def _is_demo(path: Path) -> bool:
    """Whether a database holds the demo's job and no other, and samples of that time alone."""
    from gpudiag.errors import StoreError
    from gpudiag.storage.location import url_of
    from gpudiag.storage.open import open_reader

    try:
        reader = open_reader(url_of(path))
        try:
            others = reader.sources(0, NODE_START_MS) or reader.sources(NODE_START_MS + _DAY_MS, _FOR_EVER_MS)
            jobs = [job.start_ms for job in reader.jobs()]
            return not others and jobs in ([], [NODE_START_MS + 60_000])
        finally:
            reader.close()
    except StoreError:
        return False
