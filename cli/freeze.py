"""Freezing a finished job's report, and printing one whose samples are gone."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from gpudiag.cli.messages import ENGLISH, Words
from gpudiag.cli.render import json as json_report
from gpudiag.cli.render import text as text_report
from gpudiag.cli.render.summary import lost_buckets
from gpudiag.errors import NotFoundError
from gpudiag.rules.diagnosis import diagnose
from gpudiag.rules.energy import Cost
from gpudiag.rules.model import SEVERITIES
from gpudiag.rules.ruleset import RuleSet
from gpudiag.storage.frozen import FrozenReport
from gpudiag.storage.job import Job
from gpudiag.storage.reader import SqlReader
from gpudiag.storage.store import Reader

_SAME_COVERAGE = 1e-6


def freeze(
    reader: Reader, job: Job, rules: RuleSet, now_ms: int, cost: Cost | None = None
) -> FrozenReport | None:
    """The job's report as it is now, by the site's rules and prices; None when nothing of it was measured."""
    diagnosis = diagnose(reader, job, rules, now_ms=now_ms, cost=cost)
    if not diagnosis.coverage.devices_measured:
        return None
    lost = sum(bucket.gpu_hours for bucket in lost_buckets(diagnosis.waterfall))
    return FrozenReport(
        job.key,
        json_report.SCHEMA_VERSION,
        now_ms,
        ENGLISH(diagnosis.verdict),
        lost,
        json_report.document(diagnosis),
        text_report.render(diagnosis),
        dict(diagnosis.rule_versions),
    )


def frozen_report(reader: Reader, job: Job) -> FrozenReport | None:
    """The job's frozen report, None where there is none or the source keeps none."""
    return reader.report(job.key) if isinstance(reader, SqlReader) else None


def kept_report(reader: Reader, job: Job, coverage: float) -> FrozenReport | None:
    """The frozen report, when it knew more of the job than the samples that are left do."""
    report = frozen_report(reader, job)
    if report is None or coverage >= report.document["coverage"]["ratio"] - _SAME_COVERAGE:
        return None
    return report


def kept_text(report: FrozenReport, form: str, words: Words = ENGLISH) -> str:
    """The kept report as text, markdown or JSON, saying that it is kept and since when; its own text is English."""
    at = datetime.fromtimestamp(report.frozen_ms / 1000, timezone.utc).isoformat(timespec="seconds")
    kept = "The samples of this job are no longer all stored: this is its report as frozen at {time}."
    said = words(kept, time=at)
    if form == "json":
        frozen: dict[str, Any] = {"at": at, "rule_versions": dict(report.rules)}
        return json.dumps({**report.document, "frozen": frozen}, ensure_ascii=False, indent=2)
    if form == "html":
        raise NotFoundError(f"{said} A page with charts needs the samples; leave out --html")
    return f"```\n{report.text}\n```\n\n{said}" if form == "markdown" else f"{report.text}\n\n{said}"


def kept_alarms(report: FrozenReport, fail_on: str | None) -> bool:
    """Whether it has a finding at or above this severity."""
    if fail_on is None:
        return False
    alarming = SEVERITIES[list[str](SEVERITIES).index(fail_on) :]
    return any(finding["severity"] in alarming for finding in report.document["findings"])
