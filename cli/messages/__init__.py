"""What people read, in their language: gettext catalogues, one `<language>.po` beside this file.

English is the language of the message ids themselves. The `.po` files are read directly: there is no
compiled copy that could be out of date, and reading one takes a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TextIO

from gpudiag.errors import InputError
from gpudiag.message import Message

LANGUAGES = ("en", "zh")
Speaker = Callable[..., str]  # (text, **arguments) -> the text in some language


@dataclass(frozen=True)
class Words:
    """Says texts in one language; a text without a translation stays English."""

    language: str = "en"
    catalogue: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, text: str, /, **arguments: str) -> str:
        """The text in this language, `{name}` placeholders filled in; messages keep their own arguments."""
        if isinstance(text, Message):
            arguments = {name: self(value) for name, value in text.arguments.items()}
            text = text.msgid
        translated = self.catalogue.get(text) or str(text)
        return translated.format_map(arguments) if arguments else translated


ENGLISH = Words()


def language_of(wanted: str, environ: Mapping[str, str]) -> str:
    """`wanted` when given, else the locale's language (LC_ALL, LC_MESSAGES, LANG), else English."""
    if wanted:
        return wanted
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if value := environ.get(variable):
            language = value.partition(".")[0].partition("_")[0].lower()
            return language if language in LANGUAGES else "en"
    return "en"


def load(language: str) -> Words:
    """The catalogue of a language. Raises InputError for one that gpudiag does not speak."""
    if language not in LANGUAGES:
        raise InputError(f"unknown language {language!r}: expected one of {', '.join(LANGUAGES)}")
    if language == "en":
        return ENGLISH
    text = (files(__package__) / f"{language}.po").read_text(encoding="utf-8")
    return Words(language, read_po(text))


def spoken_on(stream: TextIO, words: Words) -> Words:
    """The same language, or English where the stream's encoding cannot show it."""
    return words if can_show(stream, words("critical")) else ENGLISH


def can_show(stream: TextIO, text: str) -> bool:
    """Whether the stream's encoding has these characters."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def read_po(text: str) -> dict[str, str]:
    """`msgid` to `msgstr` of a gettext catalogue: strings over several lines, comments and the header skipped.

    Raises ValueError with the line number for anything else (plural forms and contexts are not used here).
    """
    found: dict[str, str] = {}
    parts = {"msgid": "", "msgstr": ""}
    current = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        keyword, _, rest = line.partition(" ") if not line.startswith('"') else (current, "", line)
        if keyword not in parts or not (rest.startswith('"') and rest.endswith('"') and len(rest) > 1):
            raise ValueError(f'line {number}: expected msgid "..." or msgstr "..."')
        if keyword == "msgid" and keyword != current:
            found[parts["msgid"]] = parts["msgstr"]
            parts = {"msgid": "", "msgstr": ""}
        current = keyword
        parts[keyword] += _unquote(rest)
    found[parts["msgid"]] = parts["msgstr"]
    found.pop("", None)
    return {msgid: msgstr for msgid, msgstr in found.items() if msgstr}


_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def _unquote(quoted: str) -> str:
    pieces = quoted[1:-1].split("\\\\")
    for plain, code in _ESCAPES.items():
        if plain != "\\":
            pieces = [piece.replace(f"\\{plain}", code) for piece in pieces]
    return "\\".join(pieces)
