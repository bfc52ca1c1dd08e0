"""A restart of the agent neither raises an open finding again nor leaves it open for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpudiag.agent.continued import PATIENCE_MS, Continued
from gpudiag.agent.remembered import remember
from gpudiag.agent.sampler import RunningJob
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.store import StoredFinding

GPU = Source("n1", "GPU-0")
BEFORE = StoredFinding("util/idle", GPU, 1000, None, "warning", "c1/42/1")
RUNNING = (RunningJob(Job("c1/42/1", "42", 1000)),)
LAST_MS = 50_000


@dataclass
class Script:
    """A judge that tells what it is told to."""

    news: list[StoredFinding] = field(default_factory=list)
    open: Sequence[StoredFinding] = ()

    def observe(self, *_: Any) -> Sequence[StoredFinding]:
        told, self.news = self.news, []
        return told


def look(judge: Continued, now_ms: int, jobs: Sequence[RunningJob] = RUNNING) -> Sequence[StoredFinding]:
    return judge.observe(now_ms, (), (), jobs, {})


def test_what_fires_again_keeps_its_begin_until_its_end() -> None:
    script = Script()
    judge = Continued(script, [BEFORE], LAST_MS)
    assert look(judge, 60_000) == []
    assert judge.open == (BEFORE,)
    again = replace(BEFORE, start_ms=70_000, severity="critical")
    script.news, script.open = [again], [again]
    assert look(judge, 80_000) == [replace(again, start_ms=1000)]
    assert judge.open == (replace(again, start_ms=1000),)
    script.news, script.open = [replace(again, end_ms=90_000)], ()
    assert look(judge, 90_000) == [replace(again, start_ms=1000, end_ms=90_000)]
    fresh = replace(BEFORE, start_ms=200_000)
    script.news = [fresh]
    assert look(judge, 210_000) == [fresh]


def test_what_does_not_fire_again_ended_with_the_last_sample() -> None:
    judge = Continued(Script(), [BEFORE], LAST_MS)
    look(judge, 60_000)
    assert look(judge, 60_000 + PATIENCE_MS - 1) == []
    assert look(judge, 60_000 + PATIENCE_MS) == [replace(BEFORE, end_ms=LAST_MS)]
    assert judge.open == ()


def test_what_was_about_a_job_that_is_gone_ends_at_once() -> None:
    judge = Continued(Script(), [BEFORE], LAST_MS)
    assert look(judge, 60_000, ()) == []
    assert look(judge, 120_000, ()) == [replace(BEFORE, end_ms=LAST_MS)]


def test_only_open_findings_of_this_node_are_remembered(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db", node="n1", agent=True)
    store.put_findings([BEFORE, replace(BEFORE, start_ms=500, end_ms=900)])
    assert remember(store, "n1", 100_000).open_findings == (BEFORE,)
    store.close()


def test_jobs_that_run_and_those_whose_end_was_only_presumed_are_remembered(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db", node="n1", agent=True)
    day_ms = 86_400_000
    running = Job("c1/1/1", "1", 1000, state="running")
    presumed = Job("c1/2/1", "2", 1000, 40 * day_ms, state="unknown", meta={"end_presumed": True})
    ended = Job("c1/3/1", "3", 1000, 40 * day_ms, state="unknown")
    forgotten = Job("c1/4/1", "4", 1000, 9 * day_ms, state="unknown", meta={"end_presumed": True})
    for job in (running, presumed, ended, forgotten):
        store.put_job(job)
        store.put_allocations([Allocation(job.key, Source("n1", NODE), 1000, job.end_ms, "hook")])
    assert {job.key for job, _ in remember(store, "n1", 50 * day_ms).jobs} == {running.key, presumed.key}
    store.close()
