"""The few lines of a log that may tell of memory running out, found at the speed of searching for fixed words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpudiag.rules.oom_wording import folded

LONGEST_LINE = 1 << 16
LINES_BEHIND = 10  # a message may go on for as many lines
_OVERLAP = 4096  # no message is longer
_PREVIOUS = 600

_END = re.compile(rb"[\r\n]")


class Line(NamedTuple):
    """One line: its number from 1, its bytes without the end, those of the line before, whether it has a word."""

    number: int
    content: bytes
    previous: bytes
    telling: bool


class TellingLines:
    """Cuts the pieces of a log into lines and keeps those with one of the `words`, folded, and `LINES_BEHIND` more after each.

    Lines end with `\\n`; `\\r` starts anew without counting, as progress bars do. A line longer than `LONGEST_LINE`
    comes in parts.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        self._words = words
        self._rest = b""
        self._previous = b""
        self._number = 1
        self._wanted = 0

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that the next bytes, cut anywhere, complete."""
        data = self._rest + piece
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > LONGEST_LINE:
            end = self._part(data)
        self._rest = data[end:]
        yield from self._lines(data[:end])

    def close(self) -> Iterator[Line]:
        """The last line, which has no end."""
        rest, self._rest = self._rest, b""
        yield from self._lines(rest)

    def _lines(self, block: bytes) -> Iterator[Line]:
        words = _Words(self._words, block)
        at = 0
        while at < len(block):
            telling = words.after(at)
            if not self._wanted:
                if telling is None:
                    break
                at = self._skip(block, at, telling)
            match = _END.search(block, at)
            end = match.start() if match else len(block)
            is_telling = telling is not None and telling < end
            self._wanted = LINES_BEHIND if is_telling else self._wanted - 1
            yield Line(self._number, block[at:end], self._before(block, at), is_telling)
            if match and match.group() == b"\n":
                self._number += 1
            at = end + 1
        self._number += block.count(b"\n", at)
        self._previous = self._before(block, len(block)) or self._previous

    def _skip(self, block: bytes, at: int, telling: int) -> int:
        """The start of the line with the telling word."""
        start = block.rfind(b"\n", at, telling) + 1 or at
        start = block.rfind(b"\r", start, telling) + 1 or start
        self._number += block.count(b"\n", at, start)
        return start

    def _before(self, block: bytes, at: int) -> bytes:
        """The end of the last line with something in it before a place in the block."""
        near = block[max(0, at - _PREVIOUS) : at].rstrip(b"\r\n")
        if not near:
            return self._previous
        return near[max(near.rfind(b"\n"), near.rfind(b"\r")) + 1 :]

    def _part(self, data: bytes) -> int:
        """Where to cut a line that is too long: before a message that its end may only begin."""
        last = len(data) - _OVERLAP
        place = _Words(self._words, data[last:]).after(0)
        return len(data) if place is None else last + max(0, place - 300)


class _Words:
    """Where the words stand in a block; each place is searched once per word."""

    def __init__(self, words: Sequence[bytes], block: bytes) -> None:
        self._folded = folded(block)
        found = ((word, self._folded.find(word)) for word in words)
        self._next = {word: place for word, place in found if place >= 0}

    def after(self, at: int) -> int | None:
        """The first place from `at` on."""
        while self._next:
            word = min(self._next, key=self._next.__getitem__)
            if self._next[word] >= at:
                return self._next[word]
            place = self._folded.find(word, at)
            if place < 0:
                del self._next[word]
            else:
                self._next[word] = place
        return None
