"""`gpudiag compare 41 42`: why is one run slower than the other?"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.language import speaks

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words
    from gpudiag.cli.render.style import Style
    from gpudiag.rules.model import Diagnosis
    from gpudiag.rules.node_work import Crew
    from gpudiag.rules.ruleset import RuleSet
    from gpudiag.storage.job import Job
    from gpudiag.storage.store import Reader

HOST_METRICS = (
    "job_cpus_allowed",
    "loader_workers",
    "loader_cpu_ratio",
    "main_cpu_ratio",
    "job_memory_limit_bytes",
)


@dataclass(frozen=True)
class Difference:
    """GPU-hours of one cause or phase in both jobs, and their shares of each job's allocation."""

    name: str
    first: float
    second: float
    first_ratio: float
    second_ratio: float

    @property
    def change(self) -> float:
        """GPU-hours that the second job spent more."""
        return self.second - self.first


@dataclass(frozen=True)
class Fact:
    """Something about the environment of both jobs; `differs` when the difference is worth a look."""

    name: str
    first: str
    second: str
    differs: bool


@dataclass(frozen=True)
class Comparison:
    """The second job set against the first; differences largest first."""

    first: Diagnosis
    second: Diagnosis
    causes: tuple[Difference, ...]
    phases: tuple[Difference, ...]
    environment: tuple[Fact, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


@click.command()
@click.argument("first")
@click.argument("second")
@click.option("--db", metavar="URL", help="Database (default: GPUDIAG_DB, then the configured one).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@speaks
def command(first: str, second: str, db: str | None, as_json: bool, words: Words) -> None:
    """Why is job SECOND slower than job FIRST? Causes by GPU-hours, aligned phases, environment."""
    from gpudiag.cli.database import database_url
    from gpudiag.cli.processes import diagnosing
    from gpudiag.cli.render.style import terminal_style
    from gpudiag.cli.selection import select_job
    from gpudiag.cli.site import site_rules
    from gpudiag.storage.open import open_reader

    url, rules = database_url(db, os.environ), site_rules(os.environ)
    reader = open_reader(url)
    try:
        jobs = [select_job(reader, wanted) for wanted in (first, second)]
        with diagnosing(reader, url, jobs, words) as (read, crew):
            both = [diagnosed(read, job, rules, crew) for job in jobs]
            hosts = [host_means(read, diagnosis) for diagnosis in both]
    finally:
        reader.close()
    comparison = compare(both[0], both[1], hosts[0], hosts[1])
    text = (
        as_document(comparison, words) if as_json else as_text(comparison, words, terminal_style(os.environ))
    )
    click.echo(text)


def diagnosed(reader: Reader, job: Job, rules: RuleSet, crew: Crew) -> Diagnosis:
    """The diagnosis of a job as of now."""
    from gpudiag.rules.diagnosis import diagnose

    return diagnose(reader, job, rules, now_ms=time.time_ns() // 1_000_000, crew=crew)


def host_means(reader: Reader, diagnosis: Diagnosis) -> Mapping[str, float]:
    """Means over all nodes of what the job had and used of its hosts; a metric nobody measured is absent."""
    import numpy as np

    from gpudiag.storage.sample import JOB_PREFIX, Source

    found: dict[str, list[float]] = {}
    for node in diagnosis.nodes:
        source = Source(node, JOB_PREFIX + diagnosis.job.key)
        block = reader.read(source, diagnosis.start_ms, diagnosis.end_ms, HOST_METRICS)
        for name, values in block.columns.items():
            if not np.isnan(values).all():
                found.setdefault(name, []).append(float(np.nanmean(values)))
    return {name: sum(values) / len(values) for name, values in found.items()}


def compare(
    first: Diagnosis, second: Diagnosis, first_host: Mapping[str, float], second_host: Mapping[str, float]
) -> Comparison:
    """Set two diagnoses against each other."""
    rules = [
        {finding.rule for finding in one.findings if not finding.explained_by} for one in (first, second)
    ]
    return Comparison(
        first,
        second,
        _ranked(_cause_hours(first), _cause_hours(second), first, second),
        _ranked(_phase_hours(first), _phase_hours(second), first, second),
        tuple(environment(first, second, first_host, second_host)),
        tuple(sorted(rules[0] - rules[1])),
        tuple(sorted(rules[1] - rules[0])),
    )


def _cause_hours(diagnosis: Diagnosis) -> Mapping[str, float]:
    return {bucket.cause: bucket.gpu_hours for bucket in diagnosis.waterfall if bucket.gpu_hours > 0}


def _phase_hours(diagnosis: Diagnosis) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for phase in diagnosis.phases:
        hours = phase.interval.seconds / 3600 * len(diagnosis.devices)
        found[phase.phase] = found.get(phase.phase, 0.0) + hours
    return found


def _ranked(
    first: Mapping[str, float], second: Mapping[str, float], one: Diagnosis, other: Diagnosis
) -> tuple[Difference, ...]:
    totals = max(one.total_gpu_hours, 1e-12), max(other.total_gpu_hours, 1e-12)
    rows = []
    for name in dict.fromkeys((*first, *second)):
        hours = first.get(name, 0.0), second.get(name, 0.0)
        rows.append(Difference(name, *hours, hours[0] / totals[0], hours[1] / totals[1]))
    return tuple(sorted(rows, key=lambda row: -abs(row.change)))


def environment(
    first: Diagnosis, second: Diagnosis, first_host: Mapping[str, float], second_host: Mapping[str, float]
) -> list[Fact]:
    """What the jobs ran on and how they were set up."""
    from gpudiag.cli.render.units import quantity
    from gpudiag.storage.catalog import METRICS

    facts = []
    for name, of in _FACTS.items():
        values = of(first), of(second)
        facts.append(Fact(name, *values, values[0] != values[1]))
    for name, (unit, tolerance, number) in _NUMBERS.items():
        facts.append(_number_fact(name, number(first), number(second), unit, tolerance))
    for name in HOST_METRICS:
        unit = METRICS[("job", name)].unit
        numbers = first_host.get(name, math.nan), second_host.get(name, math.nan)
        if not all(map(math.isnan, numbers)):
            facts.append(_number_fact(name, *numbers, unit, 0.05))
    return [fact for fact in facts if {fact.first, fact.second} != {quantity(None, "")}]


def _number_fact(name: str, first: float, second: float, unit: str, tolerance: float) -> Fact:
    """A measured number; it differs when apart by more than `tolerance` of the larger, or measured only once."""
    from gpudiag.cli.render.units import quantity

    missing = math.isnan(first), math.isnan(second)
    apart = not any(missing) and abs(first - second) > tolerance * max(abs(first), abs(second))
    return Fact(name, quantity(first, unit), quantity(second, unit), apart or missing[0] != missing[1])


def _attributes(name: str) -> Callable[[Diagnosis], str]:
    """Distinct values of a device attribute, `-` when unknown."""

    def values(diagnosis: Diagnosis) -> str:
        found = {
            str(getattr(report.device, name)) for report in diagnosis.devices if report.device is not None
        }
        return ", ".join(sorted(found - {"", "None"})) or "-"

    return values


def _mean(metric: str, part: str) -> Callable[[Diagnosis], float]:
    def value(diagnosis: Diagnosis) -> float:
        found = [
            getattr(one.statistics[metric], part) for one in diagnosis.devices if metric in one.statistics
        ]
        return sum(found) / len(found) if found else math.nan

    return value


def _highest(metric: str) -> Callable[[Diagnosis], float]:
    def value(diagnosis: Diagnosis) -> float:
        found = [one.statistics[metric].maximum for one in diagnosis.devices if metric in one.statistics]
        return max(found, default=math.nan)

    return value


def _headroom(diagnosis: Diagnosis) -> float:
    """Share of device memory that no device ever needed: what a larger batch could use."""
    free = [
        1 - report.statistics["memory_used_bytes"].maximum / report.device.memory_total_bytes
        for report in diagnosis.devices
        if report.device and report.device.memory_total_bytes and "memory_used_bytes" in report.statistics
    ]
    return min(free, default=math.nan)


_FACTS: Mapping[str, Callable[[Diagnosis], str]] = {
    "GPU model": _attributes("model"),
    "GPUs": lambda diagnosis: str(len(diagnosis.devices)),
    "nodes": lambda diagnosis: (
        ", ".join(diagnosis.nodes) if len(diagnosis.nodes) <= 4 else str(len(diagnosis.nodes))
    ),
    "driver": _attributes("driver"),
    "state": lambda diagnosis: diagnosis.job.state,
}
_NUMBERS: Mapping[str, tuple[str, float, Callable[[Diagnosis], float]]] = {
    "SM clock, median": ("hertz", 0.03, _mean("sm_clock_hertz", "p50")),
    "power limit": ("watts", 0.01, _mean("power_limit_watts", "p50")),
    "power, mean": ("watts", 0.1, _mean("power_watts", "mean")),
    "temperature, highest": ("celsius", 0.08, _highest("temperature_celsius")),
    "SM activity, mean": ("ratio", 0.05, _mean("sm_active_ratio", "mean")),
    "GPU memory headroom": ("ratio", 0.1, _headroom),
}

FACT_NAMES = (*_FACTS, *_NUMBERS)


def as_document(comparison: Comparison, words: Words) -> str:
    """The comparison as JSON, hours in GPU-hours."""
    from gpudiag.cli.render.json import SCHEMA_VERSION, job_fields

    def rows(differences: Sequence[Difference], name: str) -> list[dict[str, Any]]:
        return [
            {
                name: one.name,
                "first_gpu_hours": round(one.first, 6),
                "second_gpu_hours": round(one.second, 6),
                "change_gpu_hours": round(one.change, 6),
                "first_ratio": round(one.first_ratio, 6),
                "second_ratio": round(one.second_ratio, 6),
            }
            for one in differences
        ]

    document = {
        "schema_version": SCHEMA_VERSION,
        **{
            name: {
                **job_fields(one.job),
                "gpu_hours": round(one.total_gpu_hours, 6),
                "verdict": words(one.verdict),
            }
            for name, one in (("first", comparison.first), ("second", comparison.second))
        },
        "causes": rows(comparison.causes, "cause"),
        "phases": rows(comparison.phases, "phase"),
        "environment": [
            {"name": fact.name, "first": fact.first, "second": fact.second, "differs": fact.differs}
            for fact in comparison.environment
        ],
        "findings": {"only_first": list(comparison.only_first), "only_second": list(comparison.only_second)},
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


def as_text(comparison: Comparison, words: Words, style: Style) -> str:
    """Who was compared, what it cost by cause and phase, which findings are new, what was different around them."""
    from rich.text import Text

    from gpudiag.cli.render import labels

    parts: list[Any] = [Text(line) for line in _heads(comparison, words, style.zone)]
    parts += [Text(""), Text(conclusion(comparison, words), "bold"), Text("")]
    parts += _difference_table(
        comparison.causes, words("where the GPU time went"), labels.CAUSES, comparison, words
    )
    parts += _difference_table(comparison.phases, words("phases"), labels.PHASES, comparison, words)
    for job, rules in (
        (comparison.first.job, comparison.only_first),
        (comparison.second.job, comparison.only_second),
    ):
        if rules:
            parts.append(Text(words("found only in {job}: {rules}", job=job.id, rules=", ".join(rules))))
    return style.print([*parts, *_environment_table(comparison, words)])


def conclusion(comparison: Comparison, words: Words) -> str:
    """The one sentence: how much more GPU time, and the cause that grew most."""
    from gpudiag.cli.render import labels
    from gpudiag.cli.render.units import harmless, hours, percent
    from gpudiag.rules.verdict import PRODUCTIVE

    first, second = comparison.first, comparison.second
    change = second.total_gpu_hours - first.total_gpu_hours
    losses = [one for one in comparison.causes if one.name not in PRODUCTIVE and one.change > 0]
    shares = [sum(b.ratio for b in one.waterfall if b.cause in PRODUCTIVE) for one in (first, second)]
    head = words(
        "{second}: {change} of GPU time against {first}, useful share {before} → {after}",
        first=harmless(first.job.id),
        second=harmless(second.job.id),
        change=f"{change:+.2f} GPU-h",
        before=percent(shares[0]),
        after=percent(shares[1]),
    )
    if not losses:
        return words("{head}; no loss grew.", head=head)
    cause = words(labels.CAUSES.get(losses[0].name, losses[0].name))
    grown = hours(losses[0].change)
    return words("{head}; what grew most: {cause}, by {hours}.", head=head, cause=cause, hours=grown)


def _heads(comparison: Comparison, words: Words, zone: tzinfo) -> list[str]:
    from gpudiag.cli.render.summary import hardware
    from gpudiag.cli.render.units import duration, harmless, hours, instant

    lines = []
    for one in (comparison.first, comparison.second):
        facts = (
            harmless(one.job.name, 40),
            harmless(one.job.user, 40),
            hardware(one, words),
            hours(one.total_gpu_hours),
        )
        length = duration((one.end_ms - one.start_ms) / 1000)
        title = words("Job {id}", id=harmless(one.job.id, 40))
        lines.append(f"{title}  {instant(one.start_ms, zone)} ({length})  " + " · ".join(filter(None, facts)))
    return lines


def _difference_table(
    differences: Sequence[Difference],
    title: str,
    names: Mapping[str, str],
    comparison: Comparison,
    words: Words,
) -> list[Any]:
    from rich.padding import Padding
    from rich.table import Table

    from gpudiag.cli.render.units import harmless, percent

    shown = [one for one in differences if max(one.first, one.second) >= 0.005]
    if not shown:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    heads = (
        title,
        harmless(comparison.first.job.id, 20),
        "",
        harmless(comparison.second.job.id, 20),
        "",
        words("change"),
    )
    for name in heads:
        table.add_column(name, justify="left" if name == title else "right", no_wrap=True)
    for one in shown:
        label = words(names.get(one.name, one.name))
        hours = (f"{one.first:.2f}", percent(one.first_ratio), f"{one.second:.2f}", percent(one.second_ratio))
        table.add_row(harmless(label), *hours, f"{one.change:+.2f} GPU-h")
    return [Padding(table, (0, 0, 1, 0))]


def _environment_table(comparison: Comparison, words: Words) -> list[Any]:
    from rich.table import Table

    from gpudiag.cli.render import labels
    from gpudiag.cli.render.units import harmless

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in (words("environment"), comparison.first.job.id, comparison.second.job.id, ""):
        table.add_column(harmless(name, 40))
    for fact in comparison.environment:
        mark = words("differs") if fact.differs else ""
        name = words(labels.METRICS.get(fact.name, fact.name))
        table.add_row(name, harmless(fact.first), harmless(fact.second), mark)
    return [table]
