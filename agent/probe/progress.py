"""One shared page in which the child says what it is about to ask the driver: the only word of it once it hangs."""

from __future__ import annotations

import mmap
import os

_SIZE = mmap.PAGESIZE
_NAME = slice(0, 64)
_DEVICE = slice(64, 192)


def create() -> int:
    """File descriptor of a fresh page; the child inherits it."""
    descriptor = os.memfd_create("gpudiag-probe", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _SIZE)
    return descriptor


class Progress:
    """Either end of the page."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, _SIZE)
        self._padded: dict[str, bytes] = {}

    def call(self, name: str) -> None:
        """The child enters this function now; an empty name: it is back."""
        padded = self._padded.get(name)
        if padded is None:
            padded = self._padded[name] = name.encode()[:64].ljust(64, b"\0")
        self._page[_NAME] = padded

    def device(self, uuid: str) -> None:
        """Calls that follow are about this device."""
        self._page[_DEVICE] = uuid.encode()[:128].ljust(128, b"\0")

    def read(self) -> tuple[str, str]:
        """Function and device of the call in progress; empty strings when there is none."""
        name, device = (self._page[part].rstrip(b"\0").decode(errors="replace") for part in (_NAME, _DEVICE))
        return name, device if name else ""

    def close(self) -> None:
        self._page.close()
