"""`gpudiag run`: record any command as a job, without a scheduler."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.language import speaks

if TYPE_CHECKING:
    from gpudiag.agent.config import Config
    from gpudiag.agent.recording import Recorder
    from gpudiag.agent.watched_output import WatchedOutput
    from gpudiag.cli.messages import Words


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--job", metavar="ID", help="Id of the job; default: date, time and process number.")
@click.option("--name", default="", help="Name of the job; default: the program's.")
@click.option("--db", metavar="URL", help="Sample into this database even when an agent runs here.")
@click.option("--interval", metavar="TIME", help="Time between two samples, such as 1s, without an agent.")
@click.option("--tag", "tags", multiple=True, help="A tag such as interactive or inference; repeatable.")
@click.option(
    "--probe", is_flag=True, help="Measure inside Python too: step time, data wait, PyTorch's allocator."
)
@click.option("--quiet", "-q", is_flag=True, help="Do not say at the end where the job was recorded.")
@speaks
@click.argument(
    "command_line", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]..."
)
def command(
    job: str | None,
    name: str,
    db: str | None,
    interval: str | None,
    tags: tuple[str, ...],
    probe: bool,
    quiet: bool,
    words: Words,
    command_line: tuple[str, ...],
) -> int:
    """Run a command and record it as a job: its processes, its exit code and the GPUs it can see.

    With an agent on this node the agent records it; without one this command samples by itself, into the
    database of the user. The exit code is the command's own; a signal that ends it ends this command too.
    Out-of-memory messages in its error output become part of the report, unless that goes to a terminal.
    """
    from gpudiag.agent.launch import Child, end_like
    from gpudiag.agent.recording import make_hook, record
    from gpudiag.agent.watched_output import WatchedOutput, is_watchable

    config = load_config(db, interval, os.environ)
    folder, recorder, url = choose_recorder(config, own=db is not None or interval is not None)
    if db is not None:
        refuse_mistyped(url)
    job = job or time.strftime("%Y%m%d-%H%M%S-") + str(os.getpid())
    _log_to_stderr()
    inside = probe_environment(folder.parent, os.environ) if probe else {}
    watched = WatchedOutput() if is_watchable() else None
    child = Child(
        command_line, {**os.environ, **inside, "GPUDIAG_JOB": job}, watched.descriptor if watched else None
    )
    if watched:
        watched.close_ours()
    hook = make_hook(job, name, child, command_line, os.environ, tags)
    returncode, recorded = record(child, hook, folder, recorder, lambda: found_in(watched))
    if recorded and not quiet:
        where = f" --db {url}" if url else ""
        told = words(
            "recorded as job {id}; see: {command}", id=job, command=f"gpudiag report --job {job}{where}"
        )
        click.echo(f"gpudiag: {told}", err=True)
    return end_like(returncode)


def refuse_mistyped(url: str) -> None:
    """Raise `SchemaError` for somebody else's file; one that cannot be written does not stop a command, only its recording."""
    from gpudiag.errors import SchemaError, StoreError
    from gpudiag.storage.open import refuse_foreign

    try:
        refuse_foreign(url)
    except SchemaError:
        raise
    except StoreError:
        pass  # the recorder says so, and tries again


def probe_environment(runtime_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes every Python below the command measure itself; see `gpudiag.probe`."""
    import gpudiag

    hook = Path(gpudiag.__file__).parent / "probe" / "hook"
    path = os.pathsep.join([str(hook), *filter(None, [environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "GPUDIAG_PROBE_SOCKET": str(runtime_dir / "probe.sock")}


def found_in(watched: WatchedOutput | None) -> dict[str, Any]:
    """What the error output adds to the job's record."""
    messages = watched.messages() if watched else []
    return {"oom_messages": messages} if messages else {}


def load_config(db: str | None, interval: str | None, environ: Mapping[str, str]) -> Config:
    """The agent's configuration, changed to what a user's own recording needs. Raises `InputError`."""
    from gpudiag.agent import configfile

    flags = {"metrics.enabled": "false"}
    if interval is not None:
        flags["agent.interval"] = interval
    if db is not None:
        flags["storage.url"] = db
    return configfile.load(None, environ, flags)


def choose_recorder(config: Config, own: bool) -> tuple[Path, Recorder, str]:
    """Where the hook file goes, who samples, and the database to name in the hint (empty: the default one)."""
    from dataclasses import replace

    from gpudiag.agent.hook_files import FOLDER
    from gpudiag.agent.recording import ByAgent, BySampling, agent_answers, own_runtime_dir

    runtime_dir = Path(config.agent.runtime_dir)
    if not own and agent_answers(runtime_dir):
        return runtime_dir / FOLDER, ByAgent(), ""
    url, shown, forward = own_database(config, os.environ)
    private = own_runtime_dir(url, os.environ)
    agent = replace(config.agent, runtime_dir=str(private))
    config = replace(
        config,
        agent=agent,
        storage=replace(config.storage, url=url),
        forward=replace(config.forward, url=forward),
    )
    return private / FOLDER, BySampling(config, os.environ), shown


def own_database(config: Config, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """The SQLite database to sample into, the one to name in the hint, and a Postgres to forward to."""
    from gpudiag.storage.location import SERVICE_DATABASE, default_url, url_of, user_database

    own = url_of(user_database(environ))
    url = config.storage.url
    if url.startswith("postgres"):
        return own, url, url
    if url:
        return url, url, config.forward.url
    # the service's database is only for the service, even when we could read it
    shown = "" if default_url(environ) == own else own
    return own, shown if os.access(SERVICE_DATABASE, os.R_OK) else "", config.forward.url


def _log_to_stderr() -> None:
    logger = logging.getLogger("gpudiag")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("gpudiag: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
