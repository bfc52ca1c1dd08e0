"""Every error gpudiag raises on purpose; `cli/main.py` maps them to exit codes.

GpudiagError                    exit 1
 ├─ InputError                  exit 2   a file or argument a person wrote is wrong
 │   └─ LocatedError            exit 2   ... and we know file, line and column
 ├─ NotFoundError               exit 4   no such job, or no data for it
 └─ UnavailableError            exit 5   store or driver not reachable
     └─ StoreError              exit 5   the database cannot be opened, read or written
         ├─ SchemaError         exit 5   no schema yet, or one newer than this program
         ├─ CorruptStoreError   exit 5   the file is no database, or damaged
         ├─ StoreBusyError      exit 5   another agent owns the file
         └─ RefusedRowError     exit 5   a value that the database cannot hold
"""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 160  # characters of a line


class GpudiagError(Exception):
    """Base of all deliberate errors; its text is one line a person can act on."""

    exit_code = 1


class InputError(GpudiagError):
    """Something a person wrote (argument, config, rule, trace) is wrong."""

    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One mistake: where it is, what is wrong, what was expected. Line and column count from 1; line 0: not in a file."""

    file: str
    line: int
    column: int
    message: str
    text: str = ""

    def __str__(self) -> str:
        if not self.line:
            return f"{self.file}: {self.message}"
        head = f"{self.file}:{self.line}:{self.column}: {self.message}"
        if not self.text:
            return head
        begin = max(0, self.column - 1 - _SHOWN // 2)
        shown = "".join(sign if sign.isprintable() else " " for sign in self.text[begin : begin + _SHOWN])
        return f"{head}\n    {shown}\n    {' ' * (self.column - 1 - begin)}^"


class LocatedError(InputError):
    """All mistakes found in a person's file, each with file, line and column."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class NotFoundError(GpudiagError):
    """The job does not exist, or nothing was measured for it."""

    exit_code = 4


class UnavailableError(GpudiagError):
    """A store or a driver does not answer."""

    exit_code = 5


class StoreError(UnavailableError):
    """A database cannot be opened, read or written."""


class SchemaError(StoreError):
    """The database has no schema yet, or one that this program is too old for."""


class CorruptStoreError(StoreError):
    """The file is not a database, or is damaged."""


class StoreBusyError(StoreError):
    """Another process owns the database for writing."""


class RefusedRowError(StoreError):
    """A row holds a value that this database never takes: sending it again would not help."""
