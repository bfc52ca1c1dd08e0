"""The state machine behind the phases: one step per 10 s of the job, cheap enough to run live."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import NamedTuple

TICK_FIELDS = (
    "active", "peak", "gpu_util_ratio", "tensor_active_ratio", "dram_active_ratio", "memory_util_ratio",
    "memory_ratio", "nvlink_tx_bytes_per_second", "processes", "job_processes", "main_cpu_ratio",
    "loader_dstate_ratio", "loader_workers", "steps_per_second", "network_rx_bytes_per_second",
    "job_write_bytes_per_second", "step_seconds",
)  # fmt: skip


class Tick(NamedTuple):
    """Ten seconds of a job's activity: means, `peak` the highest second; NaN where not measured."""

    active: float
    peak: float
    util: float
    tensor: float
    dram: float
    memory_util: float
    memory: float
    nvlink: float
    processes: float
    job_processes: float
    main_cpu: float
    dstate: float
    workers: float
    steps: float
    network: float
    write: float
    step_seconds: float


ACTIVE = 0.05
IDLE = 0.02
_IDLE_TICKS = 6
_HUNG_TICKS = 60
_WARMUP_TICKS = 90
_STEADY_TOLERANCE = 0.2
_EVAL_TICKS = 2
_HISTORY = 60
_GAPS_TICKS = 1080
_UNDECIDED_TICKS = 270


class PhaseMachine:
    """Names the phase of each tick in turn; never looks ahead."""

    def __init__(self, tags: frozenset[str]) -> None:
        self._served_as = next((tag for tag in ("interactive", "inference") if tag in tags), "")
        self._guess = ""
        self._age = -1
        self._warm = False
        self._restarting = False
        self._opening: deque[float] = deque(maxlen=3)
        self._history: deque[Tick] = deque(maxlen=_HISTORY)
        self._links: deque[float] = deque(maxlen=60)
        self._tensor_seen = 0.0
        self._idle = self._stuck = self._quiet_links = self._ticks = 0
        self._gaps: deque[tuple[int, int]] = deque(maxlen=50)

    def step(self, tick: Tick) -> str:
        """The phase of this tick."""
        self._ticks += 1
        if math.isnan(tick.active):
            return "not_measured"
        if self._age < 0:
            return self._before_work(tick)
        self._age += 1
        self._history.append(tick)
        return self._at_work(tick)

    def _before_work(self, tick: Tick) -> str:
        self._opening.append(tick.active)
        if _stepping(tick) or (len(self._opening) == 3 and fmean(self._opening) > ACTIVE):
            self._age = 0
            self._warm = self._warm or self._restarting
            self._history.append(tick)
            return "train" if self._warm else "warmup"
        if self._restarting:
            return "restart"
        present = tick.processes > 0 or tick.job_processes > 0 or tick.memory > 0.02 or tick.active > IDLE
        return "startup" if present else "before_start"

    def _at_work(self, tick: Tick) -> str:
        self._count(tick)
        if self._gone(tick):
            return "restart" if self._restarting else "idle"
        if self._stuck >= _HUNG_TICKS and not self._served_as:
            return "hung"
        served_as = self._served_as or self._guess_service()
        if served_as:
            return served_as
        if self._idle >= _IDLE_TICKS:
            return "hung" if self._idle >= _HUNG_TICKS and _host_stuck(tick) else "idle"
        if not self._warm:
            self._warm = (self._age >= _WARMUP_TICKS or self._steady()) and not self._undecided()
            if not self._warm:
                return "warmup"
        return self._train_or_eval(tick)

    def _count(self, tick: Tick) -> None:
        idle = tick.peak < IDLE and not tick.util > 0.01
        if not idle and self._idle >= 3:
            self._gaps.append((self._ticks, self._idle))
        self._idle = self._idle + 1 if idle else 0
        self._tensor_seen = max(self._tensor_seen, 0.0 if math.isnan(tick.tensor) else tick.tensor)
        self._stuck = self._stuck + 1 if self._spins(tick) else 0

    def _gone(self, tick: Tick) -> bool:
        """No process is left; whatever comes next is a restart inside the same allocation."""
        if tick.processes == 0 and tick.memory < 0.02 and tick.peak < IDLE:
            self._restarting = True
            self._age = -1
            self._opening.clear()
            return True
        return False

    def _spins(self, tick: Tick) -> bool:
        """Kernels run, yet nothing is computed or moved: the signature of a collective that never completes."""
        if _stepping(tick):
            return False
        busy = tick.util >= 0.95 or (math.isnan(tick.util) and tick.active > IDLE)
        dram = tick.memory_util if math.isnan(tick.dram) else tick.dram
        idle_math = dram < 0.02 and (math.isnan(tick.tensor) or tick.tensor < 0.005)
        silent = not tick.nvlink > max(1e6, 0.01 * self._usual_link())
        return busy and idle_math and silent and (tick.active < 0.4 or math.isnan(tick.dram))

    def _usual_link(self) -> float:
        return median(self._links) if self._links else 0.0

    def _train_or_eval(self, tick: Tick) -> str:
        usual = self._usual_link()
        quiet = usual > 50e6 and tick.nvlink < 0.1 * usual and tick.active > 0.15
        # while a step is merely long, how long the last one took is known
        marked = tick.steps == 0 and math.isnan(tick.step_seconds) and tick.active > 0.15
        self._quiet_links = self._quiet_links + 1 if quiet or marked else 0
        if self._quiet_links >= _EVAL_TICKS:
            return "eval"
        if not quiet and not math.isnan(tick.nvlink):
            self._links.append(tick.nvlink)
        return "train"

    def _steady(self) -> bool:
        """Three minutes in a row on one level, or ten steps of a job that counts them."""
        recent = list(self._history)[-18:]
        if len(recent) >= 6 and all(_stepping(tick) for tick in recent[-6:]):
            return True
        if len(recent) < 18:
            return False
        minutes = [fmean(t.active for t in recent[i : i + 6]) for i in (0, 6, 12)]
        centre = fmean(minutes)
        spread = max(abs(minute - centre) for minute in minutes)
        return min(minutes) > ACTIVE and spread <= max(_STEADY_TOLERANCE * centre, 0.03)

    def _guess_service(self) -> str:
        """Interactive or inference, as far as telemetry tells; looked at once a minute, then kept."""
        if self._age % 6 == 0 and self._age >= _HISTORY:
            if self._irregular_gaps():
                self._guess = "interactive"
            elif not (self._guess == "inference" and self._may_serve()):
                self._guess = "inference" if self._serves() else ""
        return self._guess

    def _irregular_gaps(self) -> bool:
        recent = [(end, length) for end, length in self._gaps if end > self._ticks - _GAPS_TICKS]
        if len(recent) < 4 or any(_stepping(tick) for tick in self._history):
            return False
        lengths = [float(length) for _, length in recent]
        busy = [float(b - a - n) for (a, _), (b, n) in pairwise(recent)]
        idle_share = sum(lengths) / max(1, self._ticks - recent[0][0] + recent[0][1])
        return idle_share > 0.3 and _variation(lengths) > 0.6 and _variation(busy) > 0.35

    def _undecided(self) -> bool:
        """Too young to tell training from serving or from a person's work: no loader, no steps, stops and starts."""
        ticks = list(self._history)
        if self._served_as or any(t.workers > 0 or t.steps > 0 for t in ticks):
            return False
        if (
            self._age <= _UNDECIDED_TICKS
            and sum(end > self._ticks - _UNDECIDED_TICKS for end, _ in self._gaps) >= 2
        ):
            return True
        if self._age > _HISTORY + 6 or not ticks[-1].memory >= 0.4:
            return False
        active = [t.active for t in ticks[-18:]]
        return fmean(active) < 0.6 and _variation(active) > 0.15

    def _may_serve(self) -> bool:
        """Much memory held flat, nothing that trains: no loader, no steps, no checkpoint; and not always busy."""
        ticks = [tick for tick in self._history if not math.isnan(tick.memory)]
        if len(ticks) < _HISTORY * 0.8 or any(t.workers > 0 or t.steps > 0 or t.write > 50e6 for t in ticks):
            return False
        memory = [t.memory for t in ticks]
        flat = min(memory) >= 0.4 and max(memory) - min(memory) <= 0.02
        return flat and fmean(t.active for t in ticks) < 0.7

    def _longest_gap(self) -> int:
        recent = [length for end, length in self._gaps if end > self._ticks - _HISTORY]
        return max([*recent, self._idle])

    def _serves(self) -> bool:
        """It may, and its activity follows small traffic from outside; without network data: little and irregular."""
        if not self._may_serve() or self._stuck >= _IDLE_TICKS:
            return False
        active, network = [t.active for t in self._history], [t.network for t in self._history]
        if not any(math.isnan(value) for value in network) and fmean(network) > 0:
            return (
                fmean(network) < 100e6 and _variation(active) > 0.15 and _correlation(network, active) > 0.4
            )
        half = len(active) // 2
        irregular = min(_variation(active[:half]), _variation(active[half:])) > 0.35
        return fmean(active) < 0.4 and irregular and self._longest_gap() < _IDLE_TICKS


def _stepping(tick: Tick) -> bool:
    return tick.steps > 0


def _host_stuck(tick: Tick) -> bool:
    return tick.main_cpu >= 0.9 or tick.dstate >= 0.5


def _variation(values: Sequence[float]) -> float:
    if len(values) < 2 or fmean(values) <= 0:
        return 0.0
    return pstdev(values) / fmean(values)


def _correlation(a: Iterable[float], b: Iterable[float]) -> float:
    xs, ys = list(a), list(b)
    mx, my = fmean(xs), fmean(ys)
    cross = sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True))
    scale = pstdev(xs) * pstdev(ys) * len(xs)
    return cross / scale if scale > 0 else 0.0
