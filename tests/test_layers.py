"""Imports go one way: cli -> agent, rules, storage; agent -> rules, storage; rules -> storage."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "storage": {"storage"},
    "rules": {"rules", "storage"},
    "agent": {"agent", "rules", "storage"},
    "cli": {"cli", "agent", "rules", "storage"},
}
TOP = {"agent", "rules", "storage", "cli"}
MODULES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    wrong = []
    for line, name in imported(ast.parse(path.read_text())):
        parts = name.split(".")
        if name.startswith(".") or parts[0] in TOP:
            wrong.append(f"{path}:{line}: import it as gpudiag.<package>: {name}")
        elif parts[0] == "gpudiag" and len(parts) > 1 and parts[1] in TOP - ALLOWED[package]:
            wrong.append(f"{path}:{line}: {package} must not import {name}")
    assert not wrong, "\n".join(wrong)


def test_the_layers_test_sees_the_packages() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_command_line_exits(path: Path) -> None:
    if path == ROOT / "cli" / "main.py":
        return
    exits = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("sys", "exit"), ("os", "_exit")}
    ]
    assert not exits, f"{path}: exits at lines {exits}"


def test_the_agent_loads_nothing_that_it_may_never_need() -> None:
    heavy = (
        "alembic",
        "psycopg",
        "sqlalchemy.orm",
        "sqlalchemy.dialects.postgresql",
        "rich",
        "pydantic",
        "opentelemetry",
        "pyarrow",
        "grpc",
    )
    code = f"import sys, gpudiag.agent.main; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
