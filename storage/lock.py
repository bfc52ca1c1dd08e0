"""One agent per database file, enforced by the kernel: the lock ends with the process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from gpudiag.errors import StoreBusyError, StoreError
from gpudiag.storage.quarantine import suspect


class AgentLock:
    """An exclusive `flock` on `<database>.lock`; the file holds the owner's pid for the error text only."""

    def __init__(self, database: Path) -> None:
        self._database = database
        path = database.with_name(database.name + ".lock")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise StoreBusyError(f"{database} belongs to another agent (pid {owner})") from None
        except OSError as error:  # a network file system without locks
            os.close(self._file)
            raise StoreError(
                f"{path} cannot be locked ({error.strerror}): keep the database on a local disk"
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def mark_suspect(self) -> None:
        """Have the file checked in full when it is opened next."""
        with contextlib.suppress(OSError):
            suspect(self._database).touch()

    def release(self) -> None:
        """Let another agent in."""
        os.close(self._file)
