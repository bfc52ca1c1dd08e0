"""Phases that a training process named itself: its marks (`gpudiag.probe.mark`) second by second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from gpudiag.storage.job import Event

Mask = npt.NDArray[np.bool_]
KIND = "mark"
# a process that dies never says that it is done: longer than this, nothing is believed
_LONGEST_S = {"eval": 6 * 3600, "checkpoint": 3600}
PHASES = tuple(_LONGEST_S)
TRAIN = "train"


class MarkFollower:
    """Follows the marks of one job through time: `advance` takes successive stretches of seconds.

    Which second begins or ends a phase is rounded, and depends on nothing later than the second itself.
    """

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._trains = False

    def advance(self, events: Iterable[Event], start_s: int, seconds: int) -> Mapping[str, Mask]:
        """Per phase whether each second is in it, [seconds]; of `events` the marks of this stretch count.

        `TRAIN`: whether the process has said that it trains, then or before; what else it does may be said besides.
        """
        inside = {phase: np.zeros(seconds, dtype=np.bool_) for phase in PHASES}
        inside[TRAIN] = np.full(seconds, self._trains)
        mine = (e for e in events if e.kind == KIND and 0 <= e.time_ms // 1000 - start_s < seconds)
        for event in sorted(mine, key=lambda one: (one.time_ms, one.ordinal)):
            name, at = str(event.detail.get("name", "")), event.time_ms / 1000 - start_s
            phase, _, edge = name.rpartition("_")
            if name == "train_start":
                self._trains = True
                inside[TRAIN][_nearest(at) :] = True
                for open_phase in tuple(self._begun):
                    self._fill(inside, open_phase, at, start_s)
            elif phase in PHASES and edge == "end":
                self._fill(inside, phase, at, start_s)
            elif phase in PHASES and edge == "start":
                self._begun.setdefault(phase, event.time_ms / 1000)
        for phase in tuple(self._begun):
            begun = self._begun[phase]
            self._fill(inside, phase, seconds, start_s)
            if begun + _LONGEST_S[phase] > start_s + seconds:
                self._begun[phase] = begun
        return inside

    def _fill(self, inside: Mapping[str, Mask], phase: str, until: float, start_s: int) -> None:
        begun = self._begun.pop(phase, None)
        if begun is None:
            return
        first, last = _nearest(begun - start_s), _nearest(min(until, begun + _LONGEST_S[phase] - start_s))
        inside[phase][max(0, first) : max(0, last)] = True


def _nearest(seconds: float) -> int:
    return int(np.floor(seconds + 0.5))
