"""`gpudiag db upgrade`: the only place that changes a schema, and the only one that imports alembic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from gpudiag.errors import SchemaError
from gpudiag.storage import engine as engines
from gpudiag.storage.database import Database
from gpudiag.storage.lock import AgentLock
from gpudiag.storage.partitions import add_coming
from gpudiag.storage.schema import APPLICATION_ID, SCHEMA_VERSION


def upgrade(url: str, now_ms: int) -> tuple[int, int]:
    """Bring a database to this program's schema, all or nothing; the version before and after.

    On Postgres the partitions of the coming days are added too. Raises `SchemaError` for a newer schema and
    `StoreError` when the rights are missing.
    """
    parsed = engines.parse_url(url)
    database = Database(parsed, writing=True)
    try:
        before = database.version() or 0
        if before > SCHEMA_VERSION:
            database.check_version()
        if before < SCHEMA_VERSION:
            with _no_agent(database):
                _migrate(database)
        if not database.sqlite:
            add_coming(database, now_ms)
        return before, SCHEMA_VERSION
    finally:
        database.close()


@contextmanager
def _no_agent(database: Database) -> Iterator[None]:
    """A running agent must not see its tables change; raises `StoreBusyError`."""
    lock = AgentLock(Path(database.place).absolute()) if database.sqlite else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _migrate(database: Database) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        with database.transaction() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            if database.sqlite:
                connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
                connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")
    except CommandError as error:
        raise SchemaError(f"{database.place}: {error}") from error
    except SQLAlchemyError as error:
        raise engines.translate(error, database.place) from error
