"""Jobs, devices, events and findings as table rows and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpudiag.storage.job import Allocation, Device, Event, Job, Json
from gpudiag.storage.sample import Source
from gpudiag.storage.store import StoredFinding

Row = dict[str, Any]


def dump(value: Json) -> str:
    """JSON with sorted keys: equal content is equal text on every engine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def job_row(job: Job) -> Row:
    row = {**vars(job), "user_name": job.user, "tags": dump(list(job.tags)), "meta": dump(dict(job.meta))}
    del row["user"]
    return row


def job_of(row: Mapping[str, Any]) -> Job:
    values = {name: row[name] for name in _JOB_FIELDS}
    return Job(
        **values, user=row["user_name"], tags=tuple(json.loads(row["tags"])), meta=json.loads(row["meta"])
    )


_JOB_FIELDS = (
    "key", "id", "start_ms", "end_ms", "cluster", "raw_id", "name", "state", "exit_code", "restart",
)  # fmt: skip


def allocation_row(allocation: Allocation, source_id: int) -> Row:
    return {
        "job_key": allocation.job_key,
        "source_id": source_id,
        "start_ms": allocation.start_ms,
        "end_ms": allocation.end_ms,
        "known_from": allocation.known_from,
        "confidence": allocation.confidence,
    }


def allocation_of(row: Mapping[str, Any]) -> Allocation:
    source = Source(row["node"], row["device"])
    return Allocation(
        row["job_key"], source, row["start_ms"], row["end_ms"], row["known_from"], row["confidence"]
    )


def device_body(device: Device) -> str:
    """Attributes without identity and time: equal text is an unchanged device."""
    body = asdict(device)
    del body["source"], body["since_ms"]
    return dump(body)


def device_of(source: Source, since_ms: int, body: str) -> Device:
    known = Device.__dataclass_fields__
    attributes = {name: value for name, value in json.loads(body).items() if name in known}
    return Device(source, since_ms, **attributes)


def event_row(event: Event, source_id: int) -> Row:
    return {
        "source_id": source_id,
        "time_ms": event.time_ms,
        "kind": event.kind,
        "code": event.code,
        "ordinal": event.ordinal,
        "detail": dump(dict(event.detail)),
    }


def event_of(row: Mapping[str, Any]) -> Event:
    source = Source(row["node"], row["device"])
    return Event(source, row["time_ms"], row["kind"], row["code"], row["ordinal"], json.loads(row["detail"]))


def finding_row(finding: StoredFinding, source_id: int) -> Row:
    return {
        "rule": finding.rule,
        "source_id": source_id,
        "start_ms": finding.start_ms,
        "end_ms": finding.end_ms,
        "severity": finding.severity,
        "job_key": finding.job_key,
        "body": dump(finding.body),
    }


def finding_of(row: Mapping[str, Any]) -> StoredFinding:
    source = Source(row["node"], row["device"])
    body = json.loads(row["body"])
    return StoredFinding(
        row["rule"], source, row["start_ms"], row["end_ms"], row["severity"], row["job_key"], body
    )
