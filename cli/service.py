"""`gpudiag service`: install or remove the systemd service, telling each step and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import click

from gpudiag.errors import GpudiagError

USER = "gpudiag"
UNIT = "gpudiag-agent.service"
PRUNE_UNITS = ("gpudiag-prune.service", "gpudiag-prune.timer")
UNIT_FOLDER = "etc/systemd/system"
PACKAGED_COMMAND = "/usr/bin/gpudiag"
_OPTIONS = (
    click.option("--dry-run", is_flag=True, help="Only tell what would be done."),
    click.option(
        "--root",
        type=click.Path(path_type=Path),
        default=Path("/"),
        help="Install into this tree instead (an image): no user, no systemctl.",
    ),
)


@dataclass(frozen=True)
class Step:
    """Something to do, why, and how; `shows` is what a dry run prints besides."""

    what: str
    why: str
    do: Callable[[], None]
    shows: str = ""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.group("service")
def command() -> None:
    """Install or remove the systemd service."""


@command.command("install")
@_options
@click.option("--no-start", is_flag=True, help="Neither enable nor start it.")
@click.option("--with", "drop_ins", multiple=True, metavar="NAME", help="Also a drop-in: environ, kernel-log, forward.")  # fmt: skip
def install(dry_run: bool, root: Path, no_start: bool, drop_ins: tuple[str, ...]) -> None:
    """Write user, configuration and unit, then start the agent. An existing configuration is kept."""
    _run(list(_installation(root, no_start, drop_ins)), dry_run)


@command.command("uninstall")
@_options
@click.option("--purge", is_flag=True, help="Also remove configuration and database.")
def uninstall(dry_run: bool, root: Path, purge: bool) -> None:
    """Stop the agent and remove its unit; configuration and database stay unless --purge is given."""
    _run(list(_removal(root, purge)), dry_run)


def _run(steps: list[Step], dry_run: bool) -> None:
    for step in steps:
        click.echo(f"{'would ' if dry_run else ''}{step.what}\n    {step.why}")
        if dry_run:
            click.echo("".join(f"    | {line}\n" for line in step.shows.splitlines()), nl=False)
            continue
        try:
            step.do()
        except (OSError, subprocess.CalledProcessError) as error:
            raise GpudiagError(f"cannot {step.what}: {error}") from None


def _installation(root: Path, no_start: bool, drop_ins: tuple[str, ...]) -> Iterator[Step]:
    live = root == Path("/")
    if live and not _user_exists():
        create = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/var/lib/gpudiag"]
        create += ["--shell", "/usr/sbin/nologin", USER]
        yield Step(f"create the system user {USER}", "The agent needs no privileges.", _call(*create))
    config = root / "etc/gpudiag/gpudiag.toml"
    if not config.exists():
        text = _packaged("gpudiag.toml")
        yield Step(f"write {config}", "Starter configuration; never overwritten.", _write(config, text), text)
    unit = root / UNIT_FOLDER / UNIT
    text = _packaged(UNIT).replace(PACKAGED_COMMAND, _command() if live else PACKAGED_COMMAND)
    yield Step(f"write {unit}", "Hardened unit; runs this very gpudiag.", _write(unit, text), text)
    for name in PRUNE_UNITS:
        path = unit.with_name(name)
        text = _packaged(name).replace(PACKAGED_COMMAND, _command() if live else PACKAGED_COMMAND)
        yield Step(
            f"write {path}", "Freezes reports and prunes the database once a day.", _write(path, text), text
        )
    for name in drop_ins:
        text = _packaged(f"{UNIT}.d/{name}.conf")
        why = text.splitlines()[0].lstrip("# ")
        path = unit.with_name(f"{UNIT}.d") / f"{name}.conf"
        yield Step(f"write {path}", why, _write(path, text), text)
    if live:
        yield Step(
            "run systemctl daemon-reload", "systemd reads the unit.", _call("systemctl", "daemon-reload")
        )
        if not no_start:
            start = _call("systemctl", "enable", "--now", UNIT)
            yield Step(f"enable and start {UNIT}", "It starts now and at each boot.", start)
            daily = _call("systemctl", "enable", "--now", PRUNE_UNITS[1])
            yield Step(f"enable and start {PRUNE_UNITS[1]}", "Once a day.", daily)


def _removal(root: Path, purge: bool) -> Iterator[Step]:
    live = root == Path("/")
    unit = root / UNIT_FOLDER / UNIT
    if live and unit.exists():
        stop = _call("systemctl", "disable", "--now", UNIT)
        yield Step(f"stop and disable {UNIT}", "It writes what is in memory and ends.", stop)
    prune = [unit.with_name(name) for name in PRUNE_UNITS]
    if live and prune[1].exists():
        stop = _call("systemctl", "disable", "--now", prune[1].name)
        yield Step(f"stop and disable {prune[1].name}", "Nothing is pruned any more.", stop)
    for path in (unit, unit.with_name(f"{UNIT}.d"), *prune):
        if path.exists():
            yield Step(f"remove {path}", "Written by `gpudiag service install`.", _remove(path))
    if live:
        yield Step(
            "run systemctl daemon-reload", "systemd forgets the unit.", _call("systemctl", "daemon-reload")
        )
    if purge:
        for path in (root / "etc/gpudiag", root / "var/lib/gpudiag"):
            if path.exists():
                yield Step(f"remove {path}", "Asked for with --purge.", _remove(path))


def _packaged(name: str) -> str:
    file = resources.files("gpudiag") / "systemd" / name
    if not file.is_file():
        raise GpudiagError(f"there is no {name}; drop-ins are environ, kernel-log and forward")
    return file.read_text(encoding="utf-8")


def _command() -> str:
    """Path of this program as systemd can start it."""
    beside = Path(sys.executable).with_name("gpudiag")
    found = str(beside) if beside.exists() else shutil.which("gpudiag")
    return found or f"{sys.executable} -m gpudiag"


def _user_exists() -> bool:
    import pwd

    try:
        pwd.getpwnam(USER)
    except KeyError:
        return False
    return True


def _write(path: Path, text: str) -> Callable[[], None]:
    def do() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)
        os.replace(temporary, path)

    return do


def _remove(path: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(path) if path.is_dir() else path.unlink()


def _call(*arguments: str) -> Callable[[], None]:
    def do() -> None:
        subprocess.run(arguments, check=True)

    return do
