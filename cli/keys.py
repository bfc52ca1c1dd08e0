"""Single key presses from a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# what arrow and function keys send; the escape in it is not the Esc key
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")


class Keys:
    """Reads keys while the terminal is in cbreak mode; arrow and function keys are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = stream.fileno()

    def wait(self, seconds: float) -> str:
        """The keys pressed meanwhile, "" after `seconds` without any."""
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, seconds))
        if not ready:
            return ""
        data = os.read(self._descriptor, 64)
        if not data:
            raise EOFError
        return _SEQUENCE.sub("", data.decode("utf-8", "replace"))


@contextmanager
def pressed(stream: TextIO | None = None) -> Iterator[Keys]:
    """A key reader on a terminal, which is as it was afterwards."""
    stream = stream or sys.stdin
    before = termios.tcgetattr(stream.fileno())
    try:
        tty.setcbreak(stream.fileno())
        yield Keys(stream)
    finally:
        termios.tcsetattr(stream.fileno(), termios.TCSADRAIN, before)
