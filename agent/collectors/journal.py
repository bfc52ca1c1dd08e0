"""Kernel messages from journald, where the kernel's log device may not be read: one `journalctl` that follows."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST_LINE = 1 << 20
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class JournalRecord:
    """One message with journald's own time and cursor."""

    cursor: str
    time_ms: int
    text: str


def parse_entry(line: bytes) -> JournalRecord | None:
    """One line of `journalctl -o json`; None when it is none or holds no message."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    message, cursor, time = (entry.get(key) for key in ("MESSAGE", "__CURSOR", "__REALTIME_TIMESTAMP"))
    if isinstance(message, list):  # bytes that are no text come as numbers
        numbers = [number for number in message if isinstance(number, int) and 0 <= number < 256]
        message = bytes(numbers).decode("utf-8", "replace")
    if not isinstance(message, str) or not isinstance(cursor, str) or not str(time).isdigit():
        return None
    return JournalRecord(cursor, int(str(time)) // 1000, message)


class JournalReader:
    """Follows the journal after a cursor, or from the boot on. Opening raises `OSError` without journalctl."""

    def __init__(self, cursor: str = "", program: str = "journalctl") -> None:
        where = [f"--after-cursor={cursor}"] if cursor else ["--boot"]
        self._process = subprocess.Popen(
            [
                program,
                "--follow",
                "--no-tail",
                "--output=json",
                "--no-pager",
                "--quiet",
                "_TRANSPORT=kernel",
                *where,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._descriptor = self._process.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        self._partial = b""

    @property
    def ended(self) -> bool:
        """Whether journalctl gave up: no journal, or not allowed to read it."""
        return self._process.poll() is not None

    def records(self, limit: int) -> Iterator[JournalRecord]:
        """At most about `limit` messages that wait, oldest first."""
        given = 0
        while given < limit:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._partial = self._partial[-_LONGEST_LINE:]
            for line in lines:
                record = parse_entry(line)
                if record is not None:
                    given += 1
                    yield record

    def close(self) -> None:
        """End journalctl."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
