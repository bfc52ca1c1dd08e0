"""Phases, findings and events of a job on one time axis of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import groupby

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpudiag.cli.messages import Speaker
from gpudiag.cli.render import labels
from gpudiag.cli.render.style import Style, unbroken
from gpudiag.cli.render.units import clock, duration
from gpudiag.cli.render.wording import listed
from gpudiag.rules.model import Diagnosis, Finding, Interval, PhaseSpan

_GUTTER = 12
_SHOWN_PHASES = 8
_SHORT_MS = 120_000  # up to here, minutes would give a beginning and an end that look alike
_LONG_MS = 3_600_000  # from an hour on, minutes are exact enough for an axis
_LABEL_CELLS = 16
_ROUND_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
                  172_800, 604_800)  # fmt: skip
_PHASE_COLOURS = {
    "train": "green",
    "eval": "cyan",
    "checkpoint": "blue",
    "hung": "red",
    "idle": "red",
    "tail": "red",
}


@dataclass(frozen=True)
class Axis:
    """Maps times of a job to the cells of a row."""

    start_ms: int
    end_ms: int
    cells: int

    def cell(self, time_ms: int) -> int:
        """Cell of an instant, clipped to the row."""
        length = max(self.end_ms - self.start_ms, 1)
        return min(max((time_ms - self.start_ms) * self.cells // length, 0), self.cells - 1)

    def dominant(self, phases: Sequence[PhaseSpan]) -> list[str]:
        """Per cell the phase that fills most of it; a short phase never loses its only cell to a long one."""
        width = max(self.end_ms - self.start_ms, 1) / self.cells
        share: list[dict[str, float]] = [{} for _ in range(self.cells)]
        for phase in phases:
            interval = phase.interval
            for cell in range(self.cell(interval.start_ms), self.cell(interval.end_ms - 1) + 1):
                left = self.start_ms + cell * width
                overlap = min(interval.end_ms, left + width) - max(interval.start_ms, left)
                share[cell][phase.phase] = share[cell].get(phase.phase, 0.0) + overlap
        return [max(cell, key=lambda name: cell[name]) if cell else "" for cell in share]


def timeline(
    diagnosis: Diagnosis, findings: Sequence[Finding], words: Speaker, style: Style
) -> list[RenderableType]:
    """An axis with clock times, a row of phases, one per finding, one of events, and the phases' lengths."""
    axis = Axis(diagnosis.start_ms, diagnosis.end_ms, max(style.width - _GUTTER - 4, 20))
    parts: list[RenderableType] = [_ruler(axis, words("PHASES"), style)]
    if diagnosis.phases:
        parts.append(_phases(axis, diagnosis.phases, style))
    for number, finding in enumerate(findings, 1):
        signs = _marks(axis, finding.intervals, "━" if style.unicode else "=")
        parts.append(_row(words("finding {number}", number=str(number)), Text(signs, "yellow")))
    if diagnosis.events:
        instants = (Interval(event.time_ms, event.time_ms + 1) for event in diagnosis.events)
        parts.append(_row(words("events"), Text(_marks(axis, instants, "x"), "red")))
    summary = phase_summary(diagnosis, words, style)
    if summary:
        parts.append(Padding(Text(unbroken(summary)), (0, 0, 0, 2)))
    return parts


def phase_summary(diagnosis: Diagnosis, words: Speaker, style: Style) -> str:
    """Each phase with its letter, total length, and clock times or how often it came."""
    groups: dict[str, list[Interval]] = {}
    for phase in diagnosis.phases:
        groups.setdefault(phase.phase, []).append(phase.interval)
    shown = sorted(groups.items(), key=lambda group: group[1][0].start_ms)[:_SHOWN_PHASES]
    texts = []
    for name, intervals in shown:
        whole_ms = intervals[-1].end_ms - intervals[0].start_ms
        seconds = diagnosis.end_ms - diagnosis.start_ms < _LONG_MS or whole_ms < _SHORT_MS
        first = clock(intervals[0].start_ms, style.zone, diagnosis.start_ms, seconds=seconds)
        last = clock(intervals[-1].end_ms, style.zone, diagnosis.start_ms, seconds=seconds)
        total = duration(sum(interval.seconds for interval in intervals))
        times = " " + words("in {count} stretches", count=str(len(intervals))) if len(intervals) > 1 else ""
        letter = labels.PHASE_LETTERS.get(name, "-")
        texts.append(f"{letter} {words(labels.PHASES.get(name, name))} {total}{times} {first}–{last}")
    return listed(texts)


def _ruler(axis: Axis, title: str, style: Style) -> Text:
    """Clock times above the rows: both ends, and between them the round ones that have room."""
    seconds = axis.end_ms - axis.start_ms < _LONG_MS
    line = [" "] * (axis.cells + 10)
    for time_ms in (axis.start_ms, axis.end_ms, *_round_times(axis, style.zone)):
        label = clock(time_ms, style.zone, axis.start_ms, seconds=seconds)
        at = axis.cell(time_ms)
        at = max(min(at, axis.cells - len(label)), 0) if time_ms == axis.end_ms else at
        if not "".join(line[max(at - 2, 0) : at + len(label) + 2]).strip():
            line[at : at + len(label)] = label
    return _row(title, Text("".join(line).rstrip(), "dim"), "bold")


def _round_times(axis: Axis, zone: tzinfo) -> range:
    """Times between the ends, at least so many cells apart, that are round on the clocks of the zone."""
    length_ms = axis.end_ms - axis.start_ms
    least_ms = length_ms * _LABEL_CELLS / axis.cells
    step_ms = next((1000 * step for step in _ROUND_SECONDS if 1000 * step >= least_ms), length_ms + 1)
    offset = datetime.fromtimestamp(axis.start_ms / 1000, zone).utcoffset() or timedelta()
    early_ms = (axis.start_ms + round(offset.total_seconds()) * 1000) % step_ms
    return range(axis.start_ms - early_ms + step_ms, axis.end_ms, step_ms)


def _phases(axis: Axis, phases: Sequence[PhaseSpan], style: Style) -> Text:
    row = Text()
    for name, cells in groupby(axis.dominant(phases)):
        letter = labels.PHASE_LETTERS.get(name, "-") if name else " "
        row.append(letter * len(list(cells)), _PHASE_COLOURS.get(name, "yellow") if name else "")
    return _row("", row)


def _marks(axis: Axis, intervals: Iterable[Interval], sign: str) -> str:
    cells = [" "] * axis.cells
    for interval in intervals:
        for cell in range(
            axis.cell(interval.start_ms), axis.cell(max(interval.end_ms - 1, interval.start_ms)) + 1
        ):
            cells[cell] = sign
    return "".join(cells).rstrip()


def _row(label: str, content: Text, style: str = "") -> Text:
    indent = "" if style == "bold" else "  "
    gap = " " * max(_GUTTER - cell_len(indent + label), 1)
    return Text.assemble((indent + label, style), gap, content, no_wrap=True, overflow="crop")
