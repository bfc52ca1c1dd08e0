"""How a terminal wants its text: width, colour, character set; and the drawing signs that fit it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TextIO

import numpy as np
from rich.console import Console, RenderableType

from gpudiag.cli.messages import can_show
from gpudiag.cli.render.units import UNBROKEN

_STUCK = "\N{SYMBOL FOR SPACE}"  # rich breaks lines at no-break spaces too
_BLOCKS = "▁▂▃▄▅▆▇█"
_LEVELS = "_.:-=+*#"
_SIGNS = "▁▂▃▄▅▆▇█░━│…–·×→≥°"
_TO_ASCII = str.maketrans(
    {
        "–": "-", "—": "-", "·": "|", "×": "x", "→": "->", "≥": ">=", "≤": "<=", "…": "...", "°": "", "−": "-",
        "█": "#", "░": ".", "━": "=", "│": "|", "∞": "inf", "’": "'", "“": '"', "”": '"', "\N{REPLACEMENT CHARACTER}": "?",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """Columns to fill, whether colour and non-ASCII signs are welcome, and the zone of printed times."""

    width: int = 100
    colour: bool = False
    unicode: bool = True
    zone: tzinfo = timezone.utc

    def sparkline(self, values: Sequence[float], top: float = 1.0) -> str:
        """One sign per value between 0 and `top`; a blank where nothing was measured."""
        signs = _BLOCKS if self.unicode else _LEVELS
        return "".join(
            " " if np.isnan(value) else signs[min(int(max(value, 0.0) / top * len(signs)), len(signs) - 1)]
            for value in values
        )

    def bar(self, ratio: float, width: int) -> str:
        """A bar of at most `width` cells; anything above nothing shows at least one."""
        cells = 0 if ratio <= 0 else max(1, round(min(ratio, 1.0) * width))
        return ("█" if self.unicode else "#") * cells

    def print(self, parts: Sequence[RenderableType]) -> str:
        """The parts below each other as lines without trailing blanks."""
        console = Console(
            file=io.StringIO(),
            width=self.width,
            force_terminal=self.colour,
            color_system="standard" if self.colour else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )
        with console.capture() as capture:
            for part in parts:
                console.print(part)
        text = "\n".join(line.rstrip() for line in capture.get().replace(_STUCK, " ").splitlines())
        return text if self.unicode else text.translate(_TO_ASCII)


PLAIN = Style()


def unbroken(text: str) -> str:
    """The text for `Style.print`, which breaks no line at its no-break spaces."""
    return text.replace(UNBROKEN, _STUCK)


def terminal_style(
    environ: Mapping[str, str], stream: TextIO | None = None, colour: str = "auto", ascii_only: bool = False
) -> Style:
    """The style of a stream: NO_COLOR, FORCE_COLOR, TERM, COLUMNS and its encoding decide.

    `colour` is `auto`, `always` or `never`. A stream that is no terminal gets plain text of 100 columns
    unless COLUMNS says otherwise.
    """
    stream = stream or sys.stdout
    terminal = stream.isatty()
    return Style(
        width=_columns(environ, stream if terminal else None),
        colour=_wants_colour(environ, terminal, colour),
        unicode=not ascii_only and can_show(stream, _SIGNS),
        zone=local_zone(),
    )


def local_zone() -> tzinfo:
    """The zone that times are printed in: the machine's, or what TZ says."""
    return _Local()


class _Local(tzinfo):
    """The system's rules for each instant, so that a job across a clock change has both offsets."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta() if when is None else _local(when).utcoffset() or timedelta()

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None if when is None else _local(when).tzname()

    def fromutc(self, when: datetime) -> datetime:
        local = when.replace(tzinfo=timezone.utc).astimezone()
        wall = local.replace(tzinfo=None)
        second_time = (
            wall.astimezone().utcoffset() != local.utcoffset()
        )  # the hour that comes again in autumn
        return wall.replace(tzinfo=self, fold=int(second_time))


def _local(when: datetime) -> datetime:
    return when.replace(tzinfo=None).astimezone()


def _columns(environ: Mapping[str, str], terminal: TextIO | None) -> int:
    if environ.get("COLUMNS", "").isdecimal():
        return max(int(environ["COLUMNS"]), 40)
    if terminal is None:
        return 100
    try:
        columns = os.get_terminal_size(terminal.fileno()).columns
    except (OSError, ValueError):
        columns = 80
    return min(max(columns, 40), 160)


def _wants_colour(environ: Mapping[str, str], terminal: bool, colour: str) -> bool:
    if colour != "auto":
        return colour == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return terminal and environ.get("TERM") != "dumb"
