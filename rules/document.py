"""YAML with a position for every value: untrusted text in, a small tree out, all mistakes at once.

Plain scalars stay text (`no`, `12:30`, `1e3`); the reader of a field decides what it means. Aliases, tags,
more than one document and anything deeper or larger than a rule file ever is are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpudiag.errors import InputError, LocatedError, Problem

MAX_BYTES = 2**20
MAX_DEPTH = 12
MAX_VALUES = 50_000
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Place:
    """Where a value begins and ends in the text, counted in characters from 0."""

    line: int
    column: int
    start: int
    end: int


@dataclass
class Scalar:
    """A single value, as text."""

    text: str
    place: Place
    plain: bool


@dataclass
class Sequence:
    """A list of values."""

    place: Place
    items: list[Value] = field(default_factory=list)


@dataclass
class Mapping:
    """Keys and values in order; a repeated key has been reported and is not in here twice."""

    place: Place
    items: dict[str, Value] = field(default_factory=dict)
    keys: dict[str, Scalar] = field(default_factory=dict)


Value = Scalar | Sequence | Mapping


class Document:
    """One file: its text, its tree (`root`) and the problems found so far."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.lines = text.split("\n")
        self.problems: list[Problem] = []
        self.root: Value | None = None

    @property
    def digest(self) -> str:
        """Tells this text from any other."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def complain(self, place: Place, message: str, offset: int = 0) -> None:
        """Remember a mistake at `place`, `offset` characters into it (white space not counted)."""
        line, column = self._locate(place, offset)
        shown = self.lines[line] if line < len(self.lines) and len(self.lines[line]) <= 200 else ""
        self.problems.append(Problem(self.name, line + 1, column + 1, message, shown))

    def _locate(self, place: Place, offset: int) -> tuple[int, int]:
        if not offset:
            return place.line, place.column
        position = place.start
        for position in range(place.start, min(place.end, len(self.text))):
            if not self.text[position].isspace():
                offset -= 1
            if offset < 0:
                break
        before = self.text[:position]
        return before.count("\n"), position - (before.rfind("\n") + 1)

    def raise_problems(self) -> None:
        """Raise `LocatedError` with everything found, in order of place, if anything was."""
        if self.problems:
            raise LocatedError(sorted(self.problems, key=lambda p: (p.file, p.line, p.column)))


def read(path: Path) -> Document:
    """Parse a file; raises `InputError` when it cannot be read, `LocatedError` when it is no such YAML."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES // 2**20} MiB, which no rule file is")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        raise LocatedError([Problem(str(path), line, column, "not UTF-8 text")]) from None
    return parse(str(path), text)


def parse(name: str, text: str) -> Document:
    """Parse `text`; raises `LocatedError` when it is not YAML or too deep.

    Repeated keys, aliases and tags are kept in `problems`, to be raised together with the mistakes in the content.
    """
    document = Document(name, text)
    try:
        document.root = _Builder(document).build(yaml.parse(text, Loader=_PARSER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        document.complain(Place(line, column, 0, 0), f"not valid YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        document.complain(Place(0, 0, 0, 0), f"not valid YAML: {str(error).splitlines()[0]}")
    except _TooMuch:
        pass
    if document.root is None:
        document.raise_problems()
    return document


class _TooMuch(Exception):  # noqa: N818 - only leaves the loop
    """The text is too deep or too long; already reported."""


class _Builder:
    """Puts parser events together without recursion."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: list[Sequence | Mapping] = []
        self._keys: list[Scalar | None] = []
        self._root: Value | None = None
        self._count = 0

    def build(self, events: Iterator[Any]) -> Value | None:
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop(_place(event), "one document per file, please: a second one begins here")
            elif isinstance(event, yaml.AliasEvent):
                self._document.complain(_place(event), "aliases (*name) are not allowed here")
                self._add(Scalar("", _place(event), plain=True))
            elif isinstance(event, yaml.NodeEvent):
                self._begin(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._open.pop()
                self._keys.pop()
        return self._root

    def _begin(self, event: Any) -> None:
        place = _place(event)
        if event.anchor or (event.tag and event.tag != "!"):
            self._document.complain(place, "anchors (&name) and tags (!name) are not allowed here")
        if isinstance(event, yaml.ScalarEvent):
            self._add(Scalar(event.value, place, plain=not event.style))
            return
        collection = Sequence(place) if isinstance(event, yaml.SequenceStartEvent) else Mapping(place)
        self._add(collection)
        self._open.append(collection)
        self._keys.append(None)
        if len(self._open) > MAX_DEPTH:
            self._stop(place, f"nested more than {MAX_DEPTH} deep")

    def _add(self, value: Value) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            self._stop(value.place, f"more than {MAX_VALUES} values")
        if not self._open:
            self._root = value
            return
        parent = self._open[-1]
        if isinstance(parent, Sequence):
            parent.items.append(value)
        elif self._keys[-1] is None:
            self._keys[-1] = self._as_key(value)
        else:
            self._put(parent, self._keys[-1], value)
            self._keys[-1] = None

    def _as_key(self, value: Value) -> Scalar:
        if isinstance(value, Scalar):
            return value
        self._document.complain(value.place, "a key must be text")
        return Scalar(f"\0{self._count}", value.place, plain=True)

    def _put(self, parent: Mapping, key: Scalar, value: Value) -> None:
        if key.text in parent.items:
            first = parent.keys[key.text].place.line + 1
            self._document.complain(key.place, f"'{key.text}' is given twice; first in line {first}")
            return
        parent.keys[key.text] = key
        parent.items[key.text] = value

    def _stop(self, place: Place, message: str) -> None:
        self._document.complain(place, message)
        raise _TooMuch


def _place(event: Any) -> Place:
    start, end = event.start_mark, event.end_mark
    return Place(start.line, start.column, start.index, end.index)
