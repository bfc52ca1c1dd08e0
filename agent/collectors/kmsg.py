"""Reading the kernel's own log device, record by record (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_RECORD_BYTES = 8192
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True)
class KernelRecord:
    """One record: `sequence` counts from boot, `seconds` is the kernel's clock since boot."""

    sequence: int
    seconds: float
    text: str


@dataclass(frozen=True)
class Overrun:
    """The log was written faster than it was read: records are gone."""


def parse_record(data: bytes) -> KernelRecord | None:
    """One record as the device gives it; None for something else. Further lines hold keys, not text."""
    head, separator, rest = data.decode("utf-8", "replace").partition(";")
    words = head.split(",")
    if not separator or len(words) < 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    return KernelRecord(int(words[1]), int(words[2]) / 1e6, _unescape(rest.split("\n", 1)[0]))


def _unescape(text: str) -> str:
    """The device writes line feeds and other control signs inside a message as `\\x0a`."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


class KmsgReader:
    """Reads without blocking. Opening raises `OSError` where it is not allowed (CAP_SYSLOG) or not there."""

    def __init__(self, path: str, read: Callable[[int, int], bytes] = os.read) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._read = read

    def records(self, limit: int) -> Iterator[KernelRecord | Overrun]:
        """At most `limit` records that wait, oldest first."""
        for _ in range(limit):
            try:
                data = self._read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                yield Overrun()
                continue
            if not data:
                return
            record = parse_record(data)
            if record is not None:
                yield record

    def close(self) -> None:
        """Let go of the device."""
        os.close(self._descriptor)
