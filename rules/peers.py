"""What a job's devices of one model did side by side, each second: the measure a straggler is told by."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpudiag.rules.smoothing import centred_mean
from gpudiag.storage.sample import Floats

_WORK_S = 60
_CLOCK_S = 5
_UNEXPLAINED = 0.1


@dataclass
class PeerFold:
    """Per second over the devices of one model: best and total work, how many, clocks, and the worst clock loss."""

    seconds: int
    best: Floats = field(init=False)
    total: Floats = field(init=False)
    count: Floats = field(init=False)
    forced: Floats = field(init=False)
    highest_clock: Floats = field(init=False)
    lowest_clock: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.best, self.total, self.count, self.forced = (np.zeros(self.seconds) for _ in range(4))
        self.highest_clock, self.lowest_clock = (np.full(self.seconds, np.nan) for _ in range(2))

    def add(self, work: Floats, clock_loss: Floats, clock: Floats) -> None:
        """Fold in one device: its work signal, the share lost to forced clocks, and its clock while busy."""
        smooth = centred_mean(work, _WORK_S)
        seen = ~np.isnan(smooth)
        filled = np.where(seen, smooth, 0.0)
        np.maximum(self.best, filled, out=self.best)
        self.total += filled
        self.count += seen
        np.maximum(self.forced, np.nan_to_num(centred_mean(clock_loss, _CLOCK_S)), out=self.forced)
        steady = centred_mean(clock, _WORK_S)
        np.fmax(self.highest_clock, steady, out=self.highest_clock)
        np.fmin(self.lowest_clock, steady, out=self.lowest_clock)

    def add_all(self, other: PeerFold) -> None:
        """Fold in the devices that another fold has seen in the same seconds."""
        np.maximum(self.best, other.best, out=self.best)
        self.total += other.total
        self.count += other.count
        np.maximum(self.forced, other.forced, out=self.forced)
        np.fmax(self.highest_clock, other.highest_clock, out=self.highest_clock)
        np.fmin(self.lowest_clock, other.lowest_clock, out=self.lowest_clock)

    def lag(self, work: Floats) -> Floats:
        """Share of the time this device waits for slower peers, [seconds]; 0 where none stands out.

        In a synchronous job the slow device waits least, so it works most; its peers wait for it. One that
        works within 5 % of the mean while another works over 12 % more than the mean is waiting.
        """
        smooth = np.nan_to_num(centred_mean(work, _WORK_S))
        mean = self.total / np.maximum(self.count, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            waiting = (self.count >= 2) & (self.best > 1.12 * mean) & (smooth < 1.05 * mean)
            lag: Floats = np.where(waiting & (self.best > 0), 1 - smooth / self.best, 0.0)
        return lag

    def unexplained(self, clock: Floats) -> Floats:
        """Share by which this device's clock lags its best peer's, over a tenth, whatever the reason; [seconds]."""
        return self._behind(centred_mean(clock, _WORK_S))

    def slowest(self) -> Floats:
        """The largest share that any device loses to its clock, [seconds]: the others wait for that one."""
        slowest: Floats = np.maximum(self.forced, self._behind(self.lowest_clock))
        return slowest

    def _behind(self, clock: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            behind = np.nan_to_num(1 - clock / self.highest_clock)
        return np.where(behind > _UNEXPLAINED, behind, 0.0)
