"""The Grafana dashboards ask only for series and columns that exist, and have what Grafana needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from click.testing import CliRunner
from programs import require

from gpudiag.cli.dashboard import DASHBOARDS, command
from gpudiag.storage.catalog import GPU_METRICS, METRICS
from gpudiag.storage.job import Job
from gpudiag.storage.open import open_store
from gpudiag.storage.rollup import HEADLINES
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.upgrade import upgrade

ROOT = Path(__file__).parents[2]


def expressions(dashboard: dict[str, Any]) -> list[str]:
    panels = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [target.get("expr") or target["rawSql"] for target in panels]


@pytest.fixture(params=sorted(DASHBOARDS))
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return DASHBOARDS[request.param]()


def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells
        assert at["x"] + at["w"] <= 24
        cells |= own


def test_every_variable_of_an_expression_is_defined(dashboard: dict[str, Any]) -> None:
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    for expression in expressions(dashboard):
        used = set(re.findall(r"\$(?!__)(\w+)", expression))
        assert used <= defined, expression


def test_prometheus_panels_ask_for_exported_names() -> None:
    known = {metric.exposition_name for metric in METRICS.values()} | {
        "gpudiag_job_info",
        "gpudiag_finding_active",
        "gpudiag_finding_lost_gpu_seconds_total",
    }
    asked = {
        name for text in expressions(DASHBOARDS["prometheus"]()) for name in re.findall(r"gpudiag_\w+", text)
    }
    assert asked <= known
    assert asked >= {metric.exposition_name for metric in GPU_METRICS}


def test_postgres_panels_ask_for_columns_of_the_views() -> None:
    views = "".join(path.read_text() for path in sorted((ROOT / "storage/ddl").glob("*_postgres.sql")))
    columns = set(re.findall(r" AS (\w+)", views))
    for query in expressions(DASHBOARDS["postgres"]()):
        listed = re.findall(r"SELECT (?:DISTINCT )?(.*?) FROM", query)[0]
        plain = [part.strip() for part in listed.split(",") if re.fullmatch(r"\s*\w+\s*", part)]
        assert set(plain) <= columns, query


def test_postgres_panels_ask_only_for_what_is_kept_by_the_minute() -> None:
    asked = {
        name
        for query in expressions(DASHBOARDS["postgres"]())
        for names in re.findall(r"metric IN \((.*?)\)", query)
        for name in re.findall(r"'(\w+)'", names)
    }
    assert asked == {name for names in HEADLINES.values() for name in names}


@pytest.mark.integration
def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": _filled(expression, "5m", ".*")}
        for number, expression in enumerate(expressions(DASHBOARDS["prometheus"]()))
    ]
    path = tmp_path / "panels.json"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [require("promtool"), "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


@pytest.mark.integration
def test_postgres_answers_every_query_with_the_rows_that_are_there(postgres_url: str) -> None:
    upgrade(postgres_url, 1_764_504_000_000)
    store = open_store(postgres_url, node="n1")
    start = 1_764_504_000
    job = Job("local/42/1", "42", 1000 * start, 1000 * (start + 600), user="ann", state="completed")
    sources = {
        "gpu": Source("n1", "GPU-a"),
        "node": Source("n1", "node"),
        "job": Source("n1", f"job:{job.key}"),
    }
    store.put_job(job)
    for scope, source in sources.items():
        values = dict.fromkeys(sorted(HEADLINES[scope]), 0.5)
        store.append([Frame(source, 1000 * (start + second), values) for second in range(600)])
    store.close()
    dashboard = DASHBOARDS["postgres"]()
    variables = [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        for query in [*expressions(dashboard), *variables]:
            sql = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 BETWEEN to_timestamp(0) AND now()", query)
            sql = sql.replace("$__timeFrom()", "to_timestamp(0)").replace("$__timeTo()", "now()")
            sql = sql.replace("$node", "'n1'").replace("$uuid", "'GPU-a'")
            assert connection.exec_driver_sql(sql.replace("%", "%%")).fetchall(), sql
    engine.dispose()


def _filled(expression: str, interval: str, anything: str) -> str:
    """As Grafana sends it: its own variables and those of the dashboard replaced."""
    return re.sub(r"\$\w+", anything, expression.replace("$__rate_interval", interval))


@pytest.mark.parametrize("source", sorted(DASHBOARDS))
def test_golden_dashboard_files(source: str) -> None:
    shown = CliRunner().invoke(command, [source]).output
    assert json.loads(shown)["uid"] == f"gpudiag-{source}"
    path = ROOT / f"dashboards/gpudiag-{source}.json"
    if os.environ.get("GPUDIAG_WRITE_GOLDEN"):
        path.write_text(shown)
    assert path.read_text() == shown, "run `make golden`"
