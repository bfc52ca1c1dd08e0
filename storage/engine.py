"""Connections to SQLite and Postgres, and database errors as one line a person can act on."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sqlalchemy import URL, Engine, StaticPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, SQLAlchemyError, StatementError

from gpudiag.errors import (
    CorruptStoreError,
    InputError,
    RefusedRowError,
    SchemaError,
    StoreBusyError,
    StoreError,
)

BUSY_SECONDS = 5.0
READ_ONLY = "gpudiag_read_only"
_CONNECT_SECONDS = 10
UPGRADE = "run `gpudiag db upgrade`"
_EXPECTED = "expected sqlite:////path/to/file.db or postgresql://..."


def parse_url(text: str) -> URL:
    """A database URL that gpudiag can use; raises `InputError`."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # no URL, or one with a port that is no number
        raise InputError(f"not a database URL: {hide_password(text)!r}; {_EXPECTED}") from None
    backend = url.get_backend_name() if url.drivername else ""
    if backend not in ("sqlite", "postgresql"):
        raise InputError(f"unknown database scheme {url.drivername!r}: expected sqlite or postgresql")
    if backend == "postgresql":
        if url.host and "@" in url.host:
            raise InputError(f"{hide_password(text)}: write an @ in the password or user name as %40")
        return url.set(drivername="postgresql+psycopg")
    return _sqlite_url(url, text)


def _sqlite_url(url: URL, text: str) -> URL:
    # SQLAlchemy decodes %3F and its like from 2.1 on, and not before
    path = unquote(text.partition(":///")[2].partition("?")[0])
    if url.host or not path.isprintable() or path in ("", ":memory:"):
        raise InputError(f"not the URL of a database file: {hide_password(text)!r}; {_EXPECTED}")
    if url.query:
        raise InputError(f"{text}: a file has no options; write a ? in its name as %3F")
    if path.startswith("~"):
        path = os.path.expanduser(path)
    return url.set(drivername="sqlite", database=path)


def hide_password(text: str) -> str:
    """`text` with the passwords of any URLs in it replaced by `***`."""
    hidden = re.sub(r"(\w+://[^:/@\s]*):[^/\s]*@", r"\1:***@", text)
    hidden = re.sub(r"(\w+://[^:/@\s]*):[^@\s]*@", r"\1:***@", hidden)
    return re.sub(r"(password=)('[^']*'|[^\s&]+)", r"\1***", hidden)


def place(url: URL) -> str:
    """The database as error texts name it: a path, or a URL without password."""
    if is_sqlite(url):
        return str(url.database)
    return hide_password(url.set(drivername="postgresql").render_as_string(hide_password=True))


def refuse_special(path: Path) -> None:
    """Raise `StoreError` for a folder, a device or a pipe, which SQLite would wait for or call an I/O error."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is no file, so it cannot be a database")


def is_sqlite(url: URL) -> bool:
    """Whether the URL names a SQLite database."""
    return url.get_backend_name() == "sqlite"


def writing_engine(url: URL) -> Engine:
    """One connection, held; every transaction takes the write lock at once (SQLite: BEGIN IMMEDIATE)."""
    if not is_sqlite(url):
        return _postgres_engine(url, options="-c statement_timeout=60s -c lock_timeout=30s")
    refuse_special(Path(str(url.database)))
    engine = create_engine(
        url, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS}
    )
    _begin_with(engine, "BEGIN IMMEDIATE")  # a transaction that only reads asks for BEGIN, see `READ_ONLY`
    event.listen(engine, "connect", _prepare_for_writing)
    return engine


def reading_engine(url: URL) -> Engine:
    """Read only; works beside a writing agent, and on a file or directory that may not be written."""
    if not is_sqlite(url):
        return _postgres_engine(url)
    path = Path(str(url.database)).absolute()
    try:
        path.stat()
    except PermissionError:
        raise StoreError(f"{path} may not be read by this user") from None
    except OSError:
        raise StoreError(f"no database at {path}: is the agent running, or is --db wrong?") from None
    refuse_special(path)
    options = "mode=ro" if _can_share_memory(path) else "immutable=1"
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quoted}?{options}", uri=True, timeout=BUSY_SECONDS, check_same_thread=False
        )

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)
    _begin_with(engine, "BEGIN")
    return engine


def _can_share_memory(path: Path) -> bool:
    """A WAL database needs its -shm file; without one, and no right to make one, nobody writes either."""
    return os.access(path.parent, os.W_OK) or path.with_name(path.name + "-shm").exists()


def _postgres_engine(url: URL, **settings: str) -> Engine:
    """A dead server is noticed within the time-outs, whatever the network does."""
    patience = {"connect_timeout": _CONNECT_SECONDS, "tcp_user_timeout": 30_000, "keepalives_idle": 30}
    arguments = {name: value for name, value in {**patience, **settings}.items() if name not in url.query}
    return create_engine(url, pool_size=1, max_overflow=1, pool_pre_ping=True, connect_args=arguments)


def _begin_with(engine: Engine, statement: str) -> None:
    def no_implicit_begin(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None

    def begin(connection: Any) -> None:
        reading = READ_ONLY in connection.get_execution_options()
        connection.exec_driver_sql("BEGIN" if reading else statement)

    event.listen(engine, "connect", no_implicit_begin)
    event.listen(engine, "begin", begin)


def _prepare_for_writing(connection: sqlite3.Connection, _record: object) -> None:
    for pragma in (
        "auto_vacuum=INCREMENTAL",  # only has an effect before the first table
        "journal_mode=WAL",
        "synchronous=FULL",
        "wal_autocheckpoint=1000",
        "journal_size_limit=16777216",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


_MESSAGES: tuple[tuple[str, type[StoreError], str], ...] = (
    ("file is not a database", CorruptStoreError, "{place} is not a SQLite database"),
    ("malformed", CorruptStoreError, "{place} is damaged: {reason}"),
    ("database is locked", StoreBusyError, "{place} is locked by another process; try again, or stop it"),
    ("readonly database", StoreError, "{place} may not be written by this user"),
    ("is full", StoreError, "no space left for {place}"),
    (
        "unable to open database",
        StoreError,
        "{place} cannot be opened: check that it exists and its permissions",
    ),
    ("disk i/o error", StoreError, "{place} cannot be read or written: disk I/O error"),
    ("no such table", SchemaError, "{place} has no gpudiag schema yet: " + UPGRADE),
    ("fatal: database", StoreError, "{place}: no such database"),
    ("authentication failed", StoreError, "{place}: user name or password refused"),
    (
        "no password supplied",
        StoreError,
        "{place} wants a password: put it in the URL's file or in ~/.pgpass",
    ),
    ("permission denied", StoreError, "{place}: {reason}"),
)
_STATES: dict[str, tuple[type[StoreError], str]] = {
    "42P01": (SchemaError, "{place} has no gpudiag schema yet: " + UPGRADE),
    "42501": (StoreError, "{place}: {reason}; ask the owner of the schema for the right"),
    "3D000": (StoreError, "{place}: no such database"),
    "28P01": (StoreError, "{place}: user name or password refused"),
    "53100": (StoreError, "{place}: the server's disk is full"),
}


def translate(error: Exception, where: str) -> StoreError:
    """The same error as a `StoreError`, in one line, without credentials."""
    original: BaseException = error
    if isinstance(error, StatementError) and error.orig is not None:
        original = error.orig
    reason = " ".join(hide_password(str(original)).split())
    if isinstance(error, DataError):
        return RefusedRowError(f"{where}: {reason}")
    state = getattr(original, "sqlstate", None)
    if state in _STATES:
        kind, text = _STATES[state]
        return kind(text.format(place=where, reason=reason))
    for sign, kind, text in _MESSAGES:
        if sign in reason.lower():
            return kind(text.format(place=where, reason=reason))
    return StoreError(f"{where}: {reason}")


def is_lost_connection(error: SQLAlchemyError) -> bool:
    """Whether trying again later may help."""
    return isinstance(error, DBAPIError) and error.connection_invalidated
