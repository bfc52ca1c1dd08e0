"""What a wording of an out-of-memory message is, and telling a message from talk about one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gpudiag.rules.oom_message import OomMessage

_FOLD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_-", b"abcdefghijklmnopqrstuvwxyz  ")
_LONGEST = 8000  # a message that lists a hundred processes is shorter


@dataclass(frozen=True)
class Wording:
    """`head` finds it; `read` makes the message of the text from there on, or None where it is none after all.

    A line with it has, `folded`, one of `words`, which are parted by `|`: they are quicker to look for. `stated` is whether the words alone might be talked about, so that they count only where something states them.
    `more` are the words that a following line may continue it with, `done` those after which none does; `repeats` is
    whether the head itself may be such a word.
    """

    words: str
    head: re.Pattern[str]
    read: Callable[[re.Match[str], str], OomMessage | None]
    stated: bool = False
    more: re.Pattern[str] | None = None
    done: re.Pattern[str] | None = None
    repeats: bool = False


@dataclass
class Found:
    """A wording found in a line, which following lines may `extend` while it is `open`."""

    wording: Wording
    text: str
    lines_left: int = field(default=8)

    @property
    def open(self) -> bool:
        done = self.wording.done
        return self.wording.more is not None and self.lines_left > 0 and not (done and done.search(self.text))

    def extend(self, text: str) -> bool:
        """Whether the line continues the message."""
        self.lines_left -= 1
        text = " ".join(text.split())
        if self.wording.more is None or not self.wording.more.search(text):
            return False
        self.text = f"{self.text} {text}"[:_LONGEST]
        return True

    def message(self) -> OomMessage | None:
        """The message with text line 0."""
        text = " ".join(self.text.split())
        match = self.wording.head.search(text)
        return None if match is None else self.wording.read(match, text)


def folded(text: bytes) -> bytes:
    """Lower case, the parts of names parted by spaces: `CUDA_ERROR` and `CUDA error` are the same."""
    return text.translate(_FOLD)


def found_in(text: str, previous: str, wordings: Iterable[Wording]) -> Iterator[Found]:
    """The messages in one line, of the first wording that it has; `previous` is the line before, which tells a traceback's source line from output."""
    if _SOURCE_FOLLOWS.search(previous):
        return
    for wording in wordings:
        starts = _heads(text, wording)
        for start, end in zip(starts, [*starts[1:], len(text)], strict=False):
            yield Found(wording, text[start : min(end, start + _LONGEST)])
        if starts:
            return


_SOURCE_FOLLOWS = re.compile(r"^[^\"]{0,200}File \"[^\"]{1,400}\", line \d+, in ")
_CODE = re.compile(
    r"\b(?:raise|throw|except|elif|assert\w*|return|TORCH_CHECK\w*|case|grep|echo|print\w*|re\.\w+)\b[^.;]{0,200}$|"
    r"(?:\.(?:error|warning|warn|info|debug|exception|critical|log)\(| = | in |[=!]= ?|match=)\(?[frbu]{0,2}[\"'][^\"']{0,80}$|"
    r"^\s*(?:#(?!\d)|//|\* |>>>|if\b|while\b|with\b|-{2,}> ?\d)"
)
_MAYBE = re.compile(
    r"\b(?:[Ii]f|[Ww]hen|may|might|could|would|should|avoids?|prevents?|in case|retry|retries)\b[^.:;]{0,200}$"
)
_STATES = re.compile(
    r"(?:^|[^\w\s,]|\d|\b(?:with|failed|failure|errors?|exception|got|caught|threw|by|from|due to|because of|returned|"
    r"returns|results? in|status|code|reason|occurred|encountered|hit|fatal))\s*$",
    re.IGNORECASE,
)
_ADJACENT = 40  # characters between two heads of one message


def _heads(text: str, wording: Wording) -> list[int]:
    """Where the messages of a wording start; heads close to each other belong to one message."""
    starts: list[int] = []
    end = -_ADJACENT - 1
    for match in wording.head.finditer(text):
        if match.start() - end > _ADJACENT and not _is_talk(text, match.start(), wording):
            starts.append(match.start())
        end = match.end()
    return starts


def _is_talk(text: str, start: int, wording: Wording) -> bool:
    """Whether the words are part of a program's source, or of a sentence about what may happen."""
    before = text[max(0, start - 300) : start]
    if _CODE.search(before):
        return True
    if not wording.stated:
        return False
    return _MAYBE.search(before) is not None or not _STATES.search(before.rstrip().rstrip("\"'`\\"))
