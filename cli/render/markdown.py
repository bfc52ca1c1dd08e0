"""The report for a ticket: Markdown that no name or message from outside can break out of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timezone, tzinfo

from gpudiag.cli.messages import ENGLISH, Words
from gpudiag.cli.render import labels, wording
from gpudiag.cli.render.summary import (
    by_reason,
    device_names,
    event_text,
    least_busy,
    roots,
    waterfall_rows,
)
from gpudiag.cli.render.units import UNBROKEN, clock, harmless, hours, percent
from gpudiag.rules.model import Diagnosis, Finding

_SPECIAL = re.compile(r"[\\`*_{}\[\]#|~]|^(?:[-+=]|\d+(?=[.)]))")
_SHOWN_DEVICES = 16
_SHOWN_EVENTS = 10
_SHOWN_INTERVALS = 4


def render(diagnosis: Diagnosis, words: Words = ENGLISH, zone: tzinfo = timezone.utc) -> str:
    """Head, verdict, findings that no other explains, waterfall, GPUs, events and what was not evaluated."""
    page = _Page(diagnosis, words, zone)
    blocks = (
        page.head(),
        page.findings(),
        page.waterfall(),
        page.devices(),
        page.events(),
        page.rules(),
    )
    return "\n\n".join(block for block in blocks if block) + "\n"


def plain(text: str) -> str:
    """Text from outside that Markdown takes literally: no markup, HTML, mention or link."""
    escaped = (
        _SPECIAL.sub(_literal, harmless(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )
    return escaped.replace("@", "&#64;").replace("://", "&#58;//").replace(UNBROKEN, " ")


def _literal(match: re.Match[str]) -> str:
    return f"{match[0]}\\" if match[0].isdigit() else f"\\{match[0]}"


class _Page:
    """One report being written."""

    def __init__(self, diagnosis: Diagnosis, words: Words, zone: tzinfo) -> None:
        self.diagnosis = diagnosis
        self.words = words
        self.zone = zone
        self.names = device_names(diagnosis)

    def say(self, text: str, **arguments: str) -> str:
        return plain(self.words(text, **arguments))

    def head(self) -> str:
        """Title, facts and the verdict as a quotation."""
        diagnosis = self.diagnosis
        facts = " · ".join(map(plain, wording.facts(diagnosis, self.words)))
        lines = (facts, wording.times(diagnosis, self.zone), plain(wording.measured(diagnosis, self.words)))
        notes = (plain(self.words(note)) for note in diagnosis.notes)
        title = self.say("Job {id}", id=diagnosis.job.id)
        paragraph = "  \n".join((*lines, *notes))
        return f"## {title}\n\n{paragraph}\n\n> **{self.say(diagnosis.verdict)}**"

    def findings(self) -> str:
        return "\n\n".join(
            map(self._finding, range(1, len(roots(self.diagnosis)) + 1), roots(self.diagnosis))
        )

    def _finding(self, number: int, finding: Finding) -> str:
        kind = f"{self.say(labels.SEVERITIES[finding.severity])}, {self.say(labels.CONFIDENCES[finding.confidence])}"
        words, diagnosis = self.words, self.diagnosis
        place = wording.where(finding.sources, diagnosis, self.names, words, _SHOWN_DEVICES)
        rows = [
            (self.say("cost"), plain(wording.cost(finding, diagnosis, words))),
            (self.say("when"), plain(wording.when(finding, diagnosis, words, self.zone, _SHOWN_INTERVALS))),
            (self.say("where"), plain(place)),
            (self.say("evidence"), plain(wording.evidence(finding, self.say))),
            *wording.advice(finding, self.say),
        ]
        lines = "".join(f"\n- {label}: {text}" for label, text in rows if text)
        return f"### {number}. {self.say(finding.summary)}\n\n{plain(finding.rule)} ({kind})\n{lines}"

    def waterfall(self) -> str:
        rows = [
            (plain(label), percent(bucket.ratio), hours(bucket.gpu_hours, self.diagnosis.total_gpu_hours))
            for label, bucket in waterfall_rows(self.diagnosis.waterfall, self.words)
        ]
        return _table((self.say("GPU time"), self.say("share"), self.say("time")), rows)

    def devices(self) -> str:
        columns = [name for name in labels.DEVICE_COLUMNS if name not in ("model", "power")]
        rows = []
        for report in least_busy(self.diagnosis.devices, _SHOWN_DEVICES):
            cells = wording.device_cells(report, self.names[report.source])
            rows.append([plain(cells[name]).replace("\\-", "–") for name in columns])
        return _table([self.say(name) for name in columns], rows)

    def events(self) -> str:
        lines = [
            f"- {clock(event.time_ms, self.zone, self.diagnosis.start_ms)}"
            f" {plain(self.names.get(event.source, event.source.node))}: {plain(event_text(event, self.words))}"
            for event in self.diagnosis.events[:_SHOWN_EVENTS]
        ]
        more = len(self.diagnosis.events) - len(lines)
        return "\n".join(
            [*lines, *([f"- {self.say('more events: {count}', count=str(more))}"] if more else [])]
        )

    def rules(self) -> str:
        """What was judged and what was not."""
        count = len({finding.rule for finding in self.diagnosis.findings})
        line = self.say(
            "RULES  {fired} fired, {passed} passed, {skipped} not evaluated",
            fired=str(count),
            passed=str(len(self.diagnosis.passed)),
            skipped=str(len(self.diagnosis.not_evaluated)),
        )
        reasons = by_reason(self.diagnosis, self.words).items()
        return "\n".join(
            [line, *(f"- {plain(', '.join(rules))}: {plain(reason)}" for reason, rules in reasons)]
        )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
