"""`gpudiag job start|end`: what a Slurm Prolog and Epilog call. Reads the environment, writes one file, asks nobody.

A failing Prolog drains a node: whatever goes wrong is one line on standard error and exit code 0, unless --strict.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import click

from gpudiag.agent.hook_files import FOLDER, Hook, open_runs, prune, write_hook
from gpudiag.errors import GpudiagError, InputError

RUNTIME_DIR = "/run/gpudiag"


@click.group()
def command() -> None:
    """Tell the agent that a job starts or ends (for scheduler hooks).

    Slurm: call `gpudiag job start` in Prolog and `gpudiag job end` in Epilog; both take what they need from
    the environment. Exit code 0 even when the file cannot be written, because a failing Prolog drains the node.
    """


_FOLDER = click.option(
    "--runtime-dir",
    type=click.Path(path_type=Path),
    envvar="GPUDIAG_AGENT__RUNTIME_DIR",
    default=RUNTIME_DIR,
    show_default=True,
    help="Runtime directory of the agent.",
)
_STRICT = click.option("--strict", is_flag=True, help="Exit 1 when the file cannot be written.")
_JOB = click.option("--job", "job", metavar="ID", help="Job id; default SLURM_JOB_ID.")


@command.command()
@_JOB
@click.option("--devices", metavar="LIST", help="GPUs by UUID or device number, or all; default from Slurm.")
@click.option("--name", default="", help="Name of the job.")
@click.option("--user", default="", help="User of the job; default SLURM_JOB_USER.")
@click.option("--cluster", default="", help="Cluster; default SLURM_CLUSTER_NAME.")
@click.option("--tag", "tags", multiple=True, help="A tag such as interactive or inference; repeatable.")
@_FOLDER
@_STRICT
def start(
    job: str | None,
    devices: str | None,
    name: str,
    user: str,
    cluster: str,
    tags: tuple[str, ...],
    runtime_dir: Path,
    strict: bool,
) -> None:
    """A job starts on this node."""
    hook = hook_of(os.environ, job, time.time_ns() // 1_000_000)
    hook = replace(
        hook,
        name=name or hook.name,
        user=user or hook.user,
        cluster=cluster or hook.cluster,
        tags=tags,
    )
    if devices is not None:
        hook = replace(hook, devices=device_references(devices))
    _guarded(lambda: write_hook(runtime_dir / FOLDER, hook), strict)


@command.command()
@_JOB
@click.option("--exit-code", type=int, help="Exit code; default from SLURM_JOB_EXIT_CODE2.")
@click.option(
    "--state",
    default="",
    type=click.Choice(["", "completed", "failed", "cancelled", "timeout", "oom"]),
    help="Final state; default from the exit code.",
)
@_FOLDER
@_STRICT
def end(job: str | None, exit_code: int | None, state: str, runtime_dir: Path, strict: bool) -> None:
    """A job ended on this node."""
    ended = hook_of(os.environ, job, time.time_ns() // 1_000_000)
    code = slurm_exit_code(os.environ) if exit_code is None else exit_code
    _guarded(lambda: write_end(runtime_dir / FOLDER, ended, code, state), strict)


def hook_of(environ: Mapping[str, str], job: str | None, now_ms: int) -> Hook:
    """The hook that the environment describes; a job id that is given wins. Raises `InputError` without any."""
    slurm_id = environ.get("SLURM_JOB_ID", "")
    raw_id = job or slurm_id
    if not raw_id:
        raise InputError("no job: give --job ID, or call it where SLURM_JOB_ID is set")
    if raw_id != slurm_id:
        return Hook("hook", raw_id, now_ms, id=raw_id, boot_id=boot_id())
    exact = environ.get("SLURM_JOB_START_TIME", "")
    names = {
        "partition": "SLURM_JOB_PARTITION",
        "nodes": "SLURM_JOB_NODELIST",
        "node_name": "SLURMD_NODENAME",
    }
    return Hook(
        "slurm",
        raw_id,
        int(exact) * 1000 if exact.isdigit() else now_ms,
        start_exact=exact.isdigit(),
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        name=environ.get("SLURM_JOB_NAME", ""),
        user=environ.get("SLURM_JOB_USER", ""),
        devices=slurm_references(environ),
        boot_id=boot_id(),
        sluid=environ.get("SLURM_JOB_SLUID", ""),
        restart=restart_count(environ),
        meta={key: environ[name] for key, name in names.items() if environ.get(name)},
    )


def boot_id() -> str:
    """Names the time since this node was started; a job that began before it is over."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def slurm_references(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Device references of the job on this node; None when Slurm names none."""
    exact = device_references(environ.get("CUDA_VISIBLE_DEVICES", ""))
    if exact and all(word.startswith(("GPU-", "MIG-")) for word in exact):
        return exact
    numbers = environ.get("SLURM_JOB_GPUS") or environ.get("GPU_DEVICE_ORDINAL") or ""
    return device_references(numbers) or None


def device_references(text: str) -> tuple[str, ...]:
    """`GPU-…`, `MIG-…`, `all` as they are, numbers as numbers of the device file; other words are left out."""
    words = [word.strip() for word in text.split(",")]
    known = [word if not word.isdigit() else f"minor:{word}" for word in words]
    return tuple(word for word in known if word.startswith(("GPU-", "MIG-", "minor:")) or word == "all")


def slurm_exit_code(environ: Mapping[str, str]) -> int | None:
    """Exit code of the job: SLURM_JOB_EXIT_CODE2 `1:0`, else SLURM_JOB_EXIT_CODE, which is a wait status."""
    code, _, signal = environ.get("SLURM_JOB_EXIT_CODE2", "").partition(":")
    if code.isdigit():
        return 128 + int(signal) if signal.isdigit() and int(signal) else int(code)
    status = environ.get("SLURM_JOB_EXIT_CODE", "")
    if not status.isdigit():
        return None
    died_of = int(status) & 0x7F
    return 128 + died_of if died_of else int(status) >> 8


def restart_count(environ: Mapping[str, str]) -> int | None:
    """How often Slurm has started this job before, as Prolog and Epilog see it."""
    count = environ.get("SLURM_JOB_RESTART_COUNT") or environ.get("SLURM_RESTART_COUNT") or ""
    return int(count) if count.isdigit() else None


def write_end(folder: Path, ended: Hook, code: int | None, state: str) -> None:
    """End the open run of this job; without one (the start was missed) leave a file that says only the end."""
    opened = open_runs(folder, ended.raw_id)
    base = opened[-1].hook if opened else replace(ended, meta={**ended.meta, "start_unknown": True})
    if None not in (base.restart, ended.restart) and (ended.restart or 0) > (base.restart or 0):
        # Slurm counts the next start before this Epilog, and gives it exit code 0 unless the job failed by itself
        base = replace(base, meta={**base.meta, "scheduler_state": "REQUEUED"})
        if not state and not code:
            state, code = "cancelled", None
    if not state and code is not None:
        state = "completed" if code == 0 else "failed"
    finished = time.time_ns() // 1_000_000
    write_hook(folder, replace(base, end_ms=max(finished, base.start_ms), exit_code=code, state=state))
    prune(folder)


def _guarded(write: Callable[[], object], strict: bool) -> None:
    try:
        write()
    except OSError as error:
        message = f"cannot write the hook file: {error}"
        if strict:
            raise GpudiagError(message) from error
        click.echo(f"gpudiag: {message}; the job goes on without it", err=True)
