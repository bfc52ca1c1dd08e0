"""The HTML report in a real browser, and what must hold of the file without one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from chromium import Chromium
from diagnoses import HOUR, SCENARIOS, START, gpu, slow
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.cli.messages import load
from gpudiag.cli.render import html
from gpudiag.cli.render.series import Charts, read_charts, thin
from gpudiag.rules.model import Diagnosis
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Block, Source
from gpudiag.storage.store import JobFilter, StoredFinding

DAY = 24 * HOUR


class Memory:
    """A reader that makes up its samples: `metrics` sine waves a second apart."""

    def __init__(self, seconds: int, step_ms: int = 1000) -> None:
        self._times = START + np.arange(seconds) * step_ms
        base = 0.5 + 0.4 * np.sin(np.arange(seconds) / 600)
        noise = np.random.default_rng(1).normal(0, 0.05, seconds)
        self._values = np.clip(base + noise, 0, 1)

    def read(
        self, source: Source, start_ms: int, end_ms: int, metrics: tuple[str, ...] | None = None
    ) -> Block:
        if source.scope != "gpu" or metrics is None:
            return Block(source, np.array([], dtype=np.int64), {})
        return Block(source, self._times, {name: self._values * _SCALES.get(name, 1.0) for name in metrics})

    def jobs(self, wanted: JobFilter = JobFilter()) -> list[Job]:  # noqa: B008
        return []

    def allocations(self, job_key: str) -> list[Allocation]:
        return []

    def devices(self, sources: object) -> dict[Source, Device]:
        return {}

    def sources(self, start_ms: int, end_ms: int) -> list[Source]:
        return []

    def events(self, start_ms: int, end_ms: int, node: str | None = None, kinds: object = ()) -> list[Event]:
        return []

    def findings(self, start_ms: int, end_ms: int, job_key: str | None = None) -> list[StoredFinding]:
        return []

    def close(self) -> None:
        pass


_SCALES = {
    "memory_used_bytes": 8e10,
    "power_watts": 700.0,
    "temperature_celsius": 90.0,
    "sm_clock_hertz": 1.98e9,
}


def day_of(gpus: int) -> Diagnosis:
    nodes = tuple(f"node{number:02d}" for number in range(max(gpus // 8, 1)))
    devices = tuple(gpu(index, node) for node in nodes for index in range(8))
    return replace(slow(), end_ms=START + DAY, nodes=nodes, devices=devices)


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., Path]:
    def write(diagnosis: Diagnosis, charts: Charts | None = None, language: str = "en") -> Path:
        path = tmp_path / "report.html"
        drawn = charts or read_charts(Memory(4 * 3600), diagnosis)
        path.write_text(html.render(diagnosis, drawn, load(language)), encoding="utf-8")
        return path

    return write


# ---- thinning


@given(
    values=st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=1, max_size=200),
    buckets=st.integers(1, 40),
)
@settings(deadline=None)
def test_every_bucket_keeps_its_extremes(values: list[float], buckets: int) -> None:
    times = np.arange(len(values), dtype=np.int64) * 7
    series = thin(times, np.array(values), (0, len(values) * 7), buckets)
    for bucket in range(buckets):
        inside = [
            v
            for t, v in zip(times, values, strict=True)
            if t * buckets // (len(values) * 7) == bucket and not math.isnan(v)
        ]
        if not inside:
            assert np.isnan([series.low[bucket], series.mean[bucket], series.high[bucket]]).all()
            continue
        assert (series.low[bucket], series.high[bucket]) == (min(inside), max(inside))
        assert series.mean[bucket] == pytest.approx(sum(inside) / len(inside), abs=1e-6)


def test_samples_outside_of_the_job_are_left_out() -> None:
    series = thin(np.array([-1, 0, 9, 10], dtype=np.int64), np.array([5.0, 1.0, 2.0, 5.0]), (0, 10), 1)
    assert (series.low[0], series.high[0]) == (1.0, 2.0)


# ---- size and speed


def test_eight_gpus_for_a_day_take_two_megabytes() -> None:
    diagnosis = day_of(8)
    size = len(html.render(diagnosis, read_charts(Memory(86_400), diagnosis)).encode())
    assert size <= 2e6


def test_512_gpus_for_a_day_take_eight_megabytes() -> None:
    diagnosis = day_of(512)
    size = len(html.render(diagnosis, read_charts(Memory(8640, 10_000), diagnosis)).encode())
    assert size <= 8e6


# ---- the file by itself


class _Links(HTMLParser):
    """Everything in the page that could make a browser fetch or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("img", "link", "iframe", "object", "embed", "form", "base", "a", "audio", "video"):
            self.found.append(tag)
        self.found += [
            name for name, _ in attrs if name in ("src", "href", "style", "srcset") or name.startswith("on")
        ]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_nothing_in_the_page_can_fetch_or_run(name: str, page: Callable[..., Path]) -> None:
    text = page(SCENARIOS[name]()).read_text(encoding="utf-8")
    links = _Links()
    links.feed(text)
    assert links.found == []
    assert links.scripts == 2  # the data, and our own script under its hash


# ---- in the browser


@pytest.mark.integration
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_renders_without_errors_or_requests(
    chromium: Chromium, page: Callable[..., Path], dark: bool
) -> None:
    chromium.open(page(slow()), dark=dark)
    assert chromium.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    drawn = chromium.evaluate(
        "[...document.querySelectorAll('canvas')].map((c) => new Set(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data).size)"
    )
    assert len(drawn) > 10
    assert min(drawn) > 2, "a chart stayed blank"
    assert chromium.problems == []
    assert chromium.requests == []


@pytest.mark.integration
def test_a_click_on_a_finding_zooms_every_chart_to_it(chromium: Chromium, page: Callable[..., Path]) -> None:
    diagnosis = slow()
    chromium.open(page(diagnosis))
    chromium.evaluate("document.querySelector('[data-finding=\"2\"]').click()")
    start, end = map(int, chromium.evaluate("document.documentElement.dataset.view").split())
    hot = diagnosis.findings[1].intervals[0]
    assert start < hot.start_ms < hot.end_ms < end
    assert end - start < 2 * (hot.end_ms - hot.start_ms)


@pytest.mark.integration
def test_drag_zooms_keys_move_and_escape_resets(chromium: Chromium, page: Callable[..., Path]) -> None:
    chromium.open(page(slow()))
    chromium.evaluate("document.querySelector('#strips').scrollIntoView()")
    box = chromium.evaluate(
        "(({x, y, width}) => [x, y, width])(document.querySelector('#strips').getBoundingClientRect())"
    )
    x, y, width = box
    whole = chromium.evaluate("document.documentElement.dataset.view")
    chromium.click(x + 0.25 * width, y + 5, x + 0.5 * width)
    start, end = map(int, chromium.evaluate("document.documentElement.dataset.view").split())
    assert start == pytest.approx(START + HOUR, abs=60_000)
    assert end == pytest.approx(START + 2 * HOUR, abs=60_000)
    chromium.press("ArrowRight")
    moved = int(chromium.evaluate("document.documentElement.dataset.view").split()[0])
    assert moved == pytest.approx(start + (end - start) / 4, abs=2)
    chromium.press("Escape")
    assert chromium.evaluate("document.documentElement.dataset.view") == whole
    assert chromium.problems == []


@pytest.mark.integration
def test_the_crosshair_reads_all_charts_at_one_time(chromium: Chromium, page: Callable[..., Path]) -> None:
    chromium.open(page(slow()))
    chromium.evaluate("document.querySelector('#strips').scrollIntoView()")
    x, y, width = chromium.evaluate(
        "(({x, y, width}) => [x, y, width])(document.querySelector('#strips').getBoundingClientRect())"
    )
    chromium.hover(x + width / 2, y + 2)
    texts = chromium.evaluate("[...document.querySelectorAll('.value')].map((one) => one.textContent)")
    assert texts[0].startswith("11:00:")
    assert texts[1] == "checkpoint"
    assert any(text.startswith("GPU 0\n") and "%" in text for text in texts)
    assert chromium.evaluate("document.querySelector('#cross').style.display") == "block"


@pytest.mark.integration
def test_hostile_names_and_texts_are_inert(chromium: Chromium, page: Callable[..., Path]) -> None:
    chromium.open(page(SCENARIOS["hostile"]()))
    assert (
        chromium.evaluate("document.querySelectorAll('img, script:not(:nth-last-of-type(-n+2))').length") == 0
    )
    assert "<script>alert(1)" in chromium.evaluate("document.querySelector('.verdict').textContent")
    assert chromium.problems == []
    assert chromium.requests == []


@pytest.mark.integration
def test_the_policy_stops_a_script_that_got_in(chromium: Chromium, page: Callable[..., Path]) -> None:
    path = page(slow())
    text = path.read_text(encoding="utf-8")
    evil = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    path.write_text(text.replace("<footer", f"{evil}<footer"), encoding="utf-8")
    chromium.open(path)
    assert chromium.evaluate("document.title") == "Job 42 · gpudiag"
    assert chromium.problems, "the browser must have refused it"


@pytest.mark.integration
def test_what_another_finding_explains_is_folded_up_and_printed(
    chromium: Chromium, page: Callable[..., Path]
) -> None:
    diagnosis = slow()
    chromium.open(page(diagnosis))
    folded = "document.querySelectorAll('details:not([open]) [data-finding]').length"
    assert sum(bool(finding.explained_by) for finding in diagnosis.findings) == 1
    assert chromium.evaluate(folded) == 1
    assert chromium.evaluate("document.querySelectorAll('[data-finding]').length") == len(diagnosis.findings)
    chromium.evaluate(f"window.addEventListener('beforeprint', () => (window.hidden_on_paper = {folded}))")
    assert chromium.pdf().startswith(b"%PDF")
    assert chromium.evaluate("window.hidden_on_paper") == 0
    assert chromium.evaluate(folded) == 1


@pytest.mark.integration
def test_prints_in_light_colours(chromium: Chromium, page: Callable[..., Path]) -> None:
    chromium.open(page(slow()), dark=True)
    chromium.evaluate(
        "window.addEventListener('beforeprint', () => (window.printed = document.documentElement.dataset.theme))"
    )
    assert chromium.pdf().startswith(b"%PDF")
    assert chromium.evaluate("window.printed") == "light"
    assert chromium.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.integration
def test_512_gpus_render(chromium: Chromium, page: Callable[..., Path]) -> None:
    diagnosis = day_of(512)
    chromium.open(page(diagnosis, read_charts(Memory(8640, 10_000), diagnosis)))
    assert chromium.problems == []


@pytest.mark.integration
@pytest.mark.parametrize("name", ["short", "imported", "unmeasured", "mig"])
def test_sparse_jobs_render_without_errors(chromium: Chromium, page: Callable[..., Path], name: str) -> None:
    diagnosis = SCENARIOS[name]()
    chromium.open(page(diagnosis, Charts(diagnosis.start_ms, diagnosis.end_ms)))
    assert chromium.problems == []
