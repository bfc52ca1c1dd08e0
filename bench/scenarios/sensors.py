"""How the real tools see a GPU: interval means, 20 ms snapshots, utilisation periods, gaps, jitter, sentinels."""

from __future__ import annotations

import numpy as np
from bench.scenarios.gpu import Ticks, clock_now, link_bytes
from bench.scenarios.memory import allocator
from bench.scenarios.plan import Plan
from bench.scenarios.spec import Generation, Scenario
from bench.scenarios.steps import TICKS, Floats

PROFILED = {
    "sm_active_ratio": "sm", "graphics_active_ratio": "engine", "tensor_active_ratio": "tensor",
    "dram_active_ratio": "dram", "fp32_active_ratio": "fp32",
}  # fmt: skip


def by_second(values: Floats) -> Floats:
    """Mean per second of a series of ticks."""
    return values.reshape(-1, TICKS).mean(axis=1)


class Sensors:
    """Reads one GPU once a second."""

    def __init__(
        self, scenario: Scenario, plan: Plan, kind: Generation, gpu: int, rng: np.random.Generator
    ) -> None:
        self.scenario, self.plan, self.kind, self.gpu, self.rng = scenario, plan, kind, gpu, rng

    def read(self, ticks: Ticks, used: Floats) -> dict[str, Floats]:
        """Columns [seconds] of everything this GPU can tell."""
        columns = {
            **self._profiled(ticks),
            **self._utilisation(ticks),
            **self._memory(used),
            **self._transfers(ticks),
            **self._power(ticks),
            **self._health(),
        }
        return {name: values for name, values in columns.items() if name not in self.kind.missing}

    def _mean(self, values: Floats, spread: float = 0.01) -> Floats:
        """A mean over an interval whose ends come a little early or late."""
        shift = int(self.rng.integers(0, 3))
        noise = spread * self.rng.standard_normal(self.plan.seconds)
        return np.clip(by_second(np.roll(values, shift)) * (1 + noise), 0, None)

    def _profiled(self, ticks: Ticks) -> dict[str, Floats]:
        if not self.kind.profiling:
            return {}
        means = {name: np.minimum(self._mean(ticks.signal(s)), 1.0) for name, s in PROFILED.items()}
        means["sm_occupancy_ratio"] = 0.45 * means["sm_active_ratio"]
        return means

    def _utilisation(self, ticks: Ticks) -> dict[str, Floats]:
        """The share of the last sampling period with a kernel, in whole percent."""
        period = {"H100": 4, "A100": 10}.get(self.kind.model.split()[1][:4], TICKS)
        busy = np.minimum(1.0, ticks.signal("engine") * 1.15).reshape(-1, TICKS)[:, -period:].mean(axis=1)
        traffic = ticks.signal("dram").reshape(-1, TICKS)[:, -period:].mean(axis=1)
        return {"gpu_util_ratio": np.round(busy, 2), "memory_util_ratio": np.round(0.9 * traffic, 2)}

    def _memory(self, used: Floats) -> dict[str, Floats]:
        total = self.kind.memory_bytes
        block = 2.0**21
        columns = {
            "memory_used_bytes": np.floor(used * total / block) * block,
            "memory_total_bytes": np.full(len(used), total),
        }
        if self.scenario.workload.hook:
            columns |= allocator(self.scenario, self.plan, used, total)
        return columns

    def _transfers(self, ticks: Ticks) -> dict[str, Floats]:
        """A byte counter where the driver has one, else one 50 ms tick out of each second as the rate of it all."""
        received, sent = ticks.received, ticks.sent
        if self.kind.pcie_snapshots:
            at = np.arange(self.plan.seconds) * TICKS + self.rng.integers(0, TICKS, self.plan.seconds)
            columns = {"pcie_rx_bytes_per_second": received[at], "pcie_tx_bytes_per_second": sent[at]}
        else:
            columns = {
                "pcie_rx_bytes_per_second": self._mean(received),
                "pcie_tx_bytes_per_second": self._mean(sent),
            }
        if self.kind.nvlinks:
            columns["nvlink_tx_bytes_per_second"] = self._mean(ticks.link)
            columns["nvlink_rx_bytes_per_second"] = self._mean(ticks.link)
        return columns

    def _power(self, ticks: Ticks) -> dict[str, Floats]:
        busy = by_second(ticks.signal("engine"))
        clock, bits, heat = clock_now(self.scenario, self.plan, self.gpu, busy)
        dynamic = by_second(ticks.signal("power")) * np.where(busy > 0.02, (clock / 0.965) ** 1.8, 1.0)
        watts = self.kind.idle_watts + dynamic * (self.kind.power_limit - self.kind.idle_watts)
        watts = np.clip(
            watts * (1 + 0.015 * self.rng.standard_normal(len(watts))), 1, self.kind.power_limit * 1.02
        )
        alpha = 1 / 45
        load = np.convolve(
            np.concatenate((np.full(200, watts[0]), watts)), alpha * (1 - alpha) ** np.arange(200)
        )
        warm = 30 + 38 * load[200 : 200 + len(watts)] / self.kind.power_limit + heat
        thermal, capped = np.isin(bits, (0x20, 0x60)), bits == 4
        return {
            "power_watts": watts,
            "power_limit_watts": np.full(len(watts), self.kind.power_limit),
            "energy_joules_total": 4.1e8 + np.cumsum(watts),
            "temperature_celsius": np.round(warm),
            "memory_temperature_celsius": np.round(warm + 6),
            "sm_clock_hertz": np.round(clock * self.kind.clock_hertz / 1.5e7) * 1.5e7,
            "clock_event_reasons": bits,
            "throttle_thermal_seconds_total": np.cumsum(np.where(thermal, 0.97, 0.0)),
            "throttle_power_seconds_total": np.cumsum(np.where(capped, 0.9, 0.0)),
            "throttle_brake_seconds_total": np.cumsum(np.where(bits == 0x88, 0.95, 0.0)),
        }

    def _health(self) -> dict[str, Floats]:
        from bench.scenarios.health import counters

        return counters(self.scenario, self.plan, self.kind, self.gpu)


def lose(columns: dict[str, Floats], scenario: Scenario, rng: np.random.Generator) -> dict[str, Floats]:
    """Take away what a real collector does not get: a sample here and there, stretches, paused profiling."""
    seconds = len(next(iter(columns.values())))
    lost = rng.random(seconds) < 0.002
    if scenario.sampling == "gaps":
        for first in rng.integers(0, seconds, 6):
            lost[first : first + int(rng.integers(20, 200))] = True
    paused = np.zeros(seconds, bool)
    if scenario.sampling == "paused":
        first = int(seconds * rng.uniform(0.3, 0.6))
        paused[first : first + seconds // 6] = True
    profiled = {*PROFILED, "sm_occupancy_ratio"}
    return {n: np.where(lost | (paused & (n in profiled)), np.nan, values) for n, values in columns.items()}


__all__ = ["Sensors", "by_second", "link_bytes", "lose"]
