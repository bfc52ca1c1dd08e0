"""`gpudiag check`: is this node fit for the next job? One line and exit code 0, 1 or 2, within two seconds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.language import speaks

if TYPE_CHECKING:
    from gpudiag.agent.config import Config
    from gpudiag.agent.xid import Xid
    from gpudiag.cli.messages import Words
    from gpudiag.cli.node_health import Complaint
    from gpudiag.cli.node_view import NodeView

_TOTAL = 1.3  # seconds from the start of this process until the driver is given up; the whole stays below two
_LEAST = 0.3


@click.command("check")
@click.option("--config", "path", type=click.Path(path_type=Path), help="Configuration of the agent.")
@click.option("--gpus", type=click.IntRange(0), default=0, metavar="N", help="So many GPUs must answer.")
@click.option("--idle", is_flag=True, help="Warn of processes left on a GPU (for a Prolog).")
@click.option("--require-agent", is_flag=True, help="Warn when no agent runs.")
@click.option(
    "--critical-only", is_flag=True, help="Exit 0 on a warning too (a failing Prolog drains a node)."
)
@click.option(
    "--wait", type=click.FloatRange(0.1, 600), metavar="SECONDS",
    help="How long the driver may take to answer (default: what is left of two seconds).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the line.")
@speaks
def command(
    path: Path | None,
    gpus: int,
    idle: bool,
    require_agent: bool,
    critical_only: bool,
    wait: float,
    as_json: bool,
    words: Words,
) -> int:
    """One-shot health of this node, for Slurm's HealthCheckProgram and Prolog and for Kubernetes probes.

    Exit code 0: healthy, 1: warning, 2: critical. A running agent is asked instead of the driver. A driver that does not
    answer within --wait is critical. A node without any NVIDIA driver is healthy unless --gpus says otherwise.
    """
    from gpudiag.agent import configfile
    from gpudiag.cli.node_health import LEVELS, Expected, complaints, worst

    config = configfile.load(path, os.environ)
    view = _look(config, max(_LEAST, _TOTAL - age()) if wait is None else wait)
    found = complaints(view, Expected(gpus, idle, require_agent), _xids(config))
    level = worst(found)
    click.echo(json.dumps(_document(view, found, level)) if as_json else _line(view, found, level, words))
    return 0 if critical_only and level == "warning" else LEVELS.index(level)


def age() -> float:
    """Seconds since this process was started: a busy machine spends some of the two before we are asked."""
    with open("/proc/self/stat") as file:
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _xids(config: Config) -> dict[int, Xid] | None:
    from gpudiag.agent.xid import load_catalogue

    return load_catalogue(Path(config.sources.xid_catalogue)) if config.sources.xid_catalogue else None


def _look(config: Config, wait: float) -> NodeView:
    from gpudiag.cli.node_source import Driver, ask_agent, fresh_view, from_agent, node_name

    view = from_agent(config)
    if view is None and ask_agent(config, "/healthz").runs:
        view = fresh_view(config, os.environ)  # an agent with a password: what it stored
    if view is not None:
        return view
    driver = Driver(config, node_name(config))
    try:
        return driver.settle(wait)
    finally:
        driver.close()


def _names(view: NodeView) -> dict[str, str]:
    return {gpu.uuid: gpu.uuid if gpu.index is None else f"GPU {gpu.index}" for gpu in view.gpus}


def _line(view: NodeView, found: list[Complaint], level: str, words: Words) -> str:
    names = _names(view)
    told = [
        words("{name}: {text}", name=names.get(one.uuid, one.uuid), text=words(one.what))
        if one.uuid
        else words(one.what)
        for one in found
    ]
    seen = _seen(view, words)
    if not told:
        return words("{name}: {text}", name=words(level).upper(), text=seen)
    text = words("{text} ({source})", text=words("; ").join(told), source=seen)
    return words("{name}: {text}", name=words(level).upper(), text=text)


def _seen(view: NodeView, words: Words) -> str:
    gpus = str(sum(1 for gpu in view.gpus if gpu.values))
    return (
        words("{count} GPUs, asked the {source}", count=gpus, source=words(view.seen_by))
        if view.gpus
        else words("no GPU")
    )


def _document(view: NodeView, found: list[Complaint], level: str) -> dict[str, object]:
    names = _names(view)
    return {
        "schema_version": 1,
        "level": level,
        "seen_by": view.seen_by,
        "gpus": [
            {"uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "answers": bool(gpu.values)}
            for gpu in view.gpus
        ],
        "complaints": [
            {"level": one.level, "what": one.what, "uuid": one.uuid or None, "device": names.get(one.uuid)}
            for one in found
        ],
    }
