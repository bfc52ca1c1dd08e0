"""Provokes known faults on a real GPU and checks that the rules say so. Under five minutes; needs PyTorch with CUDA.

    python bench/gpu/provoke.py OUT [--torch-python PYTHON]

Each scenario is a short training program run as `gpudiag run --probe`. Afterwards the job's report must name the
expected rule (and, for the healthy one, nothing above info). OUT receives the database, each report as JSON, each
recording as a trace (a few hundred kB), and `result.json` with what was expected and what came.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

COMMON = """
import time, torch
device = torch.device("cuda")
def layer(width): return torch.nn.Linear(width, width, device=device)
def until(seconds):
    end = time.monotonic() + seconds
    step = 0
    while time.monotonic() < end:
        yield step
        step += 1
"""
HEALTHY = (
    COMMON
    + """
model = torch.nn.Sequential(*[layer(8192) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = torch.randn(8192, 8192, device=device)
for _ in until({seconds}):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(data).float().square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
"""
)
STALL = (
    COMMON
    + """
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, index):
        end = time.perf_counter() + 0.4
        while time.perf_counter() < end: pass
        return torch.randn(1024)
model = layer(1024)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = iter(DataLoader(Slow(), batch_size=8, num_workers=2))
work = torch.randn(16384, 16384, device=device, dtype=torch.bfloat16)
for _ in until({seconds}):
    batch = next(loader).to(device)
    for _ in range(20): work @ work
    model(batch).sum().backward(); optimizer.step(); optimizer.zero_grad()
    torch.cuda.synchronize()
"""
)
LEAK = (
    COMMON
    + """
total = torch.cuda.get_device_properties(0).total_memory
work = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
kept = []
parameter = torch.nn.Parameter(torch.zeros(8, device=device)); parameter.grad = torch.zeros_like(parameter)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in until({seconds} * 2):
    for _ in range(50): work @ work
    optimizer.step(); torch.cuda.synchronize()
    if step % 5 == 0: kept.append(torch.empty(total // 200, dtype=torch.uint8, device=device))
    time.sleep(0.1)
"""
)
FRAGMENTED = (
    COMMON
    + """
total = torch.cuda.get_device_properties(0).total_memory
parameter = torch.nn.Parameter(torch.zeros(8, device=device)); parameter.grad = torch.zeros_like(parameter)
optimizer = torch.optim.SGD([parameter], lr=0.1)
piece = total // 400
kept = []
for step in until({seconds}):
    large = [torch.empty(piece + 2**21 * (step % 7), dtype=torch.uint8, device=device) for _ in range(8)]
    if step % 4 == 0 and len(kept) < 120: kept.append(torch.empty(2**20 * 3, dtype=torch.uint8, device=device))
    del large[::2]
    work = torch.randn(4096, 4096, device=device); (work @ work).sum().item()
    if torch.cuda.memory_reserved() > 0.9 * total: del large
    optimizer.step(); torch.cuda.synchronize(); time.sleep(0.05)
"""
)


@dataclass(frozen=True)
class Scenario:
    """A program, and the rules of which one must be found; none: nothing above info may be found."""

    name: str
    program: str
    seconds: int
    expected: tuple[str, ...]


SCENARIOS = (
    Scenario("healthy", HEALTHY, 45, ()),
    Scenario("loader-stall", STALL, 60, ("input/data-loader-stall", "input/cpu-bound-loader")),
    Scenario("leak", LEAK, 60, ("memory/gpu-oom-imminent",)),
    Scenario("fragmentation", FRAGMENTED, 60, ("memory/fragmentation", "memory/allocator-thrash")),
)


def gpudiag(url: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpudiag", *arguments],
        env={**os.environ, "GPUDIAG_DB": url}, capture_output=True, text=True, check=check,
    )  # fmt: skip


def run(scenario: Scenario, number: int, out: Path, python: str, url: str) -> dict[str, object]:
    program = out / f"{scenario.name}.py"
    program.write_text(scenario.program.replace("{seconds}", str(scenario.seconds)))
    began = time.monotonic()
    job = str(100 + number)
    ended = gpudiag(url, "run", "--db", url, "--probe", "--job", job, "--", python, str(program), check=False)
    report = json.loads(gpudiag(url, "report", "--job", job, "--json").stdout)
    (out / f"{scenario.name}.json").write_text(json.dumps(report, indent=1))
    gpudiag(
        url, "export", "--job", job, "--format", "parquet", "--output", str(out / scenario.name), check=False
    )
    found = {finding["rule"]: finding["severity"] for finding in report["findings"]}
    loud = [rule for rule, severity in found.items() if severity != "info"]
    right = bool(set(scenario.expected) & set(found)) if scenario.expected else not loud
    return {
        "scenario": scenario.name, "expected": scenario.expected, "found": found, "right": right,
        "exit_code": ended.returncode, "seconds": round(time.monotonic() - began, 1),
        "not_evaluated": report["rules"]["not_evaluated"],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--torch-python", default=sys.executable, help="interpreter that has PyTorch with CUDA"
    )
    options = parser.parse_args()
    check = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([options.torch_python, "-c", check], check=False).returncode:
        print("not run: that interpreter has no PyTorch with a CUDA device", file=sys.stderr)
        return 5
    options.out.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{options.out.absolute()}/provoked.db"
    results = [
        run(one, number, options.out, options.torch_python, url) for number, one in enumerate(SCENARIOS)
    ]
    (options.out / "result.json").write_text(json.dumps(results, indent=1))
    for result in results:
        print(f"{'ok  ' if result['right'] else 'MISS'} {result['scenario']}: found {result['found']}")
    return 0 if all(result["right"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
