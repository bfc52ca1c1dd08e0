"""Phases from telemetry: what a job was doing, told causally, and with hindsight for the report."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.rules.activity import FIELDS, Activity, ActivityFold
from gpudiag.rules.model import PHASES
from gpudiag.rules.phase_spans import refine, spans
from gpudiag.rules.phases import CODE, Codes, PhaseTracker, label_activity
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Floats, Source

START_MS = 1_700_000_000_000


class Story:
    """A job's activity written as one stretch after another."""

    def __init__(self, seed: int = 1) -> None:
        self._parts: list[dict[str, Floats]] = []
        self._rng = np.random.default_rng(seed)

    def then(self, seconds: int, active: float, **fields: float) -> Story:
        """`active` with a little noise; other fields constant, missing where not named."""
        part = {field: np.full(seconds, np.nan) for field in FIELDS}
        level = np.clip(active * (1 + 0.03 * self._rng.standard_normal(seconds)), 0, 1)
        part |= {"active": level, "peak": level, "low": level, "measured": np.ones(seconds)}
        part["gpu_util_ratio"] = np.full(seconds, 1.0 if active > 0.02 else 0.0)
        part["processes"] = np.ones(seconds)
        part["memory_ratio"] = np.full(seconds, 0.6)
        for field, value in fields.items():
            part[field] = np.full(seconds, value)
        self._parts.append(part)
        return self

    @property
    def activity(self) -> Activity:
        return Activity(START_MS, {f: np.concatenate([p[f] for p in self._parts]) for f in FIELDS})

    def marked(self, *marks: tuple[float, str]) -> Codes:
        """Labels when the training process said these things, at seconds of the story."""
        share = Source("n1", "job:local/42/1")
        events = [
            Event(share, START_MS + round(at * 1000), "mark", ordinal=number, detail={"name": name})
            for number, (at, name) in enumerate(marks)
        ]
        return label_activity(self.activity, (), events)

    def labels(self, *tags: str) -> Codes:
        return label_activity(self.activity, tags)

    def refined(self, *tags: str) -> list[tuple[str, int]]:
        codes = refine(self.activity, self.labels(*tags))
        return [(span.phase, int(span.interval.seconds)) for span in spans(self.activity, codes)]


def training(seed: int = 1) -> Story:
    return Story(seed).then(40, 0.0, processes=0, memory_ratio=0.0).then(120, 0.0).then(1800, 0.85)


def share(codes: Codes, phase: str, begin: int, end: int) -> float:
    return float((codes[begin:end] == CODE[phase]).mean())


def test_a_job_is_waited_for_starts_warms_up_and_trains() -> None:
    codes = training().labels()
    assert share(codes, "before_start", 0, 40) == 1
    assert share(codes, "startup", 40, 150) == 1
    assert share(codes, "warmup", 170, 330) == 1
    assert share(codes, "train", 360, 1960) == 1


def test_with_hindsight_a_job_that_was_steady_at_once_had_no_warm_up() -> None:
    phases = training().refined()
    assert [name for name, _ in phases] == ["before_start", "startup", "train"]
    assert phases[2][1] == pytest.approx(1800, abs=15)


def test_bursts_of_compilation_are_warm_up_until_the_level_is_reached() -> None:
    story = Story().then(60, 0.0)
    for _ in range(20):
        story.then(5, 0.7).then(15, 0.0, main_cpu_ratio=1.0)
    phases = dict(story.then(1800, 0.85).refined())
    assert phases["warmup"] == pytest.approx(400, abs=60)
    assert phases["train"] == pytest.approx(1800, abs=60)


def test_a_pause_in_which_state_is_written_is_a_checkpoint() -> None:
    story = training().then(30, 0.0, job_write_bytes_per_second=8e8).then(600, 0.85)
    assert dict(story.refined())["checkpoint"] == 30
    assert share(story.labels(), "checkpoint", 1960, 1990) == 1


def test_a_pause_without_writing_is_none() -> None:
    story = (
        training()
        .then(30, 0.0, job_write_bytes_per_second=1e4, job_read_bytes_per_second=2e8)
        .then(600, 0.85)
    )
    assert "checkpoint" not in dict(story.refined())


def test_copies_both_ways_over_pcie_are_no_checkpoint() -> None:
    busy = {"pcie_tx_bytes_per_second": 8e9, "pcie_rx_bytes_per_second": 8e9}
    assert "checkpoint" not in dict(training().then(30, 0.1, **busy).then(600, 0.85).refined())


def test_working_without_the_links_is_evaluation() -> None:
    link = {"nvlink_tx_bytes_per_second": 4e10}
    story = Story().then(60, 0.0).then(1200, 0.85, **link)
    story.then(120, 0.6, nvlink_tx_bytes_per_second=1e5).then(600, 0.85, **link)
    phases = story.refined()
    assert ("eval", 120) in [(name, round(seconds, -1)) for name, seconds in phases]


def test_kernels_that_neither_compute_nor_move_anything_are_a_hang_from_their_first_second() -> None:
    working = {"tensor_active_ratio": 0.5, "dram_active_ratio": 0.4, "nvlink_tx_bytes_per_second": 2e10}
    spinning = {"tensor_active_ratio": 0.0, "dram_active_ratio": 0.01, "nvlink_tx_bytes_per_second": 0.0}
    phases = Story().then(60, 0.0).then(1200, 0.85, **working).then(1500, 0.13, **spinning).refined()
    assert phases[-1][0] == "hung"
    assert phases[-1][1] == pytest.approx(1500, abs=15)


def test_nothing_after_the_last_activity_is_the_tail() -> None:
    assert training().then(900, 0.0).refined()[-1] == ("tail", 900)


def test_the_second_after_the_last_process_is_no_idle_phase() -> None:
    assert training().then(2, 0.0, processes=0, memory_ratio=0.0).refined()[-1][0] == "train"


def test_a_minute_of_nothing_is_idle_and_work_goes_on() -> None:
    phases = training().then(300, 0.0).then(600, 0.85).refined()
    assert [name for name, _ in phases[-3:]] == ["train", "idle", "train"]
    assert phases[-2][1] == pytest.approx(300, abs=2)


def test_processes_that_vanish_and_come_back_are_a_restart() -> None:
    story = training().then(120, 0.0, processes=0, memory_ratio=0.0).then(60, 0.0).then(600, 0.85)
    phases = dict(story.refined())
    assert phases["restart"] == pytest.approx(180, abs=15)
    assert phases["train"] > 500


def test_seconds_without_samples_are_not_measured() -> None:
    codes = training().then(200, np.nan).then(300, 0.85).labels()
    assert share(codes, "not_measured", 1960, 2160) == 1


def test_one_lost_sample_is_no_phase() -> None:
    story = training().then(1, np.nan).then(600, 0.85)
    assert "not_measured" not in dict(story.refined())


def test_a_job_that_never_works_held_its_gpus_idle() -> None:
    assert dict(Story().then(3600, 0.0).refined())["idle"] > 3500


def test_step_marks_end_the_warm_up_at_once() -> None:
    steps = {"steps_per_second": 2.0}
    codes = Story().then(60, 0.0, steps_per_second=0.0).then(300, 0.85, **steps).labels()
    assert share(codes, "train", 130, 360) == 1


def test_tags_say_what_telemetry_cannot() -> None:
    assert share(training().labels("interactive"), "interactive", 170, 1960) == 1
    assert share(training().labels("inference"), "inference", 170, 1960) == 1


def test_activity_that_follows_requests_is_inference() -> None:
    rng = np.random.default_rng(5)
    story = Story().then(60, 0.0)
    for _ in range(180):
        busy = float(rng.uniform(0.02, 0.5))
        story.then(10, busy, memory_ratio=0.85, network_rx_bytes_per_second=2e5 + 5e6 * busy)
    codes = story.labels()
    assert share(codes, "inference", 900, 1860) == 1
    assert dict(story.refined()).get("train", 0) == 0


def test_badly_fed_training_is_no_inference() -> None:
    rng = np.random.default_rng(5)
    story = Story().then(60, 0.0)
    for _ in range(180):
        story.then(10, float(rng.uniform(0.02, 0.5)), memory_ratio=0.85, loader_workers=8)
    assert "inference" not in dict(story.refined())


def test_gaps_of_all_lengths_are_a_person_at_work() -> None:
    rng = np.random.default_rng(3)
    story = Story().then(60, 0.0)
    for _ in range(14):
        story.then(int(20 + 60 * rng.pareto(1.2)), 0.7).then(int(60 + 120 * rng.pareto(1.1)), 0.0)
    assert "interactive" in {PHASES[code] for code in np.unique(story.labels())}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_labels_do_not_depend_on_how_samples_arrive(cuts: list[int]) -> None:
    story = training().then(25, 0.0, job_write_bytes_per_second=8e8).then(400, 0.85).then(400, 0.0)
    activity, tracker, parts, at = story.activity, PhaseTracker(), [], 0
    for length in cuts:
        parts.append(tracker.advance(activity.between(at, min(at + length, len(activity)))))
        at = min(at + length, len(activity))
    parts += [tracker.advance(activity.between(at, len(activity))), tracker.finish()]
    np.testing.assert_array_equal(np.concatenate(parts), story.labels())


def test_what_comes_later_never_changes_a_label() -> None:
    story = training().then(25, 0.0, job_write_bytes_per_second=8e8).then(400, 0.85)
    labels = story.labels()
    for end in range(400, len(labels), 170):
        early = PhaseTracker().advance(story.activity.between(0, end))
        np.testing.assert_array_equal(early, labels[: len(early)])
        assert len(early) >= end - 20


def test_phases_cover_the_job_without_gaps() -> None:
    story = training().then(300, 0.0)
    found = spans(story.activity, refine(story.activity, story.labels()))
    assert found[0].interval.start_ms == START_MS
    assert all(a.interval.end_ms == b.interval.start_ms for a, b in pairwise(found))
    assert found[-1].interval.end_ms == START_MS + 1000 * len(story.activity)


def test_a_fold_takes_means_extremes_and_sums_over_devices() -> None:
    fold = ActivityFold(START_MS, 2)
    for level in (0.2, 0.6):
        series = {
            "sm_active_ratio": np.array([level, np.nan]),
            "nvlink_tx_bytes_per_second": np.array([1e9, 2e9]),
        }
        fold.add_device(lambda name, s=series: s.get(name, np.full(2, np.nan)), 80e9)  # type: ignore[misc]
    activity = fold.result()
    assert activity["active"][0] == pytest.approx(0.4)
    assert (activity["peak"][0], activity["low"][0], activity["measured"][0]) == (0.6, 0.2, 2)
    assert np.isnan(activity["active"][1])
    assert activity["nvlink_tx_bytes_per_second"].tolist() == [2e9, 4e9]


def test_an_evaluation_that_looks_like_training_is_one_when_the_process_says_so() -> None:
    story = training().then(300, 0.8, steps_per_second=0.0).then(400, 0.85, steps_per_second=2.0)
    told = story.marked((1960, "eval_start"), (2260, "eval_end"))
    assert share(told, "eval", 1960, 2260) == 1
    assert share(told, "eval", 0, 1960) == share(told, "eval", 2260, 2660) == 0


def test_a_step_of_a_minute_is_no_evaluation() -> None:
    stepping = training().then(300, 0.8, steps_per_second=0.0, step_seconds=60.0)
    assert share(stepping.labels(), "train", 1960, 2260) == 1
    evaluating = training().then(300, 0.8, steps_per_second=0.0)
    assert share(evaluating.labels(), "eval", 1990, 2260) == 1


def test_a_process_that_steps_on_while_it_writes_is_training() -> None:
    story = training().then(300, 0.85, steps_per_second=2.0)
    assert share(story.marked((2000, "checkpoint_start"), (2200, "checkpoint_end")), "train", 1960, 2260) == 1


def test_a_checkpoint_that_no_counter_shows_is_one_when_the_process_says_so() -> None:
    story = training().then(60, 0.0).then(400, 0.85)
    told = story.marked((1960, "checkpoint_start"), (2020, "checkpoint_end"))
    assert share(told, "checkpoint", 1960, 2020) == 1
    assert share(story.labels(), "checkpoint", 1960, 2020) == 0
