"""Logs of training jobs and memory snapshots as large as wanted, for measuring; the same for every run."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 2**20
_LINES = 10_000
OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 1.00 GiB "
    b"is free. Of the allocated memory 77.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated.\n"
)
LOGS: dict[str, Callable[[int], bytes]] = {
    "steps": lambda step: b"2025-03-01 12:00:01,123 INFO train.py:88 step %d loss 2.3456 lr 1.0e-04 tok/s 12345 grad_norm 0.41\n" % step,
    "steps that tell their memory": lambda step: (
        b"2025-03-01 12:00:01,123 INFO step %d mem reserved 60.1 GiB, memory allocated 40.2 GiB, 3 out of 10 workers idle\n" % step
    ),
    "a progress bar": lambda step: b"\rEpoch 1:  50%%|#####     | %d/2000000 [00:12<00:13, 1.23it/s, loss=2.34]" % step,
    "a message every hundred lines": lambda step: OOM.replace(b"2.00", b"%d.00" % step) if step % 100 == 0 else b"step %d loss 2.3456\n" % step,
}  # fmt: skip


def write_log(path: Path, line: Callable[[int], bytes], size: int) -> None:
    """Lines up to a size in bytes, and one out-of-memory message as the last."""
    with path.open("wb") as log:
        first = 0
        while log.tell() < size:
            log.write(b"".join(line(first + index) for index in range(_LINES)))
            first += _LINES
        log.write(b"\n" + OOM)


def write_snapshot(path: Path, size: int) -> int:
    """A snapshot of about a size in bytes as PyTorch 2.x writes it; returns its blocks.

    Half-empty segments on 8 GPUs, and the trace of allocations that makes up most of such a file.
    """
    dice = random.Random(size)
    frames = [_frame(depth) for depth in range(400)]
    segments = [_segment(dice, index, frames) for index in range(2000)]
    document: dict[str, Any] = {"segments": segments, "device_traces": [[] for _ in range(8)]}
    few = [_entry(dice, index, frames) for index in range(1000)]
    entries = max(0, size - len(pickle.dumps(document))) * len(few) // len(pickle.dumps(few))
    for index in range(entries):
        document["device_traces"][index % 8].append(_entry(dice, index, frames))
    path.write_bytes(pickle.dumps(document))
    return sum(len(segment["blocks"]) for segment in segments)


def _frame(depth: int) -> dict[str, Any]:
    file = (
        "train.py"
        if depth % 20 == 19
        else f"/venv/lib/python3.11/site-packages/torch/nn/modules/module{depth}.py"
    )
    return {"filename": file, "line": depth, "name": f"forward_{depth}"}


def _stack(dice: random.Random, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    start = dice.randrange(len(frames) - 40)
    return frames[start : start + 40]


def _segment(dice: random.Random, index: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    address = 0x7F0000000000 + index * 64 * MIB
    blocks, at = [], address
    for _ in range(50):
        used = dice.random() < 0.6
        length = dice.randrange(1, 64) * 512
        blocks.append({
            "address": at, "size": length, "requested_size": length - 100, "state": "active_allocated" if used else "inactive",
            "frames": _stack(dice, frames) if used else [],
        })  # fmt: skip
        at += length
    return {
        "device": index % 8, "address": address, "total_size": at - address, "allocated_size": 0, "active_size": 0, "requested_size": 0, "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, index % 3), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def _entry(dice: random.Random, index: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "action": "alloc", "addr": 0x7F0000000000 + index * 512, "size": dice.randrange(2**30), "stream": 0, "time_us": 10**15 + index,
        "compile_context": "N/A", "user_metadata": "", "frames": _stack(dice, frames),
    }  # fmt: skip
