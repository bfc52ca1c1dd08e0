"""The report for a terminal: at most about sixty lines, the answer first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudiag.cli.messages import ENGLISH, Speaker, Words
from gpudiag.cli.render import labels, wording
from gpudiag.cli.render.style import PLAIN, Style, unbroken
from gpudiag.cli.render.summary import (
    by_reason,
    device_names,
    event_text,
    least_busy,
    origins,
    roots,
    squeeze,
    waterfall_rows,
)  # fmt: skip
from gpudiag.cli.render.timeline import timeline
from gpudiag.cli.render.units import clock, glued, harmless, hours, percent
from gpudiag.rules.model import DeviceReport, Diagnosis, Finding
from gpudiag.rules.verdict import PRODUCTIVE
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Source

SHOWN_FINDINGS = 3
BRIEF_FINDINGS = 3
SHOWN_DEVICES = 8
SHOWN_BUCKETS = 7
SHOWN_EVENTS = 3
SHOWN_INTERVALS = 2
SHOWN_REASONS = 3
SHOWN_RULES = 3
SHOWN_EVIDENCE = 4
SHOWN_NAMES = 8
_NAME = 48
_SEVERITY_COLOURS = {"info": "cyan", "warning": "yellow", "critical": "bold red"}


def render(
    diagnosis: Diagnosis, words: Words = ENGLISH, style: Style = PLAIN, *, verbose: bool = False
) -> str:
    """The whole report; `verbose` lifts every limit on rows."""
    page = _Page(diagnosis, words, style, verbose)
    sections = (
        page.head(),
        page.verdict(),
        page.findings(),
        page.waterfall(),
        page.timeline(),
        page.devices(),
        page.rules(),
    )
    parts: list[RenderableType] = []
    for section in sections:
        parts += section if not parts or not section else [Text(""), *section]
    return style.print(parts)


class _Page:
    """One report being laid out."""

    def __init__(self, diagnosis: Diagnosis, words: Words, style: Style, verbose: bool) -> None:
        self.diagnosis = diagnosis
        self.words = _clean(words)
        self.style = style
        self.verbose = verbose
        self.roots = roots(diagnosis)
        self.ordered = (*self.roots, *(one for one in diagnosis.findings if one.explained_by))
        self.names = device_names(diagnosis)

    def head(self) -> list[RenderableType]:
        """Who, where, when, and how much of it was measured."""
        diagnosis = self.diagnosis
        title = Text.assemble(
            (self.words("Job {id}", id=diagnosis.job.id), "bold"),
            "  ",
            " · ".join(map(harmless, wording.facts(diagnosis, self.words, _NAME))),
        )
        lines = (wording.times(diagnosis, self.style.zone), wording.measured(diagnosis, self.words))
        return [title, *map(Text, lines), *map(Text, self._notes())]

    def _notes(self) -> list[str]:
        notes = [self.words(note) for note in self.diagnosis.notes]
        return notes if self.verbose else notes[:3]

    def verdict(self) -> list[RenderableType]:
        return [Text(unbroken(glued(self.words(self.diagnosis.verdict))), style="bold")]

    def findings(self) -> list[RenderableType]:
        """The costliest findings: what, cost, evidence with clock times, one action."""
        shown = self.ordered if self.verbose else self.roots[:SHOWN_FINDINGS]
        parts: list[RenderableType] = []
        for number, finding in enumerate(shown, 1):
            parts += self._finding(number, finding)
        brief = () if self.verbose else self.roots[SHOWN_FINDINGS:][:BRIEF_FINDINGS]
        parts += (self._brief(number, finding) for number, finding in enumerate(brief, SHOWN_FINDINGS + 1))
        hidden = len(self.diagnosis.findings) - len(shown) - len(brief)
        if hidden:
            more = self.words("more findings: {count} (--verbose shows all)", count=str(hidden))
            parts.append(Text(more, "dim"))
        return parts

    def _title(self, number: int, finding: Finding, *said: str | tuple[str, str]) -> Table:
        """Number, severity, confidence and what is said; further lines begin below the severity."""
        severity = self.words(labels.SEVERITIES[finding.severity]).upper()
        confidence = self.words(labels.CONFIDENCES[finding.confidence])
        colour = _SEVERITY_COLOURS[finding.severity]
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True)
        row.add_row(
            Text(f"{number}.", colour), Text.assemble((severity, colour), f" ({confidence})  ", *said)
        )
        return row

    def _brief(self, number: int, finding: Finding) -> Table:
        """A finding that has one line only; --verbose says the rest of it."""
        lost = f"  ({self._hours(finding.lost_gpu_hours)})" if finding.lost_gpu_hours else ""
        return self._title(number, finding, self.words(finding.summary), (lost, "dim"))

    def _finding(self, number: int, finding: Finding) -> list[RenderableType]:
        _ = self.words
        title = self._title(number, finding, (_(finding.summary), "bold"))
        cost = wording.cost(finding, self.diagnosis, _)
        intervals = None if self.verbose else SHOWN_INTERVALS
        when = wording.when(finding, self.diagnosis, _, self.style.zone, intervals)
        rows = [
            (_("cost"), f"{cost}  [{finding.rule}]"),
            (_("when"), f"{when}  ({self._who(finding.sources)})"),
        ]
        if finding.evidence:
            rows.append(
                (_("evidence"), wording.evidence(finding, _, None if self.verbose else SHOWN_EVIDENCE))
            )
        rows += wording.advice(finding, _, None if self.verbose else 1)
        if finding.explained_by:
            rows.append((_("explained by"), finding.explained_by))
        return [title, Padding(_grid(rows), (0, 0, 0, 3))]

    def _hours(self, gpu_hours: float) -> str:
        return hours(gpu_hours, self.diagnosis.total_gpu_hours)

    def _who(self, sources: tuple[Source, ...]) -> str:
        limit = None if self.verbose else SHOWN_NAMES
        return harmless(wording.where(sources, self.diagnosis, self.names, self.words, limit))

    def waterfall(self) -> list[RenderableType]:
        """Where the GPU time went, one row per cause; the rows add up to all of it."""
        _, total = self.words, self.diagnosis.total_gpu_hours
        if not self.diagnosis.waterfall:
            return []
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        for label, bucket in waterfall_rows(
            self.diagnosis.waterfall, _, None if self.verbose else SHOWN_BUCKETS
        ):
            colour = "green" if bucket.cause in PRODUCTIVE else "yellow"
            table.add_row(
                label,
                percent(bucket.ratio),
                self._hours(bucket.gpu_hours),
                Text(self.style.bar(bucket.ratio, self.style.width - 56), colour),
            )
        heading = _("GPU TIME  {hours} allocated = 100 %", hours=self._hours(total))
        return [Text(heading, "bold"), Padding(table, (0, 0, 0, 2))]

    def timeline(self) -> list[RenderableType]:
        """Phases, findings and events on one axis, and what the events were."""
        shown = self.roots if self.verbose else self.roots[: SHOWN_FINDINGS + BRIEF_FINDINGS]
        return [*timeline(self.diagnosis, shown, self.words, self.style), *self.events()]

    def devices(self) -> list[RenderableType]:
        """A row per GPU; of many, those that did least."""
        reports, _ = self.diagnosis.devices, self.words
        shown = reports if self.verbose else least_busy(reports, SHOWN_DEVICES)
        if not shown:
            return []
        headline = shown[0].headline
        title = _(labels.HEADLINES.get(headline, headline))
        origin = origins(shown, headline) or ("" if headline else _("not measured"))
        heading = (
            _("GPUS  {metric}, {origin}", metric=title, origin=origin)
            if origin
            else _("GPUS  {metric}", metric=title)
        )
        parts: list[RenderableType] = [
            Text(heading, "bold"),
            Padding(self._device_table(shown, title), (0, 0, 0, 2)),
        ]
        if len(shown) < len(reports):
            hidden = str(len(reports) - len(shown))
            parts.append(Text("  " + _("busier GPUs: {count} (--verbose shows all)", count=hidden), "dim"))
        return parts

    def _device_table(self, shown: Sequence[DeviceReport], title: str) -> Table:
        """The columns, and a sparkline in what room they leave."""
        head = [self.words(name) for name in self._columns()]
        cells = [self._device_cells(report) for report in shown]
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        for name in head:
            table.add_column(name, justify="left" if name == head[0] else "right", no_wrap=True)
        table.add_column(title, no_wrap=True, overflow="crop")
        taken = sum(2 + max(map(cell_len, column)) for column in zip(head, *cells, strict=True))
        room = max(8, self.style.width - 4 - taken)
        for report, row in zip(shown, cells, strict=True):
            table.add_row(*row, self.style.sparkline(squeeze(report.timeline, room)))
        return table

    def _columns(self) -> tuple[str, ...]:
        left_out = ("model",) if self.style.width >= 100 else ("model", "p10", "power")
        return tuple(name for name in labels.DEVICE_COLUMNS if name not in left_out)

    def _device_cells(self, report: DeviceReport) -> list[str]:
        cells = wording.device_cells(report, self._device_label(report.source))
        return [cells[name] for name in self._columns()]

    def _device_label(self, source: Source) -> str:
        """Name, and the numbers of the shown findings that single this device out."""
        marks = "".join(
            f"[{number}]"
            for number, finding in enumerate(self.roots[: SHOWN_FINDINGS + BRIEF_FINDINGS], 1)
            if source in finding.sources and len(finding.sources) < len(self.diagnosis.devices)
        )
        return f"{self.names[source]} {marks}".rstrip()

    def events(self) -> list[RenderableType]:
        events = self.diagnosis.events
        if not events:
            return []
        shown = events if self.verbose else events[:SHOWN_EVENTS]
        lines: list[RenderableType] = [Text("  " + self._event(event)) for event in shown]
        if len(shown) < len(events):
            hidden = str(len(events) - len(shown))
            lines.append(
                Text("  " + self.words("more events: {count} (--verbose shows all)", count=hidden), "dim")
            )
        return lines

    def _event(self, event: Event) -> str:
        when = clock(event.time_ms, self.style.zone, self.diagnosis.start_ms)
        return f"{when}  {self._who((event.source,))}  {event_text(event, self.words)}"

    def rules(self) -> list[RenderableType]:
        """What fired, what was judged and found well, what could not be judged and why."""
        _, diagnosis = self.words, self.diagnosis
        fired = sorted({finding.rule for finding in diagnosis.findings})
        line = _(
            "RULES  {fired} fired, {passed} passed, {skipped} not evaluated",
            fired=str(len(fired)),
            passed=str(len(diagnosis.passed)),
            skipped=str(len(diagnosis.not_evaluated)),
        )
        parts: list[RenderableType] = [Text(line, "bold")]
        if self.verbose and diagnosis.passed:
            parts.append(Padding(Text(_("passed") + ": " + ", ".join(diagnosis.passed)), (0, 0, 0, 2)))
        for reason, rules in by_reason(diagnosis, _).items():
            shown = rules if self.verbose else rules[:SHOWN_RULES]
            names = ", ".join(shown) + (", …" if len(shown) < len(rules) else "")
            text = _("not evaluated: {rules}: {reason}", rules=names, reason=reason)
            parts.append(Padding(Text(text), (0, 0, 0, 2)))
        if not self.verbose and len(parts) > SHOWN_REASONS + 1:
            more = _("more reasons: {count} (--verbose shows all)", count=str(len(parts) - SHOWN_REASONS))
            parts[SHOWN_REASONS:] = [Text(f"  {more}", "dim")]
        return parts


def _clean(words: Words) -> Speaker:
    """The same words, with nothing in them that could steer a terminal."""
    return lambda text, **arguments: harmless(words(text, **arguments))


def _grid(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(unbroken(glued(harmless(text)))))
    return table
