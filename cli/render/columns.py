"""Text in columns: signs that are two cells wide count as two."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rich.cells import cell_len


def padded(text: str, width: int, right: bool = False) -> str:
    """The text with blanks behind it, or before it, up to so many cells."""
    blanks = " " * max(width - cell_len(text), 0)
    return blanks + text if right else text + blanks


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = (), gap: int = 2) -> list[str]:
    """One line per row, columns `gap` cells apart; those whose numbers are in `right` end at one place."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [
        (" " * gap).join(padded(cell, widths[at], at in right) for at, cell in enumerate(row)).rstrip()
        for row in rows
    ]
