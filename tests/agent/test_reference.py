from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gpudiag.agent import reference
from gpudiag.agent.config import keys

AGENT_PAGE = Path(__file__).resolve().parents[2] / "docs" / "agent.md"
REGION = re.compile(r"(<!-- keys: [^\n]*-->\n).*?(<!-- end of keys -->)", re.DOTALL)


def test_golden_configuration_tables(golden: Callable[[str, str], None]) -> None:
    page = AGENT_PAGE.read_text(encoding="utf-8")
    tables = reference.configuration()
    assert REGION.search(page), "docs/agent.md has lost the marks around its tables"
    golden("docs/agent.md", REGION.sub(lambda marks: marks[1] + tables + marks[2], page))


def test_golden_metrics_page(golden: Callable[[str, str], None]) -> None:
    golden("docs/metrics.md", reference.metrics_page())


def test_tables_hold_every_key() -> None:
    tables = reference.configuration()
    assert all(f"| `{item.name}` |" in tables for item in keys())
