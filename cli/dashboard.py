"""`gpudiag dashboard prometheus|postgres`: a Grafana dashboard made from the catalog, so no panel asks for a name
that is not exported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from gpudiag.storage.catalog import GPU_METRICS, JOB_METRICS, NODE_METRICS, Metric

SCHEMA_VERSION = 37  # Grafana 9.1 and newer read it
_COLUMNS, _HEIGHT = 24, 8
_UNITS = {
    "ratio": "percentunit", "bytes": "bytes", "bytes_per_second": "Bps", "watts": "watt", "joules": "joule",
    "hertz": "hertz", "celsius": "celsius", "seconds": "s", "per_second": "ops", "cpus": "short",
    "count": "short", "state": "short",
}  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """A time series panel: metrics of one scope and unit on one axis."""

    title: str
    metrics: tuple[Metric, ...]

    @property
    def unit(self) -> str:
        return self.metrics[0].unit


def panels(metrics: Iterable[Metric]) -> list[Panel]:
    """Gauges of one unit together, each counter and state by itself, in the catalog's order."""
    groups: dict[str, list[Metric]] = {}
    for metric in metrics:
        key = metric.unit if metric.kind == "gauge" else metric.name
        groups.setdefault(key, []).append(metric)
    return [Panel(_title(key, group), tuple(group)) for key, group in groups.items()]


def _title(key: str, group: Sequence[Metric]) -> str:
    if len(group) == 1:
        return group[0].help
    names = {"ratio": "Activity and shares", "bytes": "Memory", "bytes_per_second": "Throughput", "count": "Counts",
             "watts": "Power", "celsius": "Temperature", "hertz": "Clocks", "seconds": "Times",
             "per_second": "Rates", "cpus": "CPUs"}  # fmt: skip
    return names[key]


def prometheus_dashboard() -> dict[str, Any]:
    """Rows for findings, GPUs, jobs and the node; variables for data source, node, device and job."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    device = 'instance=~"$node",uuid=~"$uuid"'
    on_job = f'{device}}} and on (instance, uuid) gpudiag_job_info{{job_id=~"$job"'
    rows = [
        ("Findings", [_findings_panel(source), _lost_panel(source)]),
        ("GPUs", [_series(panel, source, on_job, "{{uuid}}") for panel in panels(GPU_METRICS)]),
        (
            "Jobs",
            [_series(panel, source, 'instance=~"$node"', "{{job_key}}") for panel in panels(JOB_METRICS)],
        ),
        (
            "Node",
            [_series(panel, source, 'instance=~"$node"', "{{instance}}") for panel in panels(NODE_METRICS)],
        ),
    ]
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        _variable("node", "label_values(gpudiag_build_info, instance)", source),
        _variable("uuid", 'label_values(gpudiag_gpu_info{instance=~"$node"}, uuid)', source),
        _variable("job", 'label_values(gpudiag_job_info{instance=~"$node"}, job_id)', source),
    ]
    annotation = {
        "name": "Findings", "enable": True, "iconColor": "red", "datasource": source,
        "expr": 'gpudiag_finding_active{instance=~"$node",severity="critical"} > 0', "titleFormat": "{{rule}}",
        "textFormat": "{{uuid}}", "step": "60s",
    }  # fmt: skip
    return _dashboard("gpudiag", "gpudiag-prometheus", rows, variables, [annotation])


def _findings_panel(source: dict[str, str]) -> dict[str, Any]:
    return {
        "title": "Open findings", "type": "table", "datasource": source,
        "targets": [{
            "expr": 'gpudiag_finding_active{instance=~"$node",uuid=~"$uuid|"} > 0', "refId": "A",
            "instant": True, "format": "table", "datasource": source,
        }],
        "options": {"showHeader": True}, "fieldConfig": {"defaults": {}, "overrides": []},
    }  # fmt: skip


def _lost_panel(source: dict[str, str]) -> dict[str, Any]:
    lost = 'sum by (rule) (rate(gpudiag_finding_lost_gpu_seconds_total{instance=~"$node",uuid=~"$uuid"}[$__rate_interval]))'
    return {
        "title": "GPUs lost, by rule (rules overlap)", "type": "timeseries", "datasource": source,
        "targets": [{"expr": lost, "legendFormat": "{{rule}}", "refId": "A", "datasource": source}],
        "fieldConfig": {"defaults": {"unit": "short", "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]}},
    }  # fmt: skip


def _series(panel: Panel, source: dict[str, str], matchers: str, legend: str) -> dict[str, Any]:
    targets = []
    for number, metric in enumerate(panel.metrics):
        selector = f"{metric.exposition_name}{{{matchers}}}"
        if metric.kind == "counter":
            head, _, tail = selector.partition("}")
            selector = f"rate({head}}}[$__rate_interval]){tail}"
        label = legend if len(panel.metrics) == 1 else f"{metric.name} {legend}"
        targets.append(
            {"expr": selector, "legendFormat": label, "refId": _letter(number), "datasource": source}
        )
    return _time_series(panel, source, targets)


def _time_series(panel: Panel, source: dict[str, str], targets: list[dict[str, Any]]) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": _UNITS[panel.unit],
        "min": 0,
        "custom": {"spanNulls": False, "lineWidth": 1},
    }
    if panel.unit == "ratio" and all(metric.maximum == 1 for metric in panel.metrics):
        defaults["max"] = 1
    return {
        "title": panel.title, "type": "timeseries", "datasource": source, "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "lastNotNull", "max"]},
                    "tooltip": {"mode": "multi"}},
    }  # fmt: skip


def postgres_dashboard() -> dict[str, Any]:
    """The headline metrics from the views `gpu_minute` and `job_summary` of the fleet's database."""
    from gpudiag.storage.rollup import HEADLINES  # brings numpy

    def kept(scope: str, metrics: Iterable[Metric], devices: str) -> list[dict[str, Any]]:
        headlines = [metric for metric in metrics if metric.name in HEADLINES[scope]]
        return [_minutes(panel, source, devices) for panel in panels(headlines)]

    source = {"type": "postgres", "uid": "${datasource}"}
    rows = [
        ("Jobs", [_jobs_panel(source)]),
        ("GPUs", kept("gpu", GPU_METRICS, "device IN ($uuid)")),
        ("Inside jobs", kept("job", JOB_METRICS, "device LIKE 'job:%'")),
        ("Nodes", kept("node", NODE_METRICS, "device = 'node'")),
    ]
    variables = [
        {"name": "datasource", "type": "datasource", "query": "postgres", "label": "Data source"},
        _variable(
            "node", "SELECT DISTINCT node FROM gpu_minute WHERE $__timeFilter(time) ORDER BY 1", source
        ),
        _variable(
            "uuid",
            "SELECT DISTINCT device FROM gpu_minute WHERE $__timeFilter(time) AND node IN ($node) "
            "AND device <> 'node' AND device NOT LIKE 'job:%' ORDER BY 1",
            source,
        ),
    ]
    return _dashboard("gpudiag fleet", "gpudiag-postgres", rows, variables, [])


def _jobs_panel(source: dict[str, str]) -> dict[str, Any]:
    query = (
        "SELECT job_id, user_name, name, state, start_time, end_time, gpus, gpu_hours, sm_active_ratio, verdict, "
        "lost_gpu_hours FROM job_summary WHERE start_time < $__timeTo() AND coalesce(end_time, now()) > $__timeFrom() "
        "ORDER BY start_time DESC"
    )
    return {
        "title": "Jobs", "type": "table", "datasource": source,
        "targets": [{"rawSql": query, "format": "table", "refId": "A", "rawQuery": True, "datasource": source}],
        "options": {"showHeader": True}, "fieldConfig": {"defaults": {}, "overrides": []},
    }  # fmt: skip


def _minutes(panel: Panel, source: dict[str, str], devices: str) -> dict[str, Any]:
    names = ", ".join(f"'{metric.name}'" for metric in panel.metrics)
    query = (
        "SELECT time, metric || ' ' || node || ' ' || device AS metric, mean AS value FROM gpu_minute "
        f"WHERE $__timeFilter(time) AND metric IN ({names}) AND node IN ($node) AND {devices} ORDER BY time"
    )
    target = {"rawSql": query, "format": "time_series", "refId": "A", "rawQuery": True, "datasource": source}
    return _time_series(panel, source, [target])


def _variable(name: str, query: str, source: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "query": query, "datasource": source, "multi": True, "includeAll": True,
        "refresh": 2, "sort": 1, "current": {"text": "All", "value": "$__all"},
        **({"allValue": ".*"} if source["type"] == "prometheus" else {}),
    }  # fmt: skip


def _dashboard(
    title: str,
    uid: str,
    rows: Sequence[tuple[str, list[dict[str, Any]]]],
    variables: list[dict[str, Any]],
    annotations: list[dict[str, Any]],
) -> dict[str, Any]:
    placed: list[dict[str, Any]] = []
    y = 0
    for name, content in rows:
        placed.append(
            {
                "type": "row",
                "title": name,
                "collapsed": False,
                "panels": [],
                "gridPos": _at(0, y, _COLUMNS, 1),
            }
        )
        y += 1
        width = _COLUMNS if len(content) == 1 else _COLUMNS // 2
        for number, panel in enumerate(content):
            column = number % (_COLUMNS // width)
            panel["gridPos"] = _at(column * width, y, width, _HEIGHT)
            placed.append(panel)
            if column == _COLUMNS // width - 1 or number == len(content) - 1:
                y += _HEIGHT
    for number, panel in enumerate(placed, 1):
        panel["id"] = number
    return {
        "id": None, "uid": uid, "title": title, "tags": ["gpu", "gpudiag"], "schemaVersion": SCHEMA_VERSION,
        "editable": True, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser", "templating": {"list": variables}, "annotations": {"list": annotations},
        "panels": placed,
    }  # fmt: skip


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _letter(number: int) -> str:
    return chr(ord("A") + number % 26) + ("" if number < 26 else str(number // 26))


DASHBOARDS = {"prometheus": prometheus_dashboard, "postgres": postgres_dashboard}


@click.command("dashboard")
@click.argument("source", type=click.Choice(sorted(DASHBOARDS)))
def command(source: str) -> None:
    """Print a Grafana dashboard for SOURCE as JSON, to import or to provision."""
    click.echo(json.dumps(DASHBOARDS[source](), indent=1))
