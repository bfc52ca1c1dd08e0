"""Opening: one clear error for everything that is not a database of ours."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from gpudiag.errors import (
    CorruptStoreError,
    GpudiagError,
    InputError,
    SchemaError,
    StoreBusyError,
    StoreError,
)
from gpudiag.storage.location import default_url, url_of
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.schema import SCHEMA_VERSION
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.upgrade import upgrade

from .conftest import NODE, Feed  # isort: skip


def test_a_missing_file_is_made_by_the_store_and_refused_by_the_reader(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/deep/er/gpudiag.db"
    with pytest.raises(StoreError, match="no database at"):
        open_reader(url)
    open_store(url, node=NODE).close()
    open_reader(url).close()


def test_the_file_is_durable_and_marked(store: SqlStore) -> None:
    with store.database.reading() as connection:
        read = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "auto_vacuum", "user_version")
        }
    assert read == {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2, "user_version": SCHEMA_VERSION}


def test_two_agents_on_one_file_are_refused(store: SqlStore, url: str) -> None:
    with pytest.raises(StoreBusyError, match=f"belongs to another agent .pid {os.getpid()}"):
        open_store(url, node=NODE, agent=True)


def test_a_file_system_without_locks_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(
        StoreError, match=r"cannot be locked .No locks available.: keep the database on a local"
    ):
        open_store(url, node=NODE, agent=True)


def test_the_file_is_free_again_when_the_agent_closes(url: str) -> None:
    open_store(url, node=NODE, agent=True).close()
    open_store(url, node=NODE, agent=True).close()


def test_an_import_may_write_beside_the_agent(store: SqlStore, url: str, feed: Feed) -> None:
    other = open_store(url, node=NODE)
    other.append(feed.frames(0, 10))
    store.append(feed.frames(10, 10))
    other.close()
    assert len(store.read(feed.sources[0], feed.start_ms, feed.start_ms + 60_000)) == 20


@pytest.mark.parametrize("opener", [open_reader, lambda url: open_store(url, node=NODE)])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, opener: object) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"these are my notes, not a database\n" * 40)
    before = path.read_bytes()
    with pytest.raises(CorruptStoreError, match=r"notes\.db is not a SQLite database"):
        opener(f"sqlite:///{path}")  # type: ignore[operator]
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE job (id)")
    connection.close()
    with pytest.raises(SchemaError, match="another program"):
        open_store(f"sqlite:///{path}", node=NODE)
    with pytest.raises(SchemaError, match="another program"):
        open_reader(f"sqlite:///{path}")


def test_an_empty_file_has_no_schema_yet(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(SchemaError, match="no gpudiag schema yet"):
        open_reader(f"sqlite:///{path}")


@pytest.mark.parametrize(("step", "advice"), [(1, "install the newer gpudiag"), (-1, "gpudiag db upgrade")])
def test_another_schema_version_is_refused(url: str, step: int, advice: str) -> None:
    open_store(url, node=NODE).close()
    set_version(url, SCHEMA_VERSION + step)
    for opener in (open_reader, lambda url: open_store(url, node=NODE)):
        with pytest.raises(SchemaError, match=advice):
            opener(url)


def set_version(url: str, version: int) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()


def test_a_locked_file_is_named(
    store: SqlStore, url: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudiag.storage.engine.BUSY_SECONDS", 0.05)
    other = open_store(url, node=NODE)
    with store.database.transaction(), pytest.raises(StoreBusyError, match="locked by another process"):
        other.append(feed.frames(0, 1))
    other.append(feed.frames(0, 1))
    other.close()


@pytest.mark.parametrize(
    ("url", "kind", "text"),
    [
        ("mysql://u:hunter2@h/db", InputError, "unknown database scheme 'mysql'"),
        ("not a url", InputError, "not a database URL"),
        ("postgresql://u:hunter2@127.0.0.1:1/db", StoreError, r"\*\*\*@127\.0\.0\.1"),
        ("postgresql://u@127.0.0.1:1/db?password=hunter2", StoreError, r"password=\*\*\*"),
        (
            "postgresql://u:a@hunter2@127.0.0.1:1/db",
            InputError,
            "write an @ in the password or user name as %40",
        ),
        ("postgresql://u:hunter2@127.0.0.1:port/db", InputError, "not a database URL"),
        ("postgresql://u:hunter2@[::1/db", InputError, "not a database URL"),
        ("sqlite://", InputError, "not the URL of a database file"),
        ("sqlite:///", InputError, "not the URL of a database file"),
        ("sqlite:///:memory:", InputError, "not the URL of a database file"),
        ("sqlite://gpudiag.db", InputError, "not the URL of a database file"),
        ("sqlite:///two\nlines.db", InputError, "not the URL of a database file"),
        ("sqlite:////tmp/gpudiag.db?mode=ro", InputError, "write a [?] in its name as %3F"),
        ("sqlite:////proc/none/x.db", StoreError, "no database at|cannot be made"),
    ],
)
def test_a_bad_url_is_one_line_without_its_password(url: str, kind: type[GpudiagError], text: str) -> None:
    for opener in (open_reader, lambda url: open_store(url, node=NODE)):
        with pytest.raises(kind, match=text) as caught:
            opener(url)
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
@pytest.mark.parametrize("agent", [True, False])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str, agent: bool) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    for opener in (
        open_reader, lambda url: open_store(url, node=NODE, agent=agent), lambda url: upgrade(url, 0)
    ):  # fmt: skip
        with pytest.raises(StoreError, match="is no file, so it cannot be a database"):
            opener(f"sqlite:///{path}")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", ["a b.db", 'it\'s "the" one.db', "50%.db", "a%20b.db", "why?.db", "#1.db", "ü.db"]
)
def test_a_file_may_have_any_name(tmp_path: Path, feed: Feed, name: str) -> None:
    url = url_of(tmp_path / name)
    store = open_store(url, node=NODE, agent=True)
    store.append(feed.frames(0, 10))
    store.close()
    assert (tmp_path / name).exists()
    reader = open_reader(url)
    assert len(reader.read(feed.sources[0], feed.start_ms, feed.start_ms + 60_000)) == 10
    reader.close()


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("sqlite:///~/mine.db", node=NODE).close()
    assert (tmp_path / "mine.db").exists()


def test_the_agent_does_not_write_to_postgres_directly() -> None:
    with pytest.raises(StoreError, match=r"\[forward\] url"):
        open_store("postgresql://127.0.0.1/db", node=NODE, agent=True)


def test_the_default_database_is_the_services_then_the_users(tmp_path: Path) -> None:
    service = tmp_path / "service.db"
    home = {"HOME": str(tmp_path)}
    assert default_url({"GPUDIAG_DB": "sqlite:///x"}, service) == "sqlite:///x"
    assert default_url(home, service) == f"sqlite:///{tmp_path}/.local/share/gpudiag/gpudiag.db"
    assert default_url({"XDG_DATA_HOME": "/data"}, service) == "sqlite:////data/gpudiag/gpudiag.db"
    assert default_url({"XDG_DATA_HOME": "/50%?"}, service) == "sqlite:////50%25%3F/gpudiag/gpudiag.db"
    service.touch()
    assert default_url(home, service) == f"sqlite:///{service}"
