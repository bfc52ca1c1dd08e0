"""Reports as text, JSON and Markdown: golden files, limits, and inert names."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from diagnoses import MINUTE, SCENARIOS, START, cluster, hostile, short, slow, stretch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpudiag.cli.messages import load
from gpudiag.cli.render import json as json_report
from gpudiag.cli.render import markdown, text
from gpudiag.cli.render.style import Style, local_zone, terminal_style
from gpudiag.cli.render.timeline import Axis
from gpudiag.cli.render.units import clock, duration, harmless, instant, percent, quantity
from gpudiag.rules.model import Diagnosis, PhaseSpan

Golden = Callable[[str, str], None]
ESCAPE = "\x1b"
WAYS: dict[str, Callable[[Diagnosis], str]] = {
    "80": lambda diagnosis: text.render(diagnosis, style=Style(80)),
    "160": lambda diagnosis: text.render(diagnosis, style=Style(160)),
    "ascii": lambda diagnosis: text.render(diagnosis, style=Style(100, unicode=False)),
    "colour": lambda diagnosis: text.render(diagnosis, style=Style(100, colour=True)).replace(ESCAPE, "␛"),
    "verbose": lambda diagnosis: text.render(diagnosis, style=Style(100), verbose=True),
    "zh": lambda diagnosis: text.render(diagnosis, load("zh"), Style(100)),
    "markdown": markdown.render,
    "json": json_report.render,
}


# ---- golden files


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_golden_terminal_report(name: str, golden: Golden) -> None:
    golden(f"tests/golden/report-{name}.txt", text.render(SCENARIOS[name](), style=Style(100)))


@pytest.mark.parametrize("way", sorted(WAYS))
def test_golden_slow_job_in_every_form(way: str, golden: Golden) -> None:
    golden(f"tests/golden/report-slow.{way}.txt", WAYS[way](slow()))


def test_golden_hostile_markdown(golden: Golden) -> None:
    golden("tests/golden/report-hostile.markdown.txt", markdown.render(hostile()))


# ---- the terminal


@pytest.mark.parametrize("name", sorted(SCENARIOS))
@pytest.mark.parametrize("width", [80, 100, 160])
def test_fits_the_terminal(name: str, width: int) -> None:
    lines = text.render(SCENARIOS[name](), style=Style(width)).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= (66 if width == 80 else 60)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_ascii_means_ascii(name: str) -> None:
    if name != "hostile":  # a name is printed as it is
        assert text.render(SCENARIOS[name](), style=Style(100, unicode=False)).isascii()


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_plain_text_has_no_escapes(name: str) -> None:
    assert ESCAPE not in text.render(SCENARIOS[name](), style=Style(100))


def test_verbose_shows_every_gpu_finding_and_event() -> None:
    shown = text.render(cluster(), style=Style(100), verbose=True)
    assert all(f"node{node:02d} GPU {index}" in shown for node in range(1, 9) for index in range(8))
    assert "util/low-sm-activity" in text.render(slow(), style=Style(100), verbose=True)


def test_the_slowest_of_many_gpus_comes_first() -> None:
    lines = text.render(cluster(), style=Style(100)).splitlines()
    table = next(index for index, line in enumerate(lines) if line.startswith("GPUS"))
    assert lines[table + 2].strip().startswith("node06 GPU 2")
    assert "busier GPUs: 56 (--verbose shows all)" in lines[table + 10]


def test_printed_buckets_add_up_to_everything() -> None:
    lines = text.render(slow(), style=Style(100)).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("GPU TIME"))
    shares = [
        float(match[1]) for line in lines[start + 1 : start + 9] if (match := re.search(r"([\d.]+) %", line))
    ]
    assert sum(shares) == pytest.approx(100, abs=1.0)


def test_a_control_character_never_reaches_the_terminal() -> None:
    shown = text.render(hostile(), style=Style(100), verbose=True)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


@given(st.text())
def test_harmless_text_is_one_printable_line(value: str) -> None:
    clean = harmless(value)
    assert len(clean.splitlines()) <= 1
    assert all(sign == " " or sign.isprintable() or not sign.isascii() for sign in clean)
    assert ESCAPE not in clean


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "colour", "expected"),
    [
        ({}, "auto", True),
        ({"NO_COLOR": "1"}, "auto", False),
        ({"TERM": "dumb"}, "auto", False),
        ({"NO_COLOR": "1"}, "always", True),
        ({"FORCE_COLOR": "1"}, "never", False),
    ],
)
def test_colour_follows_the_environment(environ: dict[str, str], colour: str, expected: bool) -> None:
    assert terminal_style(environ, Terminal(), colour).colour is expected


def test_a_pipe_gets_plain_text_of_100_columns() -> None:
    style = terminal_style({}, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert (style.width, style.colour, style.unicode) == (100, False, True)


def test_a_latin_terminal_gets_ascii() -> None:
    assert not terminal_style({}, io.TextIOWrapper(io.BytesIO(), encoding="latin-1")).unicode


def test_a_short_phase_fills_the_cell_it_mostly_occupies() -> None:
    phases = (
        PhaseSpan("train", stretch(0, 1)),
        PhaseSpan("checkpoint", stretch(1, 1.6)),
        PhaseSpan("train", stretch(1.6, 4)),
    )
    assert Axis(START, START + 4 * MINUTE, 4).dominant(phases) == ["train", "checkpoint", "train", "train"]


# ---- JSON


def test_json_has_the_keys_of_the_contract() -> None:
    document = json_report.document(slow())
    assert {
        "schema_version",
        "job",
        "coverage",
        "verdict",
        "findings",
        "waterfall",
        "phases",
        "devices",
        "events",
        "rules",
    } <= set(document)
    assert {"id", "key", "state", "start", "end", "nodes", "devices"} <= set(document["job"])
    assert {"ratio", "devices_allocated", "devices_measured"} <= set(document["coverage"])
    finding = document["findings"][0]
    assert {
        "rule", "severity", "confidence", "cause", "devices", "intervals", "lost_gpu_hours", "recoverable_gpu_hours",
        "evidence", "hints",
    } <= set(finding)  # fmt: skip
    assert set(finding["intervals"][0]) == {"start", "end"}
    assert set(finding["hints"][0]) == {"tier", "text"}
    assert set(document["waterfall"]) == {"total_gpu_hours", "buckets"}
    assert set(document["waterfall"]["buckets"][0]) == {"cause", "gpu_hours", "ratio"}
    device = document["devices"][0]
    assert {"uuid", "index", "model", "node", "coverage", "metrics"} <= set(device)
    assert {"mean", "min", "p10", "p50", "p90", "max"} <= set(device["metrics"]["sm_active_ratio"])
    assert {"fired", "passed", "not_evaluated"} <= set(document["rules"])
    assert set(document["rules"]["not_evaluated"][0]) == {"rule", "reason"}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_json_is_strict_and_times_have_an_offset(name: str) -> None:
    document = json.loads(json_report.render(SCENARIOS[name]()), parse_constant=_refuse)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", document["job"]["start"])


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def test_what_was_not_measured_is_null_in_json() -> None:
    device = json_report.document(SCENARIOS["unmeasured"]())["devices"][7]
    assert device["timeline"][0] is None
    assert device["metrics"] == {}
    assert device["longest_idle"] is None


# ---- Markdown


def test_markdown_of_hostile_names_is_inert() -> None:
    page = markdown.render(hostile())
    assert "<script" not in page
    assert not re.search(r"(?<!\\)\[x\]", page)
    assert "\n# x" not in page
    assert "://" not in markdown.plain("see http://example.org")
    assert "@" not in markdown.plain("@all")


@pytest.mark.parametrize(
    "line", ["- item", "+ item", "1. item", "2) item", "=== ", "# head", "> quote", "| a |"]
)
def test_a_name_cannot_start_a_markdown_block(line: str) -> None:
    assert markdown.plain(line)[0] in "\\&" or "\\" in markdown.plain(line)[:3]


# ---- numbers


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.9996, "ratio", "99.9 %"), (1.0, "ratio", "100 %"), (0.05, "ratio", "5.0 %"), (None, "ratio", "-"),
        (float("nan"), "bytes", "-"), (46 * 1024.0**3, "bytes", "46 GiB"), (1.2e9, "bytes_per_second", "1.2 GB/s"),
        (1.98e9, "hertz", "1.98 GHz"), (612.4, "watts", "612 W"), (3.0, "count", "3"), (float("inf"), "seconds", "∞"),
    ],
)  # fmt: skip
def test_quantities(value: float | None, unit: str, expected: str) -> None:
    assert quantity(value, unit) == expected


def test_durations_beyond_a_day_keep_their_days() -> None:
    assert [duration(s) for s in (59, 60, 3_599, 3_600, 49 * 3_600)] == [
        "59 s",
        "1 min",
        "59 min 59 s",
        "1 h",
        "2 d 01 h",
    ]


def test_nearly_all_is_not_all() -> None:
    assert percent(0.99999) == "99.9 %"


def test_an_empty_diagnosis_still_says_who_and_why() -> None:
    shown = text.render(replace(short(), verdict="No verdict."), style=Style(80))
    assert "Job 42" in shown
    assert "No verdict." in shown


def test_times_across_a_clock_change_have_the_offset_of_their_own_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        zone = local_zone()
        change = 1_774_746_000_000  # 2026-03-29 01:00 UTC, when the clocks go from 2 to 3
        assert instant(change - 1000, zone) == "2026-03-29T01:59:59+01:00"
        assert instant(change, zone) == "2026-03-29T03:00:00+02:00"
        assert clock(change, zone, change - 3_600_000) == "03:00:00"
        autumn = 1_792_890_000_000  # 2026-10-25 01:00 UTC, when the hour from 2 to 3 comes again
        assert instant(autumn - 1000, zone) == "2026-10-25T02:59:59+02:00"
        assert instant(autumn, zone) == "2026-10-25T02:00:00+01:00"
    finally:
        monkeypatch.undo()
        time.tzset()
