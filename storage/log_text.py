"""Text files that other programs wrote: encodings, lines and cells, and where in them a mistake is."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpudiag.errors import InputError, Problem

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text in UTF-8 or UTF-16, with or without a byte-order mark, one at a time; raises `InputError`.

    The last line has no line end when the file has none there.
    """
    try:
        with path.open("rb") as file:
            encoding = _encoding(file.read(4))
        with path.open(encoding=encoding) as text:
            for line in text:
                if "\0" in line:
                    raise InputError(f"{path}: this is a binary file; expected a CSV log")
                yield line
    except UnicodeError as error:
        raise InputError(
            f"{path}: this is no text in UTF-8 or UTF-16 ({error}); expected a CSV log"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _encoding(data: bytes) -> str:
    for mark, name in _BOMS:
        if data.startswith(mark):
            return name
    if b"\0" in data[:2]:
        return "utf-16-be" if data[0] == 0 else "utf-16-le"
    return "utf-8"


def cells(line: str, delimiter: str) -> list[str]:
    """The cells of one line of CSV, without the blanks around them."""
    try:
        parts = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except csv.Error:  # over-long cells: let whoever counts the cells say what is wrong
        parts = line.split(delimiter)
    return [part.strip() for part in parts] or [""]


@dataclass(frozen=True)
class Place:
    """A line of a log, for messages."""

    file: str
    line: int
    text: str
    delimiter: str

    def problem(self, cell: int, message: str) -> Problem:
        """A mistake in the cell at position `cell` of this line."""
        before = self.text.split(self.delimiter)[:cell]
        start = sum(len(part) + len(self.delimiter) for part in before)
        blanks = len(self.text[start:]) - len(self.text[start:].lstrip())
        return Problem(self.file, self.line, start + blanks + 1, message, self.text)
