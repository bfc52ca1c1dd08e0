"""`python -m bench.storage [--hours H] [--write]`: see the package."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from bench.storage import fleet, others, ours, samples, table

RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def main() -> None:
    """Run everything in one go and print the section."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--skip-others", action="store_true", help="only gpudiag itself")
    parser.add_argument("--skip-fleet", action="store_true", help="without the agents into Postgres")
    parser.add_argument("--write", action="store_true", help=f"put the section into {RESULTS.name}")
    options = parser.parse_args()
    if options.hours < fleet.HOURS and not options.skip_fleet:
        parser.error(f"the agents into Postgres need --hours {fleet.HOURS:g} or more; or --skip-fleet")
    missing = [] if options.skip_others else others.available()
    if missing:
        sys.exit(f"needs {', '.join(missing)}: apt-get install prometheus victoria-metrics")
    seconds = int(options.hours * 3600)
    start_ms = (time.time_ns() // 1_000_000 // 86_400_000 - 2) * 86_400_000
    made = samples.days(start_ms, seconds)
    with tempfile.TemporaryDirectory(prefix="gpudiag-bench-") as name:
        folder = Path(name)
        mine = ours.run(folder, made, start_ms, seconds)
        _say(f"gpudiag: {mine}")
        theirs = {}
        if not options.skip_others:
            theirs["VictoriaMetrics 1.79"] = others.victoria(folder, made)
            _say(f"victoria: {theirs}")
            theirs["Prometheus 2.42"] = others.prometheus(folder, made)
            _say(f"prometheus: {theirs}")
        many = None if options.skip_fleet else fleet.run(folder, made, start_ms)
    text = table.render(_machine(), options.hours, mine, theirs, many)
    print(text)
    if options.write:
        table.put(RESULTS, text)


def _machine() -> str:
    """CPU model and cores; no names of hosts."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores (load {load:.1f} at the end), Python {platform.python_version()}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
