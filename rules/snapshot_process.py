"""Reading a memory snapshot from somebody else in a process of its own, with limits on memory and time.

A pickle of plain data runs no code, but a few bytes of it can ask for all memory, or nest so deep that the interpreter
ends. Here that ends the process that reads, and the command says so.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any, BinaryIO

from gpudiag.errors import InputError
from gpudiag.rules.memory_snapshot import Segment, SnapshotBlock, parse

# Python objects of a snapshot take up to 20 times the file's bytes.
_MEMORY_PER_BYTE = 40
_MEMORY_LEAST = 1 << 30
_MEMORY_OF_A_PIPE = 16 << 30
_SECONDS_PER_MIB = 2
_SECONDS_LEAST = 60


def load(stream: BinaryIO, name: str) -> tuple[Segment, ...]:
    """The segments of a snapshot; raises `InputError` for anything but one made of plain data."""
    given, taken = _as_input(stream)
    with subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        output, _ = child.communicate(taken)
    if child.returncode:
        reason = _ended(child.returncode)
        raise InputError(f"{name}: not a memory snapshot: {reason}")
    answer = json.loads(output)
    if "error" in answer:
        raise InputError(f"{name}: {answer['error']}")
    return _segments(answer)


def _as_input(stream: BinaryIO) -> tuple[int, bytes | None]:
    try:
        return stream.fileno(), None
    except (OSError, io.UnsupportedOperation):
        return subprocess.PIPE, stream.read()


def _ended(returncode: int) -> str:
    if returncode == -signal.SIGXCPU:
        return "reading it took too long"
    if returncode < 0:
        return f"signal {-returncode} ended the process that read it"
    return f"the process that read it ended with {returncode}"


def _segments(answer: dict[str, Any]) -> tuple[Segment, ...]:
    sites: list[str] = answer["sites"]
    return tuple(
        Segment(
            device=device,
            address=address,
            size=size,
            stream=stream,
            kind=kind,
            pool_id=(pool_id[0], pool_id[1]),
            is_expandable=is_expandable,
            blocks=tuple(_blocks(flat, sites)),
        )
        for device, address, size, stream, kind, pool_id, is_expandable, flat in answer["segments"]
    )


def _blocks(flat: list[int], sites: list[str]) -> Iterable[SnapshotBlock]:
    each = iter(flat)
    for address, size, used, site in zip(each, each, each, each, strict=True):
        yield SnapshotBlock(address, size, bool(used), sites[site])


def _answer(segments: Iterable[Segment]) -> dict[str, Any]:
    sites: dict[str, int] = {}
    return {
        "segments": [
            (
                *(segment.device, segment.address, segment.size, segment.stream, segment.kind),
                *(segment.pool_id, segment.is_expandable),
                list(
                    chain.from_iterable(
                        (
                            block.address,
                            block.size,
                            int(block.used),
                            sites.setdefault(block.where, len(sites)),
                        )
                        for block in segment.blocks
                    )
                ),
            )
            for segment in segments
        ],
        "sites": list(sites),
    }


def _limit(stream: BinaryIO) -> None:
    size = os.fstat(stream.fileno()).st_size
    memory = max(_MEMORY_LEAST, size * _MEMORY_PER_BYTE) if size else _MEMORY_OF_A_PIPE
    _lower(resource.RLIMIT_AS, memory)
    _lower(resource.RLIMIT_CPU, _SECONDS_LEAST + max(size, 1) * _SECONDS_PER_MIB // 2**20)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, limit: int) -> None:
    _, most = resource.getrlimit(which)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(which, (limit, most))


def main() -> None:
    """Read a snapshot from standard input, write its segments or what is wrong with it to standard output."""
    stream = sys.stdin.buffer
    _limit(stream)
    try:
        answer = _answer(parse(stream))
    except InputError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": "not a memory snapshot: it asks for too much memory"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
