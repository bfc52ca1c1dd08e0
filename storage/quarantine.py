"""A damaged database of the agent is put aside and reported; sampling goes on in a new one."""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

from gpudiag.errors import CorruptStoreError
from gpudiag.storage.schema import APPLICATION_ID

log = logging.getLogger(__name__)
_FILES = ("", "-wal", "-shm")
_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID = slice(68, 72)  # of the header, https://www.sqlite.org/fileformat.html#the_database_header


def is_ours(database: Path) -> bool:
    """Whether only an agent of ours can have put something there: nobody else's file is ever renamed.

    Raises `OSError` when the file cannot be read.
    """
    # asked before reading: closing a file that this process has open elsewhere would drop SQLite's locks on it
    if database.with_name(database.name + ".lock").exists():
        return True
    if not database.exists() or database.stat().st_size == 0:
        return True
    with database.open("rb") as file:
        header = file.read(100)
    return header.startswith(_MAGIC) and header[_APPLICATION_ID] == APPLICATION_ID.to_bytes(4, "big")


def suspect(database: Path) -> Path:
    """A mark beside the file: it must be checked in full before it is used again."""
    return database.with_name(database.name + ".suspect")


def check(database: Path) -> None:
    """Raises `CorruptStoreError` when the file is damaged.

    A file that was closed properly and is not marked is taken as it is; after a crash its structure is checked
    (1 s for half a gigabyte), after an error in its contents every index too.
    """
    if not database.exists() or database.stat().st_size == 0:
        return
    marked = suspect(database).exists()
    if not marked and not database.with_name(database.name + "-wal").exists():
        return
    pragma = "integrity_check(1)" if marked else "quick_check(1)"
    try:
        connection = sqlite3.connect(database, timeout=5.0)
        try:
            result = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            return  # locked, unreadable, full: opening it says so in better words
        raise CorruptStoreError(f"{database}: {error}") from error
    if result != "ok":
        raise CorruptStoreError(f"{database} is damaged: {result}")
    suspect(database).unlink(missing_ok=True)


def put_aside(database: Path) -> Path:
    """Rename the file and its companions; the new name."""
    aside = database.with_name(f"{database.name}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
    number = 1
    while aside.exists():
        aside = aside.with_name(f"{aside.name.partition('~')[0]}~{number}")
        number += 1
    for suffix in _FILES:
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    suspect(database).unlink(missing_ok=True)
    log.error("the database was damaged: it is now %s, and a new one was started", aside)
    return aside
