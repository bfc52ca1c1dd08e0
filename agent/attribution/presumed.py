"""Ends that nobody told: jobs of which only a hook file speaks, and whose GPUs say that they are over.

A job of `gpudiag job start` without a scheduler leaves neither a control group nor a process to look at. Such an end is
presumed, not known: the hook file stays, the job's own end corrects it, and work on its GPUs takes it back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from gpudiag.agent.attribution.run import Run
from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.gpu import GpuProcess
from gpudiag.agent.proc_stat import TICKS_PER_SECOND, read_proc_stat
from gpudiag.storage.sample import NODE

DAY_MS = 86_400_000
SILENCE_MS = 7 * DAY_MS  # an allocation that nobody uses is a finding, so it must not end soon
KEPT_MS = 30 * DAY_MS  # how long an end may still be told or taken back
LONGEST_STEP_MS = 60_000  # what two looks may be apart to speak for the time between them
_TOGETHER_S = 1.0
OVERLAP_MS = 60_000  # an Epilog that comes later than this says that two jobs had the GPU at once
SILENT = "nothing used its GPUs any more, and nobody told its end"
GIVEN_AWAY = "its GPU was given to the next job, and nobody told its end"


class Presumption:
    """Looks at all runs once per tick. `activity` maps the devices that could be read to whether something uses them."""

    def __init__(self, root: HostRoot, clock: Clock, silence_ms: int) -> None:
        self._root, self._clock, self._silence_ms = root, clock, silence_ms
        self._looked_ms: int | None = None
        self._shared = False

    def review(
        self,
        runs: Collection[Run],
        now_ms: int,
        gpu_processes: Iterable[GpuProcess],
        activity: Mapping[str, bool],
    ) -> Iterator[Run]:
        """The runs whose end is presumed from now on; those whose end is taken back are just running again."""
        step = now_ms - self._looked_ms if self._looked_ms is not None else 0
        self._looked_ms = now_ms
        told = [run for run in runs if _only_told(run)]
        if not told:
            return
        taken = {uuid for run in runs if run.end_ms is None for uuid in _gpus(run)}
        if any(run.job is None for run in runs):
            taken |= activity.keys()  # a job has just come, and not been given its GPUs yet
        for run in told:
            used = {uuid: activity[uuid] for uuid in _gpus(run) if uuid in activity}
            if run.presumed:
                if run.presumed == SILENT and any(used[uuid] for uuid in used.keys() - taken):
                    run.take_back()
            elif any(used.values()):
                run.silent_ms, run.last_sign_ms = 0, now_ms
            elif used and len(used) == len(_gpus(run)):
                run.silent_ms += step if 0 < step <= LONGEST_STEP_MS else 0
                if self._silence_ms and run.silent_ms >= self._silence_ms:
                    run.presume(max(run.last_sign_ms, run.start_ms), SILENT)
                    yield run
        yield from self._given_away(
            [run for run in told if not run.presumed], now_ms, gpu_processes, activity
        )

    def told_after(self, run: Run, end_ms: int) -> None:
        """An end that was presumed is told now: long after the GPU's next job began, it shows that jobs share GPUs."""
        if run.presumed == GIVEN_AWAY and run.end_ms is not None and end_ms - run.end_ms > OVERLAP_MS:
            self._shared = True

    def _given_away(
        self,
        told: Collection[Run],
        now_ms: int,
        gpu_processes: Iterable[GpuProcess],
        activity: Mapping[str, bool],
    ) -> Iterator[Run]:
        """Each new job against those that have one of its GPUs, once, as soon as these can be read."""
        for new in told:
            gpus = _gpus(new)
            if self._shared or new.compared or not gpus or not gpus <= activity.keys():
                continue
            new.compared = True
            used = [one.pid for one in gpu_processes if one.uuid in gpus]
            if any(self._is_older(pid, now_ms - new.start_ms) for pid in used):
                continue
            for other in told:
                if other.start_ms < new.start_ms and not other.presumed and gpus & _gpus(other):
                    other.presume(new.start_ms, GIVEN_AWAY)
                    yield other

    def _is_older(self, pid: int, age_ms: int) -> bool:
        """Whether a process began before; one that cannot be looked at (another pid namespace) may have."""
        stat = read_proc_stat(self._root, pid)
        if stat is None:
            return True
        return self._clock.boottime() - stat.start_ticks / TICKS_PER_SECOND > age_ms / 1000 + _TOGETHER_S


def _only_told(run: Run) -> bool:
    """Whether nothing but a scheduler's hook knows of this run: no scheduler answers, nothing of it was ever seen."""
    if run.hook is None or run.hook.hook.pid is not None or run.scheduler.state:
        return False
    return not (run.cgroup_seen or run.pids or run.listed)


def _gpus(run: Run) -> frozenset[str]:
    return frozenset(
        source.device
        for source, one in run.allocations.items()
        if source.device != NODE and one.end_ms != one.start_ms
    )
