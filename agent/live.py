"""Feeds the live rule engine from the sampler: samples and events each tick, and a verdict on the 10-second boundaries of each slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpudiag.agent.sampler import RunningJob
from gpudiag.rules.live import LiveEngine, LiveJob
from gpudiag.rules.ruleset import RuleSet
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.store import StoredFinding

GRID_MS = 10_000  # rules are judged at multiples of this, live as well as afterwards
WAIT_S = 60


class LiveJudge:
    """A `sampler.Judge` over the rules' own engine."""

    def __init__(self, ruleset: RuleSet, node: str, every_ms: int = GRID_MS) -> None:
        """`every_ms` is a multiple of the grid: several of its points are then judged at once, with the same result."""
        self._engine = LiveEngine(ruleset, node, together_s=every_ms // 1000, wait_s=WAIT_S)
        self._every_ms = every_ms
        self._slot = -1

    @property
    def open(self) -> Sequence[StoredFinding]:
        return tuple(self._engine.open)

    def observe(
        self,
        now_ms: int,
        frames: Iterable[Frame],
        events: Iterable[Event],
        jobs: Sequence[RunningJob],
        devices: Mapping[Source, Device],
    ) -> Sequence[StoredFinding]:
        """Take in a tick; judge when it is the first of a new slot."""
        slot = now_ms // self._every_ms
        changed: Sequence[StoredFinding] = ()
        if slot != self._slot:
            if self._slot >= 0:
                self._engine.set_jobs([_live_job(job, devices) for job in jobs])
                changed = self._engine.evaluate(slot * self._every_ms)
            self._slot = slot
        self._engine.observe(frames)
        self._engine.observe_events(events)
        return changed


def _live_job(running: RunningJob, devices: Mapping[Source, Device]) -> LiveJob:
    own = tuple(devices[one.source] for one in running.allocations if one.source in devices)
    return LiveJob(running.job, running.allocations, own)
