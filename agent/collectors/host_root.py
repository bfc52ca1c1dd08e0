"""The host's files below a root that tests, and containers with the host mounted aside, can move."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class HostRoot:
    """Reads files of the host by a path relative to `/`; every error is the `OSError` of the system call."""

    prefix: str = "/"

    @classmethod
    def at(cls, root: Path | str) -> HostRoot:
        """The tree below `root`."""
        return cls(str(root).rstrip("/") + "/")

    def path(self, relative: str) -> str:
        """Where the file is on this machine."""
        return self.prefix + relative.lstrip("/")

    def read(self, relative: str) -> str:
        """The whole file as text; bytes that are no UTF-8 are kept as surrogates."""
        descriptor = os.open(self.path(relative), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, _CHUNK)
            pieces = [data]
            while data:
                data = os.read(descriptor, _CHUNK)
                pieces.append(data)
        finally:
            os.close(descriptor)
        return b"".join(pieces).decode("utf-8", "surrogateescape")

    def read_record(self, relative: str) -> str:
        """A file that the kernel gives in one piece (/proc/PID/stat, most of a cgroup): one read, no look for an end."""
        descriptor = os.open(self.prefix + relative, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _CHUNK).decode("utf-8", "surrogateescape")
        finally:
            os.close(descriptor)

    def read_if_there(self, relative: str) -> str | None:
        """The text, or None when it cannot be read for whatever reason."""
        try:
            return self.read(relative)
        except OSError:
            return None

    def first(self, candidates: Iterable[str]) -> str | None:
        """The text of the first path that can be read."""
        for relative in candidates:
            text = self.read_if_there(relative)
            if text is not None:
                return text
        return None

    def names(self, relative: str) -> list[str]:
        """Sorted entries of a directory; empty when it cannot be listed."""
        try:
            return sorted(os.listdir(self.path(relative)))
        except OSError:
            return []

    def exists(self, relative: str) -> bool:
        """Whether there is such a file or directory."""
        return os.path.exists(self.path(relative))
