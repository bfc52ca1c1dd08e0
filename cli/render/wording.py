"""Phrases that the terminal, HTML and Markdown reports share; each renderer escapes them in its own way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import tzinfo

from gpudiag.cli.messages import Speaker
from gpudiag.cli.render import labels
from gpudiag.cli.render.evidence_labels import EVIDENCE
from gpudiag.cli.render.summary import hardware
from gpudiag.cli.render.units import UNBROKEN, duration, hours, instant, percent, quantity, span
from gpudiag.rules.model import DeviceReport, Diagnosis, Evidence, Finding
from gpudiag.storage.sample import Source


def facts(diagnosis: Diagnosis, words: Speaker, limit: int = 0) -> list[str]:
    """Name, user, state, exit code and hardware, as far as known; names cut to `limit` characters."""
    job = diagnosis.job
    code = words("exit code {code}", code=str(job.exit_code)) if job.exit_code else ""
    named = [
        text if not limit or len(text) <= limit else text[: limit - 1] + "…" for text in (job.name, job.user)
    ]
    state = words(labels.STATES.get(job.state, job.state))
    return [fact for fact in (*named, state, code, hardware(diagnosis, words)) if fact]


def times(diagnosis: Diagnosis, zone: tzinfo) -> str:
    """Begin, end and length of the job."""
    length = duration((diagnosis.end_ms - diagnosis.start_ms) / 1000)
    return f"{instant(diagnosis.start_ms, zone)} → {instant(diagnosis.end_ms, zone)} ({length})"


def measured(diagnosis: Diagnosis, words: Speaker) -> str:
    """How much of the allocation was measured."""
    coverage, total = diagnosis.coverage, diagnosis.total_gpu_hours
    return words(
        "measured {ratio} of {hours} on {measured} of {allocated} GPUs",
        ratio=percent(coverage.ratio),
        hours=hours(total, total),
        measured=str(coverage.devices_measured),
        allocated=str(coverage.devices_allocated),
    )


def cost(finding: Finding, diagnosis: Diagnosis, words: Speaker) -> str:
    """GPU time lost and recoverable."""
    if not finding.lost_gpu_hours:
        return words("no GPU time lost by itself")
    whole = diagnosis.total_gpu_hours
    lost, back = hours(finding.lost_gpu_hours, whole), hours(finding.recoverable_gpu_hours, whole)
    return words("{hours} lost, {recoverable} recoverable", hours=lost, recoverable=back)


def when(finding: Finding, diagnosis: Diagnosis, words: Speaker, zone: tzinfo, limit: int | None) -> str:
    """Clock times of the longest intervals, at most `limit`, in order of time."""
    longest = sorted(finding.intervals, key=lambda interval: -interval.seconds)[:limit]
    shown = ", ".join(
        span(interval.start_ms, interval.end_ms, zone, diagnosis.start_ms)
        for interval in sorted(longest, key=lambda interval: interval.start_ms)
    )
    more = len(finding.intervals) - len(longest)
    return f"{shown} " + words("and {count} more times", count=str(more)) if more else shown


def where(
    sources: tuple[Source, ...],
    diagnosis: Diagnosis,
    names: Mapping[Source, str],
    words: Speaker,
    limit: int | None,
) -> str:
    """The GPUs by name, `all 8 GPUs`, or the hosts when it is not about GPUs."""
    gpus = [source for source in sources if source.scope == "gpu"]
    if len(gpus) > 1 and len(gpus) == len(diagnosis.devices):
        return words("both GPUs") if len(gpus) == 2 else words("all {count} GPUs", count=str(len(gpus)))
    if gpus:
        found = [names.get(source, source.device) for source in gpus]
    else:
        found = sorted({source.node for source in sources})
    return ", ".join(found[:limit]) + (" …" if len(found) > len(found[:limit]) else "")


def advice(finding: Finding, words: Speaker, limit: int | None = None) -> list[tuple[str, str]]:
    """When to do what; whatever comes first is what to do first."""
    tiers = [labels.TIERS["quick"], *(labels.TIERS[item.tier] for item in finding.advice[1:])]
    shown = finding.advice[:limit]
    return [(words(tier), words(item.text)) for tier, item in zip(tiers, shown, strict=False)]


def evidence(finding: Finding, words: Speaker, limit: int | None = None) -> str:
    """What was measured, in words with numbers; no line breaks inside an item. What was not measured is left out."""
    measured = [item for item in finding.evidence if item.value is not None]
    shown = (f"{evidence_name(item.name, words)} {_amount(item, words)}" for item in measured[:limit])
    return listed(shown)


def listed(items: Iterable[str]) -> str:
    """Items with dots between them: a line is broken behind a dot, never within an item."""
    return f"{UNBROKEN}· ".join(item.replace(" ", UNBROKEN) for item in items)


def evidence_name(name: str, words: Speaker) -> str:
    """The name in words; one of a site's own rules as it is, with blanks."""
    return words(EVIDENCE[name]) if name in EVIDENCE else name.replace("_", " ")


def _amount(item: Evidence, words: Speaker) -> str:
    if item.unit == "boolean":
        return words("yes") if item.value else words("no")
    return quantity(item.value, item.unit)


def device_cells(report: DeviceReport, name: str) -> Mapping[str, str]:
    """What a table says of a device, by column of `labels.DEVICE_COLUMNS`."""
    headline = report.statistics.get(report.headline)
    memory = report.statistics.get("memory_used_bytes")
    power = report.statistics.get("power_watts")
    heat = report.statistics.get("temperature_celsius")
    return {
        "GPU": name,
        "model": report.device.model if report.device else "",
        "measured": percent(report.coverage),
        "mean": percent(headline.mean) if headline else "-",
        "p10": percent(headline.p10) if headline else "-",
        "mem max": quantity(memory.maximum if memory else None, "bytes"),
        "power": quantity(power.mean if power else None, "watts"),
        "max temp": quantity(heat.maximum if heat else None, "celsius"),
        "longest idle": duration(report.longest_idle.seconds) if report.longest_idle else "-",
    }
