"""`gpudiag top`: the GPUs of this node, live, with their jobs and the findings that are open."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from gpudiag.cli.language import speaks

if TYPE_CHECKING:
    from gpudiag.agent.config import Config
    from gpudiag.cli.keys import Keys
    from gpudiag.cli.messages import Words
    from gpudiag.cli.node_source import Driver
    from gpudiag.cli.node_view import NodeView
    from gpudiag.cli.top_table import Screen

_PATIENCE = 10.0
_SORTS = ("index", "sm", "memory", "power", "job", "finding")


@click.command("top")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.2), help="Seconds per frame."
)
@click.option(
    "--sort", default="index", show_default=True, type=click.Choice(_SORTS), help="Order of the rows."
)
@click.option("--reverse", is_flag=True, help="Reverse it.")
@click.option(
    "--filter", "text", default="", metavar="TEXT", help="Only rows with this job, user, model or finding."
)
@click.option("--once", is_flag=True, help="One frame, as when the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="One frame as JSON.")
@click.option("--config", "path", type=click.Path(path_type=Path), help="Configuration of the agent.")
@speaks
def command(
    interval: float,
    sort: str,
    reverse: bool,
    text: str,
    once: bool,
    as_json: bool,
    path: Path | None,
    words: Words,
) -> None:
    """Live table of the GPUs of this node: job, SM activity, memory, links, power, open findings.

    Reads the agent where one runs, else what it stored less than a minute ago, else the driver. Keys: q quit, s sort,
    r reverse, / filter, p pause, h help. Not on a terminal: one frame, tab-separated.
    """
    from gpudiag.agent import configfile
    from gpudiag.cli.top_table import Screen

    watcher = Watcher(configfile.load(path, os.environ), os.environ.copy(), interval)
    screen = Screen(sort, reverse, text)
    try:
        if once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _one_frame(watcher, screen, as_json, words, wanted=once or as_json)
        else:
            _live(watcher, screen, interval, words)
    finally:
        watcher.close()


class Watcher:
    """Views of this node, from the best source there is at each moment."""

    def __init__(self, config: Config, environ: dict[str, str], interval: float) -> None:
        self._config = config
        self._environ = environ
        self._interval = interval
        self._driver: Driver | None = None

    def view(self) -> NodeView:
        """The node now; the driver is let go as soon as an agent is there."""
        from gpudiag.cli.node_source import Driver, fresh_view, node_name

        found = fresh_view(self._config, self._environ)
        if found is not None:
            self.close()
            return found
        if self._driver is None:
            self._driver = Driver(self._config, node_name(self._config), self._interval)
            first = self._driver.settle(_PATIENCE)
            if not first.gpus:
                return first
            time.sleep(min(self._interval, 1.0))  # rates and SM activity are between two readings
        return self._driver.view(time.time_ns() // 1_000_000)

    def close(self) -> None:
        """Let go of the driver."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


def _one_frame(watcher: Watcher, screen: Screen, as_json: bool, words: Words, wanted: bool) -> None:
    from gpudiag.cli import top_table
    from gpudiag.cli.node_source import require_gpus

    view = require_gpus(watcher.view())
    if as_json:
        click.echo(json.dumps(top_table.document(view, screen)))
        return
    click.echo(top_table.plain(view, screen, words))
    if not view.gpus:
        click.echo(words("no GPU was found on this node; gpudiag doctor says why"), err=True)
    if not wanted:
        click.echo(words("one frame: this is no terminal (under Slurm: srun --pty gpudiag top)"), err=True)


class Source(Protocol):
    """What the loop needs of a `Watcher`."""

    def view(self) -> NodeView: ...


def _live(watcher: Source, screen: Screen, interval: float, words: Words) -> None:
    from rich.console import Console
    from rich.live import Live

    from gpudiag.cli.keys import pressed
    from gpudiag.cli.render.style import terminal_style
    from gpudiag.cli.top_table import History, frame

    history = History()
    console = Console(highlight=False)
    with pressed() as keys, Live(console=console, screen=True, auto_refresh=False) as live:

        def show(view: NodeView, now: Screen) -> None:
            style = terminal_style({**os.environ, "COLUMNS": str(console.width)})
            live.update(frame(view, history, now, style, words), refresh=True)

        loop(watcher, screen, interval, keys, show, history.add)


def loop(
    watcher: Source,
    screen: Screen,
    interval: float,
    keys: Keys,
    show: Callable[[NodeView, Screen], None],
    remember: Callable[[NodeView], None],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Look, show, and take keys until the next look, until a key says quit. Nothing is read while paused."""
    view = watcher.view()
    remember(view)
    due = monotonic() + interval
    while True:
        show(view, screen)
        try:
            for key in keys.wait(due - monotonic()):
                screen = screen.key(key)
        except EOFError:
            return
        if screen.quit:
            return
        if monotonic() >= due:
            due = monotonic() + interval
            if not screen.paused:
                view = watcher.view()
                remember(view)
