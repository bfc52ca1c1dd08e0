"""Schemas: a fresh database, an upgraded one and the tables in the program are the same."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from gpudiag.errors import SchemaError, StoreBusyError
from gpudiag.storage.database import Database
from gpudiag.storage.ddl import statements
from gpudiag.storage.engine import parse_url
from gpudiag.storage.job import Event
from gpudiag.storage.lock import AgentLock
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.sample import Source
from gpudiag.storage.schema import SCHEMA_VERSION, build
from gpudiag.storage.upgrade import upgrade

from .conftest import NODE, START_MS  # isort: skip

FIRST = Path(__file__).parent / "data" / "first_schema.sql"


@pytest.fixture
def first_schema(tmp_path: Path) -> str:
    path = tmp_path / "first.db"
    connection = sqlite3.connect(path)
    connection.executescript(FIRST.read_text())
    connection.close()
    return f"sqlite:///{path}"


def test_a_database_of_the_first_schema_is_refused_until_upgraded(first_schema: str) -> None:
    with pytest.raises(
        SchemaError, match=f"has schema 1, this gpudiag needs {SCHEMA_VERSION}: run `gpudiag db upgrade`"
    ):
        open_reader(first_schema)


def test_an_upgrade_keeps_everything(first_schema: str) -> None:
    assert upgrade(first_schema, START_MS) == (1, SCHEMA_VERSION)
    reader = open_reader(first_schema)
    gpu = Source("node1", "GPU-0")
    block = reader.read(gpu, 0, 2**42)
    assert len(block) == 96
    assert list(block.columns["power_watts"]) == [300.0 + second % 7 for second in range(0, 960, 10)]
    assert [job.id for job in reader.jobs()] == ["42"]
    assert reader.events(0, 2**42) == [Event(gpu, 1_764_504_000_005, "xid", 79)]
    assert len(reader.findings(0, 2**42)) == len(reader.allocations("c1/42/1764504000")) == 1
    reader.close()
    open_store(first_schema, node="node1", agent=True).close()


def test_an_upgraded_file_has_the_schema_of_a_fresh_one(first_schema: str, url: str) -> None:
    upgrade(first_schema, START_MS)
    open_store(url, node=NODE).close()
    assert schema_of(first_schema) == schema_of(url)


def schema_of(url: str) -> dict[str, str]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: " ".join(sql.replace('"', "").split()) for name, sql in rows}


def test_upgrading_twice_changes_nothing(first_schema: str) -> None:
    upgrade(first_schema, START_MS)
    assert upgrade(first_schema, START_MS) == (SCHEMA_VERSION, SCHEMA_VERSION)


def test_the_file_of_a_running_agent_is_not_upgraded(first_schema: str) -> None:
    lock = AgentLock(Path(first_schema.removeprefix("sqlite:///")))
    with pytest.raises(StoreBusyError, match="belongs to another agent"):
        upgrade(first_schema, START_MS)
    lock.release()
    assert upgrade(first_schema, START_MS) == (1, SCHEMA_VERSION)


def test_a_newer_schema_is_not_touched(url: str) -> None:
    open_store(url, node=NODE).close()
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(SchemaError, match="newer than this gpudiag"):
        upgrade(url, START_MS)


def test_the_tables_of_the_program_are_those_of_the_file(url: str) -> None:
    open_store(url, node=NODE).close()
    engine = create_engine(url)
    assert columns_of(engine, build(True)) == columns_in(engine)
    engine.dispose()


@pytest.mark.integration
def test_the_tables_of_the_program_are_those_of_postgres(postgres_url: str) -> None:
    assert upgrade(postgres_url, START_MS) == (0, SCHEMA_VERSION)
    assert upgrade(postgres_url, START_MS) == (SCHEMA_VERSION, SCHEMA_VERSION)
    engine = create_engine(parse_url(postgres_url))
    declared, found = columns_of(engine, build(False)), columns_in(engine)
    del declared["forward"]  # only SQLite forwards
    assert declared == {name: found[name] for name in declared}
    engine.dispose()


def columns_of(_engine: object, schema: object) -> dict[str, set[str]]:
    tables = schema.metadata.tables  # type: ignore[attr-defined]
    return {name: {column.name for column in table.columns} for name, table in tables.items()}


def columns_in(engine: object) -> dict[str, set[str]]:
    found = inspect(engine)
    names = [name for name in found.get_table_names() if name != "alembic_version"]
    return {name: {column["name"] for column in found.get_columns(name)} for name in names}


@pytest.mark.integration
def test_a_postgres_of_the_first_schema_is_upgraded(
    postgres_url: str, request: pytest.FixtureRequest
) -> None:
    database = Database(parse_url(postgres_url), writing=True)
    request.addfinalizer(database.close)
    with database.transaction() as connection:
        for statement in statements("postgres", 1):
            connection.execute(text(statement))
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0001')")
        connection.exec_driver_sql("INSERT INTO source (node, device) VALUES ('n', 'node')")
        connection.exec_driver_sql("INSERT INTO event VALUES (1, 5, 'oom_kill', 0, 0, '{}')")
    with pytest.raises(SchemaError, match="has schema 1, this gpudiag needs"):
        open_reader(postgres_url)
    assert upgrade(postgres_url, START_MS) == (1, SCHEMA_VERSION)
    reader = open_reader(postgres_url)
    assert reader.events(0, 10) == [Event(Source("n", "node"), 5, "oom_kill")]
    reader.close()


@pytest.mark.integration
def test_postgres_has_day_partitions_ahead_and_keeps_chunks_uncompressed(postgres_url: str) -> None:
    upgrade(postgres_url, START_MS)
    database = Database(parse_url(postgres_url), writing=True)
    with database.reading() as connection:
        storage = connection.exec_driver_sql(
            "SELECT c.relname, a.attstorage FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'data' "
            "WHERE i.inhparent = 'chunk'::regclass"
        ).all()
    database.close()
    assert len(storage) == 8
    assert {row[1] for row in storage} == {"e"}


@pytest.mark.integration
def test_postgres_without_a_schema_says_what_to_run(postgres_url: str) -> None:
    with pytest.raises(SchemaError, match="no gpudiag schema yet: run `gpudiag db upgrade`"):
        open_reader(postgres_url)
