"""What every renderer derives from a diagnosis in the same way: names, rows, orders."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpudiag.cli.messages import Speaker
from gpudiag.cli.render import labels
from gpudiag.cli.render.units import harmless
from gpudiag.rules.model import Bucket, DeviceReport, Diagnosis, Finding
from gpudiag.rules.verdict import PRODUCTIVE
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Source


def device_names(diagnosis: Diagnosis) -> dict[Source, str]:
    """Short name of each device: its index on one node, `node/index` on several, else the UUID's head."""
    several = len(diagnosis.nodes) > 1
    names: dict[Source, str] = {}
    for report in diagnosis.devices:
        device = report.device
        own = f"GPU {device.index}" if device and device.index is not None else report.source.device[:12]
        if device and device.mig_profile:
            own += f" {device.mig_profile}"
        names[report.source] = f"{report.source.node} {own}" if several else own
    return {source: harmless(name) for source, name in names.items()}


def hardware(diagnosis: Diagnosis, words: Speaker) -> str:
    """`2 nodes, 16 × NVIDIA H100 80GB HBM3`."""
    models = Counter(
        (report.device.model if report.device else "") or words("unknown GPU") for report in diagnosis.devices
    )
    gpus = ", ".join(f"{count} × {harmless(model)}" for model, count in models.most_common())
    nodes = ", ".join(harmless(node) for node in diagnosis.nodes)
    where = nodes if len(diagnosis.nodes) <= 2 else words("{count} nodes", count=str(len(diagnosis.nodes)))
    return ", ".join(filter(None, (where, gpus)))


def roots(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Findings that no other finding explains, in their order."""
    return tuple(finding for finding in diagnosis.findings if not finding.explained_by)


def waterfall_rows(
    buckets: Sequence[Bucket], words: Speaker, limit: int | None = None
) -> list[tuple[str, Bucket]]:
    """Non-empty buckets, most GPU time first; those beyond `limit` are one row, so that the sum stays whole."""
    filled = sorted(
        (bucket for bucket in buckets if bucket.gpu_hours > 0), key=lambda bucket: -bucket.gpu_hours
    )
    shown = filled if limit is None or len(filled) <= limit else filled[: limit - 1]
    rows = [(words(labels.CAUSES.get(bucket.cause, bucket.cause)), bucket) for bucket in shown]
    rest = filled[len(shown) :]
    if rest:
        label = words("{count} smaller causes", count=str(len(rest)))
        together = Bucket("other", sum(b.gpu_hours for b in rest), sum(b.ratio for b in rest))
        rows.append((label, together))
    return rows


def least_busy(reports: Sequence[DeviceReport], limit: int) -> Sequence[DeviceReport]:
    """At most `limit` devices: all in their order, or those that did least, the least busy first."""
    if len(reports) <= limit:
        return reports
    return sorted(reports, key=_mean)[:limit]


def _mean(report: DeviceReport) -> float:
    headline = report.statistics.get(report.headline)
    return headline.mean if headline else -1.0


def origins(reports: Iterable[DeviceReport], metric: str) -> str:
    """Where the metric was measured, each origin once."""
    return ", ".join(sorted({report.origins[metric] for report in reports if metric in report.origins}))


def squeeze(values: Sequence[float], width: int) -> list[float]:
    """Mean per cell of at most `width` cells; NaN where a cell holds no measured value."""
    if len(values) <= width:
        return list(values)
    cells = np.array_split(np.asarray(values, dtype=float), width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a cell of gaps alone has no mean
        return [float(np.nanmean(cell)) for cell in cells]


def by_reason(diagnosis: Diagnosis, words: Speaker) -> Mapping[str, list[str]]:
    """Rules that were not evaluated, grouped by why, the most common reason first."""
    groups: dict[str, list[str]] = {}
    for item in diagnosis.not_evaluated:
        groups.setdefault(words(item.reason), []).append(item.rule)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def event_text(event: Event, words: Speaker) -> str:
    """`Xid 79: GPU has fallen off the bus`."""
    kind = words(labels.EVENTS.get(event.kind, event.kind))
    head = f"{kind} {event.code}" if event.code else kind
    said = event.detail.get("message") or event.detail.get("text") or event.detail.get("name") or ""
    return harmless(f"{head}: {said}" if said else head)


def lost_buckets(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Buckets of time that did no useful work although it was measured, the largest first."""
    kept = (
        bucket
        for bucket in buckets
        if bucket.cause not in PRODUCTIVE and bucket.cause != "not_measured" and bucket.gpu_hours > 0
    )
    return sorted(kept, key=lambda bucket: -bucket.gpu_hours)
