"""Energy of a job's devices, and what it and the GPU time cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpudiag.rules.shortfall import Series
from gpudiag.storage.job import Json
from gpudiag.storage.sample import Floats

JOULES_PER_KILOWATT_HOUR = 3.6e6

METRICS = ("power_watts", "energy_joules_total")


@dataclass(frozen=True)
class Cost:
    """Prices of the site: of a GPU for an hour and of a kilowatt-hour (0: not known), in `currency`.

    `pue` is facility power over computer power; 1.5 is near the mean of yearly surveys.
    """

    currency: str = "USD"
    gpu_hour: float = 0.0
    kilowatt_hour: float = 0.0
    pue: float = 1.5


@dataclass
class EnergyMeter:
    """Adds up devices: joules in all and joules while nothing useful was done; `measured` GPU-seconds."""

    joules: float = 0.0
    lost_joules: float = 0.0
    measured: float = 0.0
    from_counter: bool = False

    def add(self, series: Series, lost: Floats) -> None:
        """One device; `lost` is the share of each second without useful work, NaN outside the allocation."""
        watts = series("power_watts")
        counter = _counted(series("energy_joules_total"))
        known = ~np.isnan(watts) & ~np.isnan(lost)
        summed = float(watts[known].sum())
        joules = counter if counter is not None else summed
        self.from_counter |= counter is not None
        self.joules += joules
        self.measured += float(known.sum())
        if summed > 0:
            self.lost_joules += joules * float((watts * lost)[known].sum()) / summed

    def add_all(self, other: EnergyMeter) -> None:
        """Add the devices that another meter has seen."""
        self.joules += other.joules
        self.lost_joules += other.lost_joules
        self.measured += other.measured
        self.from_counter |= other.from_counter

    def report(self, cost: Cost | None, gpu_hours: float, lost_gpu_hours: float) -> Mapping[str, Json]:
        """Kilowatt-hours and money; empty when neither energy nor a price is known."""
        out: dict[str, Json] = {}
        used, lost = (joules / JOULES_PER_KILOWATT_HOUR for joules in (self.joules, self.lost_joules))
        if self.joules:
            origin = "energy counter" if self.from_counter else "power samples"
            out["energy"] = {"kilowatt_hours": used, "lost_kilowatt_hours": lost, "measured_by": origin}
        if cost and (cost.gpu_hour or cost.kilowatt_hour):
            per_kilowatt_hour = cost.kilowatt_hour * cost.pue
            out["cost"] = {
                "currency": cost.currency,
                "pue": cost.pue,
                "total": gpu_hours * cost.gpu_hour + used * per_kilowatt_hour,
                "lost": lost_gpu_hours * cost.gpu_hour + lost * per_kilowatt_hour,
            }
        return out


def _counted(counter: Floats) -> float | None:
    """Joules by the driver's counter, which starts again when the driver is loaded; `None`: not counted."""
    known = counter[~np.isnan(counter)]
    if len(known) < 2:
        return None
    steps = np.diff(known)
    return float(np.where(steps >= 0, steps, known[1:]).sum())
