"""`gpudiag compare`: what differs between two jobs, ranked by GPU-hours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from command_line import Gpudiag
from diagnoses import healthy, hostile, slow

from gpudiag.cli.compare import Comparison, as_document, as_text, compare, conclusion
from gpudiag.cli.messages import ENGLISH, load
from gpudiag.cli.render import labels
from gpudiag.cli.render.style import Style
from gpudiag.cli.render.units import quantity


@pytest.fixture
def comparison() -> Comparison:
    good = healthy()
    good = replace(good, job=replace(good.job, id="41"))
    return compare(good, slow(), {"loader_workers": 64.0}, {"loader_workers": 32.0})


def test_golden_comparison(comparison: Comparison, golden: Callable[[str, str], None]) -> None:
    golden("tests/golden/report-compare.txt", as_text(comparison, ENGLISH, Style(100)))


def test_causes_are_ranked_by_how_much_they_changed(comparison: Comparison) -> None:
    changes = [abs(one.change) for one in comparison.causes]
    assert changes == sorted(changes, reverse=True)
    assert [one.name for one in comparison.causes][:2] == ["train", "input_cpu"]


def test_the_changes_of_all_causes_add_up_to_the_change_of_the_whole(comparison: Comparison) -> None:
    total = sum(one.change for one in comparison.causes)
    assert total == pytest.approx(
        comparison.second.total_gpu_hours - comparison.first.total_gpu_hours, abs=0.01
    )


def test_the_conclusion_names_the_loss_that_grew_most_not_the_work(comparison: Comparison) -> None:
    assert "what grew most: input: CPU-bound, by 2.62 GPU-h" in conclusion(comparison, ENGLISH)


def test_no_cause_is_left_out_of_the_table_for_want_of_room() -> None:
    one = slow()
    many = tuple(
        replace(one.waterfall[0], cause=cause, gpu_hours=1.0, ratio=1 / 12)
        for cause in list(labels.CAUSES)[:12]
    )
    both = replace(one, waterfall=many)
    text = as_text(compare(both, both, {}, {}), ENGLISH, Style(100))
    assert [name for name in list(labels.CAUSES.values())[:12] if name not in text] == []


def test_the_highest_temperature_is_that_of_the_hottest_gpu() -> None:
    one = slow()
    hottest = max(report.statistics["temperature_celsius"].maximum for report in one.devices)
    (fact,) = [f for f in compare(one, one, {}, {}).environment if f.name == "temperature, highest"]
    assert fact.first == quantity(hottest, "celsius")


def test_a_faster_job_lost_nothing_more() -> None:
    assert conclusion(compare(slow(), healthy(), {}, {}), ENGLISH).endswith("; no loss grew.")


def test_differences_of_the_environment_are_marked_and_equal_things_are_not(comparison: Comparison) -> None:
    facts = {fact.name: fact.differs for fact in comparison.environment}
    assert facts["loader_workers"] is True
    assert facts["state"] is True
    assert facts["GPU model"] is False
    assert facts["power, mean"] is False


def test_what_only_one_job_measured_differs_and_what_neither_did_is_absent() -> None:
    facts = {fact.name: fact for fact in compare(slow(), slow(), {}, {"main_cpu_ratio": 0.9}).environment}
    assert (facts["main_cpu_ratio"].first, facts["main_cpu_ratio"].differs) == ("-", True)
    assert "loader_workers" not in facts


def test_a_job_compared_with_itself_shows_no_difference() -> None:
    same = compare(slow(), slow(), {"loader_workers": 32.0}, {"loader_workers": 32.0})
    assert not any(one.change for one in (*same.causes, *same.phases))
    assert not any(fact.differs for fact in same.environment)
    assert (same.only_first, same.only_second) == ((), ())


def test_json_has_both_jobs_and_every_difference(comparison: Comparison) -> None:
    document = json.loads(as_document(comparison, ENGLISH))
    assert (document["first"]["id"], document["second"]["id"]) == ("41", "42")
    assert document["findings"]["only_second"] == [
        "clocks/thermal-throttle", "input/cpu-bound-loader", "memory/gpu-oom-imminent",
    ]  # fmt: skip
    assert document["causes"][1]["change_gpu_hours"] == pytest.approx(2.624)


def test_hostile_names_are_inert_and_chinese_is_spoken() -> None:
    text = as_text(compare(hostile(), slow(), {}, {}), load("zh"), Style(100))
    assert "\x1b" not in text
    assert "环境" in text


def test_compares_stored_jobs(gpudiag: Gpudiag, demo_database: str) -> None:
    result = gpudiag("compare", "42", "42", "--db", demo_database)
    assert result.code == 0
    assert "NVIDIA H100 80GB HBM3" in result.out
    assert "loader workers" in result.out
    assert "differs" not in result.out


def test_an_unknown_job_is_4(gpudiag: Gpudiag, demo_database: str) -> None:
    assert gpudiag("compare", "42", "43", "--db", demo_database).code == 4
