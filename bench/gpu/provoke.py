"""Provokes known faults on a real GPU and checks that the rules say so; takes under five minutes.

    python bench/gpu/provoke.py OUT [--torch-python PYTHON] [--scale 1.0]

Needs a GPU with SM activity (Hopper or newer; older ones through DCGM), nearly all of its memory free, and an interpreter with
PyTorch for CUDA, which need not be the one that has gpudiag. Each program of bench/gpu/programs runs as a job of `gpudiag run
--probe`; its report must name an expected rule, and that of the healthy one nothing above info. OUT receives the database, each
report, each recording as a trace, and result.json. Exit code: 0 all as expected, 1 not, 5 no such GPU here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HAS_CUDA = "import sys, torch; sys.exit(not torch.cuda.is_available())"
FIRST_JOB = 101


@dataclass(frozen=True)
class Scenario:
    """A program, how long it trains, and the rules of which one must be found; none: nothing above info may be."""

    name: str
    seconds: float
    expected: tuple[str, ...]


SCENARIOS = (
    Scenario("healthy", 25, ()),
    Scenario("loader_stall", 85, ("input/data-loader-stall", "input/cpu-bound-loader")),
    Scenario("leak", 85, ("memory/gpu-oom-imminent",)),
    Scenario("fragmentation", 55, ("memory/fragmentation", "memory/allocator-thrash")),
)


@dataclass(frozen=True)
class Outcome:
    """What a scenario came to; `found` is severities by rule."""

    scenario: str
    job: str
    expected: tuple[str, ...]
    found: Mapping[str, str]
    right: bool
    exit_code: int
    seconds: float
    not_evaluated: list[dict[str, Any]]


class Stage:
    """A folder with its own database, in which each scenario runs as a job."""

    def __init__(self, folder: Path, torch_python: str) -> None:
        self._folder, self._torch_python = folder, torch_python
        self._url = f"sqlite:///{folder}/provoked.db"
        rules = str(HERE / "short-runs.yaml")
        self._environ = {**os.environ, "GPUDIAG_DB": self._url, "GPUDIAG_RULES__PATHS": rules}

    def play(self, job: str, scenario: Scenario, seconds: float) -> Outcome:
        """Run the program as this job, keep its report and its trace, and judge."""
        began = time.monotonic()
        program = [self._torch_python, str(HERE / "programs" / f"{scenario.name}.py"), str(seconds)]
        ended = self._gpudiag("run", "--db", self._url, "--probe", "--job", job, "--", *program, check=False)
        (self._folder / f"{scenario.name}.log").write_text(ended.stdout + ended.stderr)
        report = json.loads(self._gpudiag("report", "--job", job, "--json").stdout)
        (self._folder / f"{scenario.name}.report.json").write_text(json.dumps(report, indent=1))
        self._gpudiag(
            "export", "--job", job, "--format", "csv", "--output", f"{self._folder}/{scenario.name}.csv"
        )
        found = {finding["rule"]: finding["severity"] for finding in report["findings"]}
        return Outcome(
            scenario.name,
            job,
            scenario.expected,
            found,
            is_right(scenario, found),
            ended.returncode,
            round(time.monotonic() - began, 1),
            report["rules"]["not_evaluated"],
        )

    def _gpudiag(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpudiag", *arguments]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SystemExit(f"{' '.join(command)} failed with {done.returncode}: {done.stderr}")
        return done


def is_right(scenario: Scenario, found: Mapping[str, str]) -> bool:
    """Whether the findings are those that the scenario is for."""
    if scenario.expected:
        return any(rule in found for rule in scenario.expected)
    return all(severity == "info" for severity in found.values())


def main() -> int:
    """Run all scenarios; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--torch-python", default=sys.executable, help="interpreter that has PyTorch with CUDA"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much longer than usual each program runs"
    )
    options = parser.parse_args()
    if subprocess.run([options.torch_python, "-c", HAS_CUDA], capture_output=True, check=False).returncode:
        print("not run: that interpreter has no PyTorch with a CUDA device", file=sys.stderr)
        return 5
    options.out.mkdir(parents=True, exist_ok=True)
    stage = Stage(options.out.resolve(), options.torch_python)
    outcomes = []
    for job, scenario in enumerate(SCENARIOS, FIRST_JOB):
        outcome = stage.play(str(job), scenario, scenario.seconds * options.scale)
        found = ", ".join(f"{rule} ({severity})" for rule, severity in outcome.found.items()) or "nothing"
        print(
            f"{'ok  ' if outcome.right else 'MISS'} {outcome.seconds:5.1f} s  {scenario.name}: {found}",
            flush=True,
        )
        outcomes.append(outcome)
    (options.out / "result.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
