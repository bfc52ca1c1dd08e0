"""Reports kept after the samples are gone: a job's last word, with the versions of the rules that spoke it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpudiag.storage.job import Json
from gpudiag.storage.rows import Row, dump


@dataclass(frozen=True)
class FrozenReport:
    """The report's JSON document as it was at `frozen_ms`, and the same as plain text.

    `rules` maps the rules that judged to their versions.
    """

    job_key: str
    schema_version: int
    frozen_ms: int
    verdict: str
    lost_gpu_hours: float
    document: Mapping[str, Json]
    text: str = ""
    rules: Mapping[str, str] = field(default_factory=dict)


def report_row(report: FrozenReport) -> Row:
    """The table row."""
    return {
        "job_key": report.job_key,
        "schema_version": report.schema_version,
        "frozen_ms": report.frozen_ms,
        "verdict": report.verdict,
        "lost_gpu_hours": report.lost_gpu_hours,
        "rules": dump(dict(report.rules)),
        "body": json.dumps({"report": report.document, "text": report.text}, ensure_ascii=False),
    }


def report_of(row: Mapping[str, Any]) -> FrozenReport:
    """The report in a table row; key order of the document is kept."""
    body = json.loads(row["body"])
    return FrozenReport(
        row["job_key"],
        row["schema_version"],
        row["frozen_ms"],
        row["verdict"],
        row["lost_gpu_hours"],
        body["report"],
        body["text"],
        json.loads(row["rules"]),
    )
