"""An opened database: its engine, its tables, and transactions whose failures are `StoreError`s."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError

from gpudiag.errors import SchemaError, StoreError
from gpudiag.storage import ddl
from gpudiag.storage import engine as engines
from gpudiag.storage.schema import APPLICATION_ID, NATURAL_KEYS, SCHEMA_VERSION, Schema, build

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql


class Database:
    """One engine and one lock: safe to use from several threads, one transaction at a time."""

    def __init__(self, url: URL, *, writing: bool) -> None:
        self.url = url
        self.writing = writing
        self.place = engines.place(url)
        self.sqlite = engines.is_sqlite(url)
        self.tables: Schema = build(self.sqlite)
        self._lock = threading.RLock()
        self.closed = False
        self._file: tuple[int, int] | None = None
        self.engine: Engine = engines.writing_engine(url) if writing else engines.reading_engine(url)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Everything inside happens, durably, or nothing does."""
        with self._lock:
            self._refuse_closed()
            try:
                with self.engine.begin() as connection:
                    self._refuse_moved()
                    yield connection
            except SQLAlchemyError as error:
                raise engines.translate(error, self.place) from error

    def _refuse_moved(self) -> None:
        """SQLite itself would write on into a file that was removed or replaced, and say nothing."""
        if not self.sqlite or not self.url.database:
            return
        try:
            status = os.stat(self.url.database)
        except OSError as error:
            raise StoreError(f"{self.place} is gone: {error.strerror}") from error
        file = (status.st_dev, status.st_ino)
        if self._file is None:
            self._file = file
        elif file != self._file:
            raise StoreError(f"{self.place} was replaced by another file while in use")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view; short, because a long reader keeps SQLite's WAL from being reset."""
        with self._lock:
            self._refuse_closed()
            try:
                with self.engine.connect() as connection:
                    if self.sqlite:
                        connection.execution_options(**{engines.READ_ONLY: True})
                    else:
                        connection.execution_options(isolation_level="REPEATABLE READ")
                    yield connection
            except SQLAlchemyError as error:
                raise engines.translate(error, self.place) from error

    def insert_new(self, connection: Connection, table: str, rows: list[dict[str, object]]) -> None:
        """Insert rows; those whose natural key exists are left as they are."""
        if rows:
            statement = self._insert(table).on_conflict_do_nothing(index_elements=NATURAL_KEYS[table])
            connection.execute(statement, rows)

    def replace(self, connection: Connection, table: str, rows: list[dict[str, object]]) -> None:
        """Insert rows, replacing those with the same natural key (on SQLite with a new `seq`)."""
        if not rows:
            return
        target = getattr(self.tables, table)
        if self.sqlite:
            connection.execute(target.insert().prefix_with("OR REPLACE"), rows)
            return
        insert = self._insert(table)
        values = {name: insert.excluded[name] for name in rows[0] if name not in NATURAL_KEYS[table]}
        connection.execute(
            insert.on_conflict_do_update(index_elements=NATURAL_KEYS[table], set_=values), rows
        )

    def _insert(self, table: str) -> sqlite.Insert | postgresql.Insert:
        target = getattr(self.tables, table)
        if self.sqlite:
            return sqlite.insert(target)
        from sqlalchemy.dialects import postgresql  # 2 MB that an agent without a sink does without

        return postgresql.insert(target)

    def check_version(self) -> None:
        """Raises `SchemaError` unless the schema is exactly the one of this program."""
        found = self.version()
        if found is None:
            raise SchemaError(f"{self.place} has no gpudiag schema yet: {engines.UPGRADE}")
        if found > SCHEMA_VERSION:
            raise SchemaError(
                f"{self.place} has schema {found}, newer than this gpudiag knows ({SCHEMA_VERSION}): "
                "install the newer gpudiag"
            )
        if found < SCHEMA_VERSION:
            raise SchemaError(
                f"{self.place} has schema {found}, this gpudiag needs {SCHEMA_VERSION}: {engines.UPGRADE}"
            )

    def version(self) -> int | None:
        """The schema's number; None when there is none yet."""
        with self.reading() as connection:
            if not self.sqlite:
                return _postgres_version(connection)
            return self._sqlite_version(connection)

    def _sqlite_version(self, connection: Connection) -> int | None:
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
        application = int(connection.exec_driver_sql("PRAGMA application_id").scalar_one())
        tables = int(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one())
        if not tables:
            return None
        if application != APPLICATION_ID:
            raise SchemaError(f"{self.place} is the database of another program")
        return version

    def create_sqlite(self) -> None:
        """All tables in an empty file, marked as ours."""
        with self.transaction() as connection:
            for revision in range(1, SCHEMA_VERSION + 1):
                for statement in ddl.statements("sqlite", revision):
                    connection.exec_driver_sql(statement)
            connection.exec_driver_sql(
                "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
            )
            connection.execute(
                text("INSERT INTO alembic_version VALUES (:number)"), {"number": f"{SCHEMA_VERSION:04d}"}
            )
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the connections; afterwards any use is an error, where the engine would connect again and never close."""
        self.closed = True
        self.engine.dispose()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise StoreError(f"{self.place} is closed already")


def _postgres_version(connection: Connection) -> int | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    number = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return None if number is None else int(number)
