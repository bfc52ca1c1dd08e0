"""The demo: the simulated job through the whole pipeline, and what its report must say."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Gpudiag
from demo_database import CPU_SECONDS

from gpudiag.agent.simulation.script import Script, Stretch
from gpudiag.cli.demo import NODE_START_MS
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.sample import Frame, Source

SCRIPT = Script()
JOB_START = NODE_START_MS // 1000 + SCRIPT.idle_before


@pytest.fixture
def document(gpudiag: Gpudiag, demo_database: str) -> dict[str, object]:
    report: dict[str, object] = json.loads(
        gpudiag("report", "--job", "42", "--json", "--db", demo_database).out
    )
    return report


def finding(document: dict[str, object], rule: str) -> dict[str, object]:
    found = [one for one in document["findings"] if one["rule"] == rule]  # type: ignore[attr-defined, index]
    assert len(found) == 1, f"{rule}: {len(found)} findings"
    return found[0]  # type: ignore[no-any-return]


def overlap(one: dict[str, object], stretch: Stretch) -> float:
    """Share of the stretch (seconds of the job) that the finding's intervals cover."""
    from datetime import datetime

    covered = 0.0
    for interval in one["intervals"]:  # type: ignore[attr-defined]
        start, end = (
            datetime.fromisoformat(interval[side]).timestamp() - JOB_START for side in ("start", "end")
        )
        covered += max(min(end, stretch.end) - max(start, stretch.start), 0.0)
    return covered / (stretch.end - stretch.start)


def test_golden_demo_report(gpudiag: Gpudiag, demo_database: str, golden: Callable[[str, str], None]) -> None:
    golden("tests/golden/demo_report.txt", gpudiag("report", "--job", "42", "--db", demo_database).out)


@pytest.mark.parametrize(
    ("rule", "stretch", "devices"),
    [
        ("input/cpu-bound-loader", SCRIPT.loader_stall, 8),
        ("memory/fragmentation-suspected", Stretch(SCRIPT.steps_up[5][0], SCRIPT.staircase.end), 8),
        ("clocks/thermal-throttle", SCRIPT.hot, 1),
        ("memory/gpu-oom-imminent", Stretch(SCRIPT.leak_from + 1200, SCRIPT.crash_at), 1),
    ],
)
def test_each_fault_is_found_where_it_was_put(
    document: dict[str, object], rule: str, stretch: Stretch, devices: int
) -> None:
    one = finding(document, rule)
    assert overlap(one, stretch) > 0.7
    assert len(one["devices"]) == devices  # type: ignore[arg-type]
    assert one["hints"]
    assert one["evidence"]


def test_no_other_fault_is_claimed(document: dict[str, object]) -> None:
    """Symptoms that a finding explains aside, and what follows from start, tail and faults: nothing was put in."""
    put_in = {
        "input/cpu-bound-loader", "memory/fragmentation-suspected", "clocks/thermal-throttle", "memory/gpu-oom-imminent",
    }  # fmt: skip
    follows = {"input/data-loader-stall", "util/straggler", "util/allocated-idle", "energy/waste"}
    claimed = {one["rule"] for one in document["findings"] if not one["explained_by"]}  # type: ignore[attr-defined, index]
    assert put_in <= claimed <= put_in | follows


def test_the_live_rules_left_the_same_findings_in_the_database(
    demo_database: str, document: dict[str, object]
) -> None:
    reader = open_reader(demo_database)
    stored = reader.findings(NODE_START_MS, NODE_START_MS + SCRIPT.seconds * 1000)
    reader.close()
    assert {one.rule for one in stored} == {one["rule"] for one in document["findings"]}  # type: ignore[attr-defined, index]


def test_lost_time_matches_what_was_simulated(document: dict[str, object]) -> None:
    buckets = {one["cause"]: one["gpu_hours"] for one in document["waterfall"]["buckets"]}  # type: ignore[index]
    stalled = (SCRIPT.loader_stall.end - SCRIPT.loader_stall.start) / 3600 * 8
    assert 0.35 * stalled < buckets["input_cpu"] < 0.55 * stalled
    assert buckets["tail"] == pytest.approx((SCRIPT.length - SCRIPT.crash_at) / 3600 * 8, rel=0.1)


@pytest.mark.parametrize(
    ("rule", "cause"), [("input/cpu-bound-loader", "input_cpu"), ("clocks/thermal-throttle", "throttle")]
)
def test_a_finding_costs_what_the_waterfall_says(document: dict[str, object], rule: str, cause: str) -> None:
    """One hot GPU makes seven others wait: their time is its cost."""
    buckets = {one["cause"]: one["gpu_hours"] for one in document["waterfall"]["buckets"]}  # type: ignore[index]
    assert finding(document, rule)["lost_gpu_hours"] == pytest.approx(buckets[cause], rel=0.1)


def test_takes_less_than_thirty_seconds_of_cpu(gpudiag: Gpudiag, demo_database: str) -> None:
    """Of CPU time: how long it takes beside other work says nothing about it."""
    started = time.process_time()
    gpudiag("report", "--job", "42", "--db", demo_database)
    assert CPU_SECONDS[demo_database] + time.process_time() - started < 30


@pytest.fixture
def already_simulated(demo_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's simulation gives the database that it gave before."""

    def copy(url: str, _words: object) -> int:
        shutil.copy(demo_database.removeprefix("sqlite:///"), url.removeprefix("sqlite:///"))
        return 7260

    monkeypatch.setattr("gpudiag.cli.demo.simulate", copy)


@pytest.mark.usefixtures("already_simulated")
def test_leaves_the_database_and_says_what_to_try_and_may_run_again(gpudiag: Gpudiag, tmp_path: Path) -> None:
    path = tmp_path / "demo.db"
    for _ in range(2):
        result = gpudiag("demo", "--database", path)
        assert result.code == 0
        assert result.out.startswith("Job 42 ")
        assert "gpudiag report --job 42 --html job42.html" in result.out
        assert gpudiag("report", "--job", "42", "--db", f"sqlite:///{path}").code == 0


def test_an_earlier_demo_is_replaced_and_anything_else_is_not(gpudiag: Gpudiag, tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear all,\n", encoding="utf-8")
    result = gpudiag("demo", "--database", path)
    assert result.code == 1
    assert "is not an earlier demo; name another file with --database" in result.err
    assert path.read_text(encoding="utf-8") == "Dear all,\n"


def test_a_database_in_which_an_agent_began_to_sample_is_not_taken_for_a_demo(
    gpudiag: Gpudiag, tmp_path: Path
) -> None:
    path = tmp_path / "agent.db"
    store = open_store(f"sqlite:///{path}", node="n1")
    store.append([Frame(Source("n1", "node"), 1_764_504_000_000, {"cpu_busy_ratio": 0.5})])
    store.close()
    before = path.read_bytes()
    result = gpudiag("demo", "--database", path)
    assert result.code == 1
    assert "is not an earlier demo; name another file with --database" in result.err
    assert path.read_bytes() == before
