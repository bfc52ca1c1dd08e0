"""How Slurm's commands write states, times and exit codes; the same for `scontrol` and `sacct`."""

from __future__ import annotations

import re
import time

_LAST_SIGNAL = 64

UNKNOWN = ("", "(null)", "N/A", "Unknown", "None")
_STATES = {
    "RUNNING": "running", "COMPLETING": "running", "SUSPENDED": "running", "STOPPED": "running", "CONFIGURING": "running",
    "SIGNALING": "running", "STAGE_OUT": "running", "RESIZING": "running",
    "COMPLETED": "completed", "FAILED": "failed", "BOOT_FAIL": "failed", "NODE_FAIL": "failed", "LAUNCH_FAILED": "failed",
    "CANCELLED": "cancelled", "PREEMPTED": "cancelled", "REVOKED": "cancelled", "REQUEUED": "cancelled",
    "REQUEUE_HOLD": "cancelled", "SPECIAL_EXIT": "failed", "TIMEOUT": "timeout", "DEADLINE": "timeout", "OUT_OF_MEMORY": "oom",
}  # fmt: skip

_PARENTHESES = re.compile(r"\([^()]*\)")
_GPUS = re.compile(r"(?:gres[/:])?gpu(?::(?P<type>[^:=]*[^:=\d][^:=]*))?(?:[:=](?P<count>\d+))?")


def state_of(word: str) -> str:
    """Our state of a job for Slurm's word; empty for one that says nothing about it, such as PENDING."""
    return _STATES.get(word, "")


def time_ms(text: str) -> int | None:
    """Seconds since 1970, or a local time without offset as Slurm prints it by default; UNIX milliseconds."""
    if text.isdigit():
        return int(text) * 1000
    try:
        return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))) * 1000
    except (ValueError, OverflowError):
        return None


def exit_code(text: str) -> int | None:
    """`1:0` is exit code 1; `0:9` died of signal 9 and becomes 137, as a shell says it."""
    code, _, signal = text.partition(":")
    if not code.isdigit() or (signal.isdigit() and int(signal) > _LAST_SIGNAL):
        return None  # Slurm marks a kill for memory as signal 125, which is none
    return 128 + int(signal) if signal.isdigit() and int(signal) else int(code)


def gpu_count(tres: str) -> int | None:
    """GPUs in a list of resources: `gres/gpu=8`, `gres/gpu:a100=4,gres/gpu:h100=4`, `gpu:h100:8(IDX:0-7)`; None: no word of them.

    Typed entries are parts of an untyped one where there are both.
    """
    total, parts = None, []
    for item in _PARENTHESES.sub("", tres).split(","):
        match = _GPUS.fullmatch(item.strip())
        if match is None:
            continue
        count = int(match["count"] or 1)
        if match["type"]:
            parts.append(count)
        else:
            total = count
    return total if total is not None else sum(parts) if parts else None
