"""The report as one HTML file: no network, a strict content-security policy, and everything from outside escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from datetime import datetime, timezone, tzinfo
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from gpudiag.cli.messages import ENGLISH, Words
from gpudiag.cli.render import labels, wording
from gpudiag.cli.render.series import Chart, Charts, Thinned
from gpudiag.cli.render.summary import by_reason, device_names, event_text, roots, waterfall_rows
from gpudiag.cli.render.units import clock, duration, harmless, hours, instant, percent, span
from gpudiag.rules.model import DeviceReport, Diagnosis, Finding
from gpudiag.rules.verdict import PRODUCTIVE
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.sample import Floats

_MISSING = 65535
_MOST_ROWS = 200
_MOST_NAMES = 32
_MOST_INTERVALS = 6


def render(diagnosis: Diagnosis, charts: Charts, words: Words = ENGLISH, zone: tzinfo = timezone.utc) -> str:
    """The whole page. Times are in the zone's offset at the start of the job."""
    page = _Page(diagnosis, words, zone)
    style, script = _asset("report.css"), _asset("report.js")
    return Template(_asset("report.html")).substitute(
        page.parts(),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_embedded(page.data(charts)),
    )


@cache
def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _embedded(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Page:
    """The static half of the page: text and tables, readable without a script."""

    def __init__(self, diagnosis: Diagnosis, words: Words, zone: tzinfo) -> None:
        self.diagnosis = diagnosis
        self.words = words
        offset = datetime.fromtimestamp(diagnosis.start_ms / 1000, zone).utcoffset()
        self.zone = zone if offset is None else timezone(offset)
        self.names = device_names(diagnosis)
        self.findings = (*roots(diagnosis), *(one for one in diagnosis.findings if one.explained_by))

    def say(self, text: str, **arguments: str) -> str:
        """Translated and safe inside HTML."""
        return escape(harmless(self.words(text, **arguments)))

    def parts(self) -> dict[str, str]:
        """Values of the template's places."""
        _, diagnosis = self.say, self.diagnosis
        heading = _("Job {id}", id=diagnosis.job.id)
        return {
            "language": "zh-Hans" if self.words.language == "zh" else escape(self.words.language),
            "title": heading + " · gpudiag",
            "heading": heading,
            "facts": self._facts(),
            "measured": self._safe(wording.measured(diagnosis, self.words)),
            "notes": "".join(f"<p>{_(note)}</p>" for note in diagnosis.notes),
            "theme_label": _("light or dark"),
            "verdict": _(diagnosis.verdict),
            "findings_label": _("Findings"),
            "findings": self._findings() or f"<p>{_('No rule found anything to complain about.')}</p>",
            "waterfall_label": _("GPU time"),
            "waterfall": self._waterfall(),
            "timeline_label": _("Timeline"),
            "help": _(
                "Drag to zoom, double-click or 0 for the whole job, arrow keys to move, + and - to zoom,"
                " 1 to 9 or a click on a finding to see it. Line: mean, band: lowest to highest GPU."
            ),
            "noscript": _("The charts need JavaScript; everything else on this page does not."),
            "devices_label": _("GPUs"),
            "devices": self._devices(),
            "phases_label": _("Phases"),
            "phases": self._phases(),
            "events": self._events(),
            "rules_label": _("Rules"),
            "rules": self._rules(),
            "footer": _("Made by gpudiag. Times have the offset {offset}.", offset=self._offset()),
        }

    def _offset(self) -> str:
        return instant(self.diagnosis.start_ms, self.zone)[19:]

    def _safe(self, text: str) -> str:
        return escape(harmless(text))

    def _facts(self) -> str:
        facts = (*wording.facts(self.diagnosis, self.words), wording.times(self.diagnosis, self.zone))
        return " · ".join(map(self._safe, facts))

    def _findings(self) -> str:
        """What to act on first; what another finding explains is folded up behind it."""
        articles = [*map(self._finding, range(len(self.findings)), self.findings)]
        first = len(roots(self.diagnosis))
        symptoms = "".join(articles[first:])
        if symptoms:
            label = self.say("symptoms of the findings above: {count}", count=str(len(articles) - first))
            symptoms = f"<details><summary>{label}</summary>{symptoms}</details>"
        return "".join(articles[:first]) + symptoms

    def _finding(self, index: int, finding: Finding) -> str:
        _, safe, diagnosis = self.say, self._safe, self.diagnosis
        kind = f"{_(labels.SEVERITIES[finding.severity])}, {_(labels.CONFIDENCES[finding.confidence])}"
        place = wording.where(finding.sources, diagnosis, self.names, self.words, _MOST_NAMES)
        rows = [
            (_("rule"), f"{safe(finding.rule)} ({kind})"),
            (_("cost"), safe(wording.cost(finding, diagnosis, self.words))),
            (_("when"), safe(wording.when(finding, diagnosis, self.words, self.zone, _MOST_INTERVALS))),
            (_("where"), safe(place)),
            (_("evidence"), safe(wording.evidence(finding, self.words))),
            *((label, safe(text)) for label, text in wording.advice(finding, self.words)),
            (_("explained by"), safe(finding.explained_by)),
        ]
        listing = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows if value)
        title = f'<span class="badge">{index + 1}</span> <b>{_(finding.summary)}</b>'
        return (
            f'<article tabindex="0" class="finding {finding.severity}" data-finding="{index + 1}">'
            f"{title}<dl>{listing}</dl></article>"
        )

    def _waterfall(self) -> str:
        rows = []
        for label, bucket in waterfall_rows(self.diagnosis.waterfall, self.words):
            kind = (
                "good" if bucket.cause in PRODUCTIVE else "none" if bucket.cause == "not_measured" else "lost"
            )
            width = max(100 * min(bucket.ratio, 1.0), 0.3)
            bar = f'<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none"><rect class="{kind}" width="{width:.2f}" height="1"/></svg>'
            cells = (
                escape(harmless(label)),
                percent(bucket.ratio),
                hours(bucket.gpu_hours, self.diagnosis.total_gpu_hours),
            )
            rows.append("".join(f"<td>{cell}</td>" for cell in cells) + f'<td class="wide">{bar}</td>')
        head = (self.say("cause"), self.say("share"), self.say("time"), "")
        return _table(head, rows)

    def _devices(self) -> str:
        headline = self.diagnosis.devices[0].headline if self.diagnosis.devices else ""
        title = self.say(labels.HEADLINES.get(headline, headline))
        head = [
            self.say(name) + (f" ({title})" if name in ("mean", "p10") and title else "")
            for name in labels.DEVICE_COLUMNS
        ]
        return _table(
            head, map(self._device, self.diagnosis.devices), left=labels.DEVICE_COLUMNS.index("model")
        )

    def _device(self, report: DeviceReport) -> str:
        cells = dict(wording.device_cells(report, self.names[report.source]))
        if report.longest_idle:
            cells["longest idle"] += (
                f" ({clock(report.longest_idle.start_ms, self.zone, self.diagnosis.start_ms)})"
            )
        return "".join(
            f'<td class="left">{self._safe(cells[name])}</td>'
            if name == "model"
            else f"<td>{self._safe(cells[name])}</td>"
            for name in labels.DEVICE_COLUMNS
        )

    def _phases(self) -> str:
        rows = [
            f"<td>{self.say(labels.PHASES.get(phase.phase, phase.phase))}</td>"
            f"<td>{span(phase.interval.start_ms, phase.interval.end_ms, self.zone, self.diagnosis.start_ms)}</td>"
            f"<td>{duration(phase.interval.seconds)}</td>"
            for phase in self.diagnosis.phases[:_MOST_ROWS]
        ]
        return _table((self.say("phase"), self.say("from, to"), self.say("length")), rows)

    def _events(self) -> str:
        if not self.diagnosis.events:
            return ""
        rows = [
            f"<td>{clock(event.time_ms, self.zone, self.diagnosis.start_ms)}</td>"
            f'<td class="left">{escape(harmless(self.names.get(event.source, event.source.node)))}</td>'
            f'<td class="left">{escape(event_text(event, self.words))}</td>'
            for event in self.diagnosis.events[:_MOST_ROWS]
        ]
        title = self.say("Events")
        return f'<section aria-label="{title}"><h2>{title}</h2>{_table((self.say("time"), "", ""), rows)}</section>'

    def _rules(self) -> str:
        skipped = "".join(
            f"<li>{escape(', '.join(map(harmless, rules)))}: {escape(harmless(reason))}</li>"
            for reason, rules in by_reason(self.diagnosis, self.words).items()
        )
        passed = escape(", ".join(map(harmless, self.diagnosis.passed)))
        fired = escape(", ".join(sorted({harmless(finding.rule) for finding in self.diagnosis.findings})))
        return (
            f"<p>{self.say('fired')}: {fired or '-'}</p><p>{self.say('passed')}: {passed or '-'}</p>"
            f"<p>{self.say('not evaluated')}: {'' if skipped else '-'}</p><ul>{skipped}</ul>"
        )

    def data(self, charts: Charts) -> dict[str, Any]:
        """What the script draws."""
        offset = self.zone.utcoffset(None)
        return {
            "start": charts.start_ms,
            "end": charts.end_ms,
            "offset_minutes": 0 if offset is None else round(offset.total_seconds() / 60),
            "gpus": [self.names[report.source] for report in self.diagnosis.devices],
            "text": {name: harmless(self.words(text)) for name, text in labels.SCRIPT.items()},
            "phases": [
                {
                    "phase": phase.phase,
                    "label": self.words(labels.PHASES.get(phase.phase, phase.phase)),
                    "start": phase.interval.start_ms,
                    "end": phase.interval.end_ms,
                }
                for phase in self.diagnosis.phases
            ],
            "findings": [
                {
                    "number": number,
                    "severity": finding.severity,
                    "intervals": [[one.start_ms, one.end_ms] for one in finding.intervals],
                }
                for number, finding in enumerate(self.findings, 1)
            ],
            "events": [
                {"time": one.time_ms, "text": event_text(one, self.words)} for one in self.diagnosis.events
            ],
            "charts": [self._chart(chart) for chart in charts.charts],
        }

    def _chart(self, chart: Chart) -> dict[str, Any]:
        bottom, top = _limits(chart)
        return {
            "title": self.words(labels.METRICS.get(chart.metric, chart.metric)),
            "help": METRICS[(chart.scope, chart.metric)].help,  # type: ignore[index]
            "unit": chart.unit,
            "bottom": bottom,
            "top": top,
            "buckets": chart.envelope.mean.shape[-1],
            "envelope": _packed(chart.envelope, bottom, top),
            "strips": None
            if chart.strips is None
            else {**_packed(chart.strips, bottom, top), "buckets": chart.strips.mean.shape[-1]},
        }


def _table(head: Iterable[str], rows: Iterable[str], left: int = 0) -> str:
    """Numbers stand right; the first column and the one at `left` are words."""
    heads = "".join(
        f'<th class="left">{cell}</th>' if at == left else f"<th>{cell}</th>" for at, cell in enumerate(head)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _limits(chart: Chart) -> tuple[float, float]:
    """Axis of a chart: ratios up to 1 have the whole range, others from zero (or their lowest) to their highest."""
    low, high = float(np.nanmin(chart.envelope.low)), float(np.nanmax(chart.envelope.high))
    if chart.unit == "ratio":
        return 0.0, max(high, 1.0)
    bottom = low if chart.unit == "celsius" else min(low, 0.0)
    return bottom, high if high > bottom else bottom + 1.0


def _packed(series: Thinned, bottom: float, top: float) -> dict[str, Any]:
    return {
        "scale": [bottom, top],
        **{name: _quantised(getattr(series, name), bottom, top) for name in ("low", "mean", "high")},
    }


def _quantised(values: Floats, bottom: float, top: float) -> str:
    """Base64 of little-endian 16-bit numbers between the limits, 65535 where nothing was measured."""
    share = np.clip((values - bottom) / (top - bottom), 0.0, 1.0)
    words = np.where(np.isnan(values), _MISSING, np.round(np.nan_to_num(share) * (_MISSING - 1)))
    return base64.b64encode(words.astype("<u2").tobytes()).decode()
