"""Finding out-of-memory messages in logs of any size: pieces in, messages out, each event once.

What is kept does not grow with the log: one unfinished line, one unfinished message and the events found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import BinaryIO

from gpudiag.rules.oom_events import OomEvents
from gpudiag.rules.oom_lines import Line, TellingLines
from gpudiag.rules.oom_message import OomMessage
from gpudiag.rules.oom_wording import Found, folded, found_in
from gpudiag.rules.oom_wordings import TELLING_WORDS, wordings_in

_PIECE = 1 << 20
_LINES_OPEN = 40  # other ranks write in between
_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]{0,40}[ -/]?[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
_RANK = r"\[rank\d+\]:?|\[default\d+\]:|\[\d+,\d+\]<\w+>:?|\d{1,5}: |\([^()\n]{0,60}pid=\d+[^()\n]{0,60}\)"
_CLOCK = (
    r"[\[(]?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[\])]?,?|[\[(]?\d\d:\d\d:\d\d(?:[.,]\d+)?[\])]?|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \S{1,64} [\w.@-]{1,64}(?:\[\d+\])?:|\[ *\d+\.\d+\]|\d+\.\d+s:|"
    r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S{1,80}\]|(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b:?|[│┃|]|E {3,}"
)
_PREFIX = re.compile(rf"\s*(?:(?P<rank>{_RANK})|{_CLOCK})")


@dataclass
class _Open:
    """A message that following lines of the same source may continue."""

    found: Found
    line: int
    source: str


class OomLog:
    """Feed it the pieces of a log, close it at the end; `messages` are the events told so far."""

    def __init__(self) -> None:
        self._lines = TellingLines(TELLING_WORDS)
        self._open: _Open | None = None
        self._events = OomEvents()

    def feed(self, piece: bytes) -> None:
        """The next bytes, cut anywhere."""
        for line in self._lines.feed(piece):
            self._take(line)

    def close(self) -> None:
        """No more bytes come."""
        for line in self._lines.close():
            self._take(line)
        self._finish()

    def messages(self) -> list[OomMessage]:
        """Every event so far in the order of the log."""
        if self._open is None:
            return self._events.messages()
        so_far = copy(self)
        so_far._events = deepcopy(self._events)
        so_far._finish()
        return so_far._events.messages()

    def _take(self, line: Line) -> None:
        if self._open is not None and line.number - self._open.line > _LINES_OPEN:
            self._finish()
        wordings = wordings_in(folded(line.content)) if line.telling else []
        if not wordings and self._open is None:
            return
        source, text = _parted(line.content)
        founds = list(found_in(text, line.previous.decode(errors="replace"), wordings))
        if self._continue(source, text, founds):
            return
        for found in founds:
            self._finish()
            self._open = _Open(found, line.number, source)
            self._finish_unless_open()

    def _continue(self, source: str, text: str, founds: list[Found]) -> bool:
        """Whether the line belonged to the open message."""
        if self._open is None or self._open.source != source:
            return False
        found = self._open.found
        if founds and not (found.wording.repeats and founds[0].wording is found.wording):
            return False
        is_more = found.extend(text)
        self._finish_unless_open()
        return is_more

    def _finish_unless_open(self) -> None:
        if self._open is not None and not self._open.found.open:
            self._finish()

    def _finish(self) -> None:
        ended, self._open = self._open, None
        message = ended.found.message() if ended else None
        if ended and message:
            self._events.add(message, ended.line)


def _parted(content: bytes) -> tuple[str, str]:
    """Who wrote a line (its rank or process, empty where it does not say), and the text without its head."""
    text = _ANSI.sub("", content.decode(errors="replace"))
    ranks, end = [], 0
    while match := _PREFIX.match(text, end):
        ranks.append(match["rank"] or "")
        end = match.end()
    return "".join(ranks).strip(), text[end:].strip(" \t│┃|")


def read(lines: Iterable[str]) -> Iterator[OomMessage]:
    """Every out-of-memory event of a log given line by line, in order."""
    log = OomLog()
    for line in lines:
        log.feed(line.removesuffix("\n").encode(errors="replace") + b"\n")
    log.close()
    yield from log.messages()


def read_stream(stream: BinaryIO) -> list[OomMessage]:
    """Every out-of-memory event of a log of any size and encoding, in order."""
    log = OomLog()
    while piece := stream.read(_PIECE):
        log.feed(piece)
    log.close()
    return log.messages()
