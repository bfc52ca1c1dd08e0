"""Opening a database by URL: the one place that creates files and compares versions."""

from __future__ import annotations

import time
from pathlib import Path

from sqlalchemy import URL

from gpudiag.errors import CorruptStoreError, SchemaError, StoreError
from gpudiag.storage import quarantine
from gpudiag.storage.database import Database
from gpudiag.storage.engine import parse_url, refuse_special
from gpudiag.storage.job import Event
from gpudiag.storage.lock import AgentLock
from gpudiag.storage.reader import SqlReader
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.store import Reader

_SMALLEST_BYTES = 512


def open_reader(url: str) -> Reader:
    """Read only, beside a running agent or not. Raises `StoreError` and its kinds, `InputError` for the URL.

    `sqlite:///...`, `postgresql://...`, or `prometheus+http://...` for series that others scraped.
    """
    if url.startswith("prometheus+"):
        from gpudiag.storage.prometheus.reader import PrometheusReader

        return PrometheusReader(url)
    return open_sql_reader(url)


def open_sql_reader(url: str) -> SqlReader:
    """`open_reader` for a database only."""
    database = Database(parse_url(url), writing=False)
    try:
        database.check_version()
    except BaseException:
        database.close()
        raise
    return SqlReader(database)


def open_store(url: str, *, node: str, agent: bool = False, seal: bool = True) -> SqlStore:
    """For writing; a SQLite file that is missing or empty is initialised.

    With `agent` the file belongs to this process until `close` (`StoreBusyError` when another agent has it), and
    a damaged one of ours is put aside. Another writer seals past windows when it closes, unless `seal` is false.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return _open_postgres(parsed, node, agent)
    path = Path(str(parsed.database)).absolute()
    _make_directory(path.parent)
    if agent:
        refuse_foreign(url)
        return _open_for_agent(parsed, path, node)
    return SqlStore(_open_sqlite(parsed), node, seal_on_close=seal)


def refuse_foreign(url: str) -> None:
    """Raise `SchemaError` for a file that gpudiag never made, such as a mistyped path; nothing is written."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return
    path = Path(str(parsed.database)).absolute()
    refuse_special(path)
    try:
        if quarantine.is_ours(path):
            return
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        _look_first(parsed)
    except CorruptStoreError as error:
        raise SchemaError(f"{error}; it is left alone: name a file that does not exist yet") from error


def _open_for_agent(url: URL, path: Path, node: str) -> SqlStore:
    """Under the lock; a damaged file is renamed, a new one started, and that is an event in it."""
    lock = AgentLock(path)
    try:
        try:
            quarantine.check(path)
            return SqlStore(_open_sqlite(url), node, lock=lock)
        except CorruptStoreError as error:
            aside = quarantine.put_aside(path)
            store = SqlStore(_open_sqlite(url), node, lock=lock)
            detail = {"reason": str(error), "file": str(aside)}
            now_ms = time.time_ns() // 1_000_000
            store.put_events([Event(Source(node, NODE), now_ms, "store_quarantined", detail=detail)])
            return store
    except OSError as error:
        lock.release()
        raise StoreError(f"{path} cannot be put aside: {error.strerror}") from error
    except BaseException:
        lock.release()
        raise


def _open_sqlite(url: URL) -> Database:
    _look_first(url)
    database = Database(url, writing=True)
    try:
        if database.version() is None:
            database.create_sqlite()
        database.check_version()
    except BaseException:
        database.close()
        raise
    return database


def _look_first(url: URL) -> None:
    """Refuse a file that is not ours, or too new, before opening it for writing sets its journal mode."""
    path = Path(str(url.database))
    if not path.exists() or not path.stat().st_size:
        return
    if path.stat().st_size < _SMALLEST_BYTES:  # SQLite itself takes a file of one byte for an empty one
        raise CorruptStoreError(f"{path} is not a SQLite database")
    database = Database(url, writing=False)
    try:
        if database.version() is not None:
            database.check_version()
    finally:
        database.close()


def _open_postgres(url: URL, node: str, agent: bool) -> SqlStore:
    if agent:
        raise StoreError(
            "the agent keeps its samples in SQLite; put the postgresql:// URL under [forward] url"
        )
    database = Database(url, writing=True)
    try:
        database.check_version()
    except BaseException:
        database.close()
        raise
    return SqlStore(database, node, seal_on_close=True)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be made: {error.strerror}") from error
