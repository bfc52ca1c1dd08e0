"""Kills an agent's writer again and again: `writer.py URL KILLS` prints the seconds whose flushes were acknowledged.

The writer is a fork of this process, so that a kill costs no start of an interpreter.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Feed

from gpudiag.storage.job import Event
from gpudiag.storage.open import open_store

STEP = 30


def write(url: str, first: int, out: int) -> None:
    """Flush after flush of 30 s, a seal every 30 flushes; each acknowledged one is told."""
    feed = Feed()
    store = open_store(url, node=feed.node, agent=True)
    for second in range(first, sys.maxsize, STEP):
        store.append(feed.frames(second, STEP))
        store.put_events([Event(feed.sources[0], feed.start_ms + 1000 * second, "flush", second)])
        os.write(out, f"{second}\n".encode())


def until_killed(url: str, first: int, delay: float) -> list[int]:
    """What a writer had acknowledged when SIGKILL came, `delay` after its first flush."""
    told, out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(url, first, out)
        finally:
            os._exit(1)
    os.close(out)
    text = os.read(told, 4096)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    while part := os.read(told, 65536):
        text += part
    os.close(told)
    return [int(line) for line in text.split()]


def main(url: str, kills: int) -> None:
    """As many kills at random moments."""
    rng, first = random.Random(0), 0
    acknowledged: list[int] = []
    for _ in range(kills):
        acknowledged += until_killed(url, first, rng.uniform(0.0, 0.2))
        first = (
            acknowledged[-1] + 2 * STEP
        )  # the flush after it may or may not be there; it is not written again
    print(json.dumps(acknowledged))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
