"""The report as one JSON document: the contract of `gpudiag report --json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import timezone
from typing import Any

from gpudiag.cli.messages import ENGLISH, Words
from gpudiag.cli.render.units import instant
from gpudiag.rules.model import DeviceReport, Diagnosis, Finding, Interval
from gpudiag.storage.job import Event, Job
from gpudiag.storage.sample import Source

SCHEMA_VERSION = 1


def render(diagnosis: Diagnosis, words: Words = ENGLISH) -> str:
    """The document as text, keys in contract order; what was not measured is null, never NaN."""
    return json.dumps(document(diagnosis, words), ensure_ascii=False, indent=2, allow_nan=False)


def document(diagnosis: Diagnosis, words: Words = ENGLISH) -> dict[str, Any]:
    """The document as plain data. Hours are GPU-hours, ratios 0..1, times ISO 8601 in UTC."""
    return {
        "schema_version": SCHEMA_VERSION,
        "job": _job(diagnosis),
        "coverage": _coverage(diagnosis),
        "verdict": words(diagnosis.verdict),
        "findings": [_finding(finding, words) for finding in diagnosis.findings],
        "waterfall": {
            "total_gpu_hours": _number(diagnosis.total_gpu_hours),
            "buckets": [
                {
                    "cause": bucket.cause,
                    "gpu_hours": _number(bucket.gpu_hours),
                    "ratio": _number(bucket.ratio),
                }
                for bucket in diagnosis.waterfall
            ],
        },
        "phases": [{"phase": phase.phase, **_interval(phase.interval)} for phase in diagnosis.phases],
        "devices": [_device(device) for device in diagnosis.devices],
        "events": [_event(event) for event in diagnosis.events],
        "rules": _rules(diagnosis, words),
        "notes": [words(note) for note in diagnosis.notes],
        "extra": _plain(diagnosis.extra),
    }


def fired(diagnosis: Diagnosis) -> list[str]:
    """Ids of the rules with a finding, each once."""
    return sorted({finding.rule for finding in diagnosis.findings})


def job_fields(job: Job) -> dict[str, Any]:
    """What every surface says of a job."""
    return {
        "id": job.id,
        "key": job.key,
        "state": job.state,
        "start": instant(job.start_ms),
        "end": None if job.end_ms is None else instant(job.end_ms),
        "name": job.name,
        "user": job.user,
        "cluster": job.cluster,
        "raw_id": job.raw_id,
        "restart": job.restart,
        "exit_code": job.exit_code,
        "tags": list(job.tags),
    }


def _job(diagnosis: Diagnosis) -> dict[str, Any]:
    fields = job_fields(diagnosis.job)
    contract = {name: fields.pop(name) for name in ("id", "key", "state", "start", "end")}
    return {
        **contract,
        "nodes": list(diagnosis.nodes),
        "devices": [device.source.device for device in diagnosis.devices],
        "measured_until": instant(diagnosis.end_ms),
        **fields,
    }


def _coverage(diagnosis: Diagnosis) -> dict[str, Any]:
    coverage = diagnosis.coverage
    return {
        "ratio": _number(coverage.ratio),
        "devices_allocated": coverage.devices_allocated,
        "devices_measured": coverage.devices_measured,
        "gaps": [{**_source(source), **_interval(gap)} for source, gap in coverage.gaps],
        "damaged": [{**_source(source), **_interval(part)} for source, part in coverage.damaged],
    }


def _finding(finding: Finding, words: Words) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "cause": finding.cause,
        "summary": words(finding.summary),
        "devices": [source.device for source in finding.sources],
        "intervals": [_interval(interval) for interval in finding.intervals],
        "lost_gpu_hours": _number(finding.lost_gpu_hours),
        "recoverable_gpu_hours": _number(finding.recoverable_gpu_hours),
        "evidence": [
            {"name": item.name, "value": _number(item.value), "unit": item.unit} for item in finding.evidence
        ],
        "hints": [{"tier": advice.tier, "text": words(advice.text)} for advice in finding.advice],
        "explained_by": finding.explained_by or None,
    }


def _device(report: DeviceReport) -> dict[str, Any]:
    device = report.device
    idle = report.longest_idle
    return {
        "uuid": report.source.device,
        "index": device.index if device else None,
        "model": device.model if device else "",
        "node": report.source.node,
        "coverage": _number(report.coverage),
        "metrics": {
            name: {
                "mean": _number(values.mean),
                "min": _number(values.minimum),
                "p10": _number(values.p10),
                "p50": _number(values.p50),
                "p90": _number(values.p90),
                "max": _number(values.maximum),
                "origin": report.origins.get(name),
            }
            for name, values in sorted(report.statistics.items())
        },
        "headline": report.headline,
        "timeline": [_number(value) for value in report.timeline],
        "longest_idle": None if idle is None else _interval(idle),
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "time": instant(event.time_ms),
        **_source(event.source),
        "kind": event.kind,
        "code": event.code,
        "detail": _plain(event.detail),
    }


def _rules(diagnosis: Diagnosis, words: Words) -> dict[str, Any]:
    return {
        "fired": fired(diagnosis),
        "passed": list(diagnosis.passed),
        "not_evaluated": [
            {"rule": item.rule, "reason": words(item.reason)} for item in diagnosis.not_evaluated
        ],
        "versions": dict(diagnosis.rule_versions),
    }


def _interval(interval: Interval) -> dict[str, str]:
    return {
        "start": instant(interval.start_ms, timezone.utc),
        "end": instant(interval.end_ms, timezone.utc),
    }


def _source(source: Source) -> dict[str, str]:
    return {"node": source.node, "device": source.device}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 6)


def _plain(value: Any) -> Any:
    """JSON-safe copy: mappings and sequences walked, infinities and NaN become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)
