"""What the start-up hook costs a training step, with the real PyTorch on the CPU; `make bench-probe`.

The same loop (DataLoader batch, optimizer step) runs with and without the hook, in turn, each in a process of its
own; the best of its repetitions counts, because everything else on the machine only ever adds time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "src/gpudiag/probe/hook"
STEPS, REPETITIONS = 2000, 7
PROGRAM = f"""
import time, torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for parameter in model.parameters(): parameter.grad = torch.zeros_like(parameter)
best = float("inf")
for _ in range({REPETITIONS}):
    batches = iter(DataLoader(torch.zeros({STEPS}, 8), batch_size=1))
    began = time.perf_counter()
    for batch in batches: optimizer.step()
    best = min(best, (time.perf_counter() - began) / {STEPS})
print(best)
"""


def seconds_per_step(python: str, program: Path, hook: bool) -> float:
    environment = {**os.environ, "GPUDIAG_PROBE_SOCKET": str(program.parent / "nobody.sock")}
    environment["PYTHONPATH"] = str(HOOK) if hook else ""
    done = subprocess.run([python, str(program)], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has PyTorch")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM)
        pairs = [
            (
                seconds_per_step(options.python, program, False),
                seconds_per_step(options.python, program, True),
            )
            for _ in range(options.pairs)
        ]
    costs = sorted(with_hook - without for without, with_hook in pairs)
    median = statistics.median(costs)
    print(f"step without hook {statistics.median(pair[0] for pair in pairs) * 1e6:.1f} us")
    print(f"cost of the hook  {median * 1e6:.1f} us a step ({costs[0] * 1e6:.1f} to {costs[-1] * 1e6:.1f})")
    print(f"share of a step of 100 ms: {median / 0.1:.4%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
