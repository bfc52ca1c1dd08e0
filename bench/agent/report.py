"""The section of bench/RESULTS.md on the agent, and the budgets that it must keep."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.agent.subjects import Measured

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
HEADING = "## Agent"
MAX_CPU_RATIO = 0.01
MAX_RSS_BYTES = 100 * 2**20
MAX_SCRAPE_SECONDS = 0.020
MAX_OF_PEER = 1 / 3
MIB = 2**20


@dataclass(frozen=True)
class Wedged:
    """While the driver hangs: the parent's longest delay beyond its interval, its usual interval, whether it lived."""

    longest_delay_seconds: float
    interval_seconds: float
    alive: bool


def within_budget(measured: Sequence[Measured], wedged: Wedged) -> bool:
    """Whether every budget is kept."""
    return all(kept for _, _, kept in budgets(measured, wedged))


def budgets(measured: Sequence[Measured], wedged: Wedged) -> list[tuple[str, str, bool]]:
    """What was promised, what was measured, whether it holds."""
    ours = measured[0]
    peers = {one.name: one for one in measured}
    rows = [
        (
            "CPU of parent and probe <= 1 % of a core",
            _percent(ours.cpu_ratio),
            ours.cpu_ratio <= MAX_CPU_RATIO,
        ),
        ("RSS of parent and probe <= 100 MiB", _mib(ours.rss_bytes), ours.rss_bytes <= MAX_RSS_BYTES),
        (
            "scrape of /metrics <= 20 ms",
            _ms(ours.scrape_seconds),
            ours.scrape_seconds is not None and ours.scrape_seconds <= MAX_SCRAPE_SECONDS,
        ),
        (
            "a wedged driver delays the parent by at most one tick",
            f"{max(wedged.longest_delay_seconds, 0):.2f} s",
            wedged.alive and wedged.longest_delay_seconds <= wedged.interval_seconds,
        ),
    ]
    if "nvitop-exporter" in peers:
        ratio = ours.cpu_ratio / peers["nvitop-exporter"].cpu_ratio
        rows.append(("CPU <= 1/3 of nvitop-exporter in the same run", f"{ratio:.2f}", ratio <= MAX_OF_PEER))
    return rows


def section(measured: Sequence[Measured], wedged: Wedged, gpus: int, seconds: float) -> str:
    """Markdown."""
    ours = measured[0]
    lines = [
        HEADING,
        "",
        (
            f"`make bench-agent`: fake driver with {gpus} H200, one job with a process tree on all of them, 1 s interval, "
            f"{seconds:.0f} s after warming up, all but gpustat in the same seconds on a driver each, scraped every 15 s; Python "
            f"{platform.python_version()}. CPU is the time on a core that the kernel counted."
        ),
        "",
        "| what | CPU of a core | of ours | RSS | driver calls per second | scrape | does |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.name} | {_percent(one.cpu_ratio)} | {one.cpu_ratio / ours.cpu_ratio:.2f} | {_mib(one.rss_bytes)} | "
        f"{one.calls_per_second:.0f} | {_ms(one.scrape_seconds)} | {one.note} |"
        for one in measured
    ]
    lines += ["", "| budget | measured | kept |", "|---|---|---|"]
    lines += [
        f"| {what} | {value} | {'yes' if kept else '**no**'} |"
        for what, value, kept in budgets(measured, wedged)
    ]
    return "\n".join([*lines, ""])


def put(text: str, path: Path = RESULTS) -> None:
    """Replace the section in the file, or append it."""
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results of the benchmarks\n"
    begin = old.find(HEADING + "\n")
    if begin < 0:
        path.write_text(f"{old.rstrip()}\n\n{text}", encoding="utf-8")
        return
    end = old.find("\n## ", begin + 1)
    path.write_text(old[:begin] + text + (old[end:] if end >= 0 else ""), encoding="utf-8")


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.2f} %"


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
