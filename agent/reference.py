"""Reference pages made from the code: the tables of docs/agent.md and the whole of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudiag.agent import metrics
from gpudiag.agent.config import keys, sections
from gpudiag.agent.configfile import shown
from gpudiag.agent.families import OWN
from gpudiag.storage.catalog import GPU_METRICS, JOB_METRICS, NODE_METRICS, Metric

_TITLES = {"gpu": "Devices", "node": "The node", "job": "Jobs on the node"}


def configuration() -> str:
    """One table per section: key, default, meaning."""
    lines: list[str] = []
    for section in sections():
        rows = [
            (f"`{item.name}`", f"`{shown(item, item.default)}`", item.help)
            for item in keys()
            if item.section == section
        ]
        lines += [f"### `[{section}]`", "", *_table(("key", "default", "meaning"), rows), ""]
    return "\n".join(lines)


def metrics_page() -> str:
    """Every metric on /metrics, those of the catalog and the agent's own."""
    lines = [
        "# Metrics",
        "",
        "Made from the catalog by `make golden`. Units are base units; a metric that cannot be measured has no series.",
        "",
    ]
    for scope, found in (("gpu", GPU_METRICS), ("node", NODE_METRICS), ("job", JOB_METRICS)):
        label = ", ".join(f"`{name}`" for name in metrics.LABEL[scope]) or "none"
        lines += [f"## {_TITLES[scope]}", "", f"Labels: {label}.", ""]
        lines += [*_table(("name on /metrics", "unit", "kind", "what", "from"), _rows(found)), ""]
    own = [(f"`{name}`", "counter" if name.endswith("_total") else "gauge", help) for name, help in sorted(OWN.items())]  # fmt: skip
    lines += ["## The agent itself, findings and jobs", "", *_table(("name", "kind", "what"), own), ""]
    return "\n".join(lines)


def _rows(found: Iterable[Metric]) -> Iterator[tuple[str, ...]]:
    for metric in found:
        yield f"`{metric.exposition_name}`", metric.unit, metric.kind, metric.help, metric.field


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
