"""`gpudiag agent`: the service itself, and what an operator asks of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from gpudiag.agent import configfile
from gpudiag.agent.config import Config
from gpudiag.errors import InputError


@click.group("agent", invoke_without_command=True)
@click.option("--config", "path", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--db", help="Database URL (storage.url).")
@click.option("--interval", help="Time between two samples, such as 1s (agent.interval).")
@click.option("--listen", help="Address of /metrics, such as 127.0.0.1:9836 (metrics.listen).")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Any other key.")
@click.option("--print-config", is_flag=True, help="Print each value and where it comes from, and exit.")
@click.option("--check-config", is_flag=True, help="Only check configuration and rules, and exit.")
@click.pass_context
def command(
    ctx: click.Context,
    path: Path | None,
    db: str | None,
    interval: str | None,
    listen: str | None,
    settings: tuple[str, ...],
    print_config: bool,
    check_config: bool,
) -> None:
    """Sample this node, judge it live and serve /metrics, until SIGTERM. SIGHUP reloads configuration and rules."""
    shortcuts = {"storage.url": db, "agent.interval": interval, "metrics.listen": listen}
    flags = _flags(settings) | {name: value for name, value in shortcuts.items() if value is not None}

    def load() -> Config:
        return configfile.load(path, os.environ, flags)

    ctx.obj = load
    if ctx.invoked_subcommand is not None:
        return
    if print_config:
        click.echo(configfile.dump(load()), nl=False)
    elif check_config:
        _check(load())
    else:
        from gpudiag.agent.main import run

        run(load)


def _flags(settings: tuple[str, ...]) -> dict[str, str]:
    flags = {}
    for setting in settings:
        name, found, value = setting.partition("=")
        if not found or "." not in name:
            raise InputError(f"--set {setting}: expected SECTION.KEY=VALUE, such as agent.interval=2s")
        flags[name.strip()] = value.strip()
    return flags


def _check(config: Config) -> None:
    from gpudiag.rules import loader

    rules = loader.load([Path(name) for name in config.rules.paths])
    click.echo(f"configuration and {len(rules)} rules are good")


@command.command("release")
@click.option("--for", "period", default="10m", show_default=True, help="How long, such as 90s or 10m.")
@click.option("--resume", is_flag=True, help="Take the devices up again now.")
@click.pass_obj
def release(load: Callable[[], Config], period: str, resume: bool) -> None:
    """Let the running agent close every GPU handle for a while, so that a reset or driver change can succeed."""
    from gpudiag.agent.control import ask
    from gpudiag.agent.values import duration

    folder = Path(load().agent.runtime_dir)
    if resume:
        ask(folder, {"op": "resume"})
        click.echo("the agent takes the GPUs up again")
        return
    try:
        seconds = duration(period)
    except ValueError as error:
        raise InputError(f"--for {period}: {error}") from None
    ask(folder, {"op": "release", "seconds": seconds})
    click.echo(f"the agent holds no GPU for {period}; `gpudiag agent release --resume` ends that earlier")


@command.command("password")
@click.argument("name")
@click.option(
    "--password", prompt=True, hide_input=True, confirmation_prompt=True, help="Asked when not given."
)
def password(name: str, password: str) -> None:
    """Print the line for metrics.users_file that lets NAME read /metrics."""
    from gpudiag.agent.passwords import line_for

    click.echo(line_for(name, password))
