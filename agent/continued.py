"""Findings that go on over a restart of the agent, or new rules: told once, with the begin that they had before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpudiag.agent.sampler import Judge, RunningJob
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding

PATIENCE_MS = 3_600_000  # the longest window of a rule: what has not fired again by then was over
_JOBS_MS = 60_000  # until then not every job need be known again


class Continued:
    """A `sampler.Judge` over another one and what was open at `last_ms`, the last sample that was judged before."""

    def __init__(self, judge: Judge, before: Iterable[StoredFinding], last_ms: int) -> None:
        self._judge, self._last_ms = judge, last_ms
        self._waiting = {(one.rule, one.source, one.job_key): one for one in before}
        self._begins: dict[tuple[str, Source, int], int] = {}
        self._since_ms: int | None = None

    @property
    def open(self) -> Sequence[StoredFinding]:
        return (*self._waiting.values(), *(self._begun(one) for one in self._judge.open))

    def observe(
        self,
        now_ms: int,
        frames: Iterable[Frame],
        events: Iterable[Event],
        jobs: Sequence[RunningJob],
        devices: Mapping[Source, Device],
    ) -> Sequence[StoredFinding]:
        """The other's changes with their first begin, and the end of those that did not come again."""
        changed = [self._carry(one) for one in self._judge.observe(now_ms, frames, events, jobs, devices)]
        if self._since_ms is None:
            self._since_ms = now_ms
        if self._waiting:
            changed += self._give_up(now_ms - self._since_ms, {one.job.key for one in jobs})
        return changed

    def _carry(self, finding: StoredFinding) -> StoredFinding:
        earlier = self._waiting.pop((finding.rule, finding.source, finding.job_key), None)
        if earlier is not None:
            self._begins[finding.rule, finding.source, finding.start_ms] = earlier.start_ms
        begun = self._begun(finding)
        if finding.end_ms is not None:
            self._begins.pop((finding.rule, finding.source, finding.start_ms), None)
        return begun

    def _begun(self, finding: StoredFinding) -> StoredFinding:
        start_ms = self._begins.get((finding.rule, finding.source, finding.start_ms), finding.start_ms)
        return finding if start_ms == finding.start_ms else replace(finding, start_ms=start_ms)

    def _give_up(self, waited_ms: int, running: set[str]) -> list[StoredFinding]:
        over = [
            key
            for key, one in self._waiting.items()
            if waited_ms >= PATIENCE_MS
            or (waited_ms >= _JOBS_MS and one.job_key and one.job_key not in running)
        ]
        gone = [self._waiting.pop(key) for key in over]
        return [replace(one, end_ms=max(one.start_ms, self._last_ms)) for one in gone]
