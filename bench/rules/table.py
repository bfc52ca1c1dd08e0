"""The benchmark as Markdown, and into its section of bench/RESULTS.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench.rules import scores
from bench.rules.baselines import NAMES
from bench.rules.outcome import Outcome
from bench.rules.scores import RuleScore

HEADING = "## Rules"


def section(sets: dict[str, Sequence[Outcome]], maturities: dict[str, str], took: float) -> str:
    """The whole section: a part per set of scenarios, held-out last."""
    parts = [HEADING, _preface(sets, took)]
    for name, outcomes in sets.items():
        parts += [
            f"### {name}",
            _headline(outcomes, maturities),
            _rules(outcomes, maturities),
            _baselines(outcomes),
        ]
    return "\n\n".join(parts) + "\n"


def put(path: Path, text: str) -> None:
    """Replace the section in the file, or append it."""
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results of the benchmarks\n\n"
    begin = old.find(HEADING + "\n")
    if begin < 0:
        path.write_text(old.rstrip() + "\n\n" + text, encoding="utf-8")
        return
    end = old.find("\n## ", begin + 1)
    path.write_text(old[:begin] + text + (old[end:] if end >= 0 else ""), encoding="utf-8")


def _preface(sets: dict[str, Sequence[Outcome]], took: float) -> str:
    counts = ", ".join(f"{len(outcomes)} {name.lower()}" for name, outcomes in sets.items())
    return (
        f"`make bench-rules`: {counts} simulated jobs, {took / 60:.1f} minutes. Faults count from 1.5 times the effect "
        "that the sources call worth a finding. A hit fires on a faulty device, at least half inside the fault, before "
        "it is over. A finding that another explains is no alarm. Brackets: 95 % bootstrap over jobs. Simulated "
        "numbers are an upper bound of what real clusters will show."
    )


def _headline(outcomes: Sequence[Outcome], maturities: dict[str, str]) -> str:
    stable = {rule for rule, maturity in maturities.items() if maturity == "stable"}
    warnings = scores.alarm_rate(outcomes, ("warning", "critical"), stable)
    critical = scores.alarm_rate(outcomes, ("critical",), stable)
    causes = [float(right) for right in scores.top_cause(outcomes)]
    by_rule = scores.by_rule(outcomes)
    leads = scores.together(by_rule, scores.GROUPS["imminent OOM"]).leads
    speed = sum(o.gpu_hours for o in outcomes) / max(1e-9, sum(o.seconds for o in outcomes))
    rows = [
        ("false warnings per 1,000 healthy GPU-hours", f"{warnings[0]:.2f} ({warnings[1]} in {warnings[2]:.0f} h)", "<= 1"),
        ("false criticals per 1,000 healthy GPU-hours", f"{critical[0]:.2f} ({critical[1]})", "<= 0.1"),
        ("top-1 cause", _share(causes), ">= 0.90"),
        *_waterfall_rows(outcomes),
        ("OOM announced before it happens, median", f"{np.median(leads) / 60 if leads else float('nan'):.0f} min ({len(leads)} leaks)", ">= 10 min"),
        ("live and afterwards identical, in every field of every finding", f"{sum(not o.live for o in outcomes)} of {len(outcomes)} scenarios", "all"),
        ("diagnosis with all rules, per CPU second", f"{speed:.0f} GPU-hours/s", ">= 100"),
    ]  # fmt: skip
    lines = ["| what | measured | wanted |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    for group, prefixes in scores.GROUPS.items():
        total = scores.together(by_rule, prefixes)
        lines.append(f"| {group}: precision / recall | {_pair(total)} | >= 0.95 |")
    return "\n".join(lines)


def _waterfall_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str]]:
    rows = []
    for faults, name, limit in ((1, "one cause", 3), (2, "two causes", 6), (0, "healthy", 3)):
        means, worst = scores.waterfall_errors(outcomes, faults)
        if means:
            low, high = scores.interval(means, np.mean)  # type: ignore[arg-type]
            text = f"{np.mean(means):.1f} [{low:.1f}, {high:.1f}]; worst bucket {np.mean(worst):.1f}, p90 {np.quantile(worst, 0.9):.1f}"
            rows.append((f"waterfall error in points, {name}: mean over buckets", text, f"<= {limit}"))
    return rows


def _rules(outcomes: Sequence[Outcome], maturities: dict[str, str]) -> str:
    lines = [
        "| rule | maturity | hits | misses | false | precision | recall | time to detect p50 / p95 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = scores.by_rule(outcomes)
    for rule in sorted({*found, *maturities}):
        score = found.get(rule, RuleScore())
        delays = [delay / 60 for delay in score.delays]
        when = f"{np.median(delays):.0f} / {np.quantile(delays, 0.95):.0f} min" if delays else ""
        counts = f"{len(score.hits)} | {len(score.misses)} | {len(score.false)}"
        hits = [1.0] * len(score.hits)
        precision = _share(hits + [0.0] * len(score.false))
        recall = _share(hits + [0.0] * len(score.misses))
        lines.append(f"| {rule} | {maturities.get(rule, '')} | {counts} | {precision} | {recall} | {when} |")
    return "\n".join(lines)


def _baselines(outcomes: Sequence[Outcome]) -> str:
    groups = {
        "data-loader stalls": ("input/",),
        "low utilisation": ("util/",),
        "imminent OOM": ("memory/gpu-oom",),
    }
    lines = [
        "| detector | faults | recall | precision | alarms per 1,000 healthy GPU-hours |",
        "|---|---|---|---|---|",
    ]
    for name in NAMES:
        for group, prefixes in groups.items():
            recall, precision, rate = scores.baseline_scores(outcomes, name, prefixes)
            lines.append(f"| {name} | {group} | {recall:.2f} | {precision:.2f} | {rate:.0f} |")
    return "\n".join(lines)


def _pair(score: RuleScore) -> str:
    return f"{score.precision:.2f} / {score.recall:.2f} ({len(score.hits)} of {len(score.hits) + len(score.misses)}, {len(score.false)} false)"


def _share(values: Sequence[float]) -> str:
    if not values:
        return "-"
    low, high = scores.interval(values, np.mean)  # type: ignore[arg-type]
    return f"{np.mean(values):.2f} [{low:.2f}, {high:.2f}]"
