"""Run a program on the fake driver: `python tests/fake_nvml --gpus 8 -- gpudiag agent --db sqlite:///x.db`.

While it runs, GPU values move: data-loader stalls of some seconds in every minute, memory that grows, energy that adds up.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_nvml.control import GIB, FakeNvml, build


def load(fake: FakeNvml, gpus: int, seconds: float) -> None:
    """Values of a training job, `seconds` after its start."""
    stalled = seconds % 60 > 50
    for gpu in range(gpus):
        busy = random.gauss(4, 1) if stalled else random.gauss(82, 3)
        fake.gpm(gpu, 2, min(100.0, max(0.0, busy)))
        fake.gpm(gpu, 5, max(0.0, busy * 0.55))
        fake.set(gpu, "gpu_util", 8 if stalled else 99)
        fake.set(gpu, "power_mw", int(120_000 + 5_500 * max(0.0, busy)))
        fake.set(gpu, "memory_used", int(60 * GIB + min(70.0, seconds / 600) * GIB))
        fake.set(gpu, "temperature", int(45 + 15 * (1 - math.exp(-seconds / 120))))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        fake = FakeNvml(build(Path(directory)), Path(directory) / "state", arguments.gpus)
        start = time.monotonic()
        with subprocess.Popen(arguments.command, env={**os.environ, **fake.environ}) as child:
            try:
                while child.poll() is None:
                    load(fake, arguments.gpus, time.monotonic() - start)
                    time.sleep(0.5)
            except KeyboardInterrupt:
                child.wait()
        fake.close()
        return child.returncode


if __name__ == "__main__":
    sys.exit(main())
