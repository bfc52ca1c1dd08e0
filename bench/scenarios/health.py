"""Counters and link states of a GPU, and the events of a job."""

from __future__ import annotations

import numpy as np
from bench.scenarios.plan import Plan, window
from bench.scenarios.spec import Generation, Scenario
from bench.scenarios.steps import Floats

from gpudiag.storage.job import Event
from gpudiag.storage.sample import Source


def counters(scenario: Scenario, plan: Plan, kind: Generation, gpu: int) -> dict[str, Floats]:
    """Error counters and link states, [seconds]; old errors that happened before the job are in them."""
    t = np.arange(plan.seconds, dtype=float)
    busy = (t >= plan.warmup) & (t < plan.end)
    columns = {
        "pcie_link_generation": np.where(busy, float(kind.link_generation), 1.0),
        "pcie_link_width": np.full(len(t), 16.0),
        "pcie_replays_total": np.full(len(t), 3.0),
        "ecc_corrected_total": np.full(len(t), 12.0),
        "ecc_uncorrected_total": np.full(len(t), 1.0),
        "remapped_rows_corrected_total": np.full(len(t), 1.0),
        "remapped_rows_uncorrected_total": np.zeros(len(t)),
        "remap_pending": np.zeros(len(t)),
        "remap_failed": np.zeros(len(t)),
        "processes": ((t >= plan.start + 5) & (t < plan.seconds - 2)).astype(float),
    }
    if kind.nvlinks:
        columns["nvlink_errors_total"] = np.full(len(t), 2.0)
    for fault in scenario.faults:
        if not fault.devices or gpu in fault.devices:
            _fail(columns, fault.kind, fault.size, window(fault, plan.train, plan.end), t)
    return columns


def _fail(columns: dict[str, Floats], kind: str, size: float, when: tuple[float, float], t: Floats) -> None:
    passed = np.clip(np.minimum(t, when[1]) - when[0], 0, None)
    if kind == "narrow_link":
        columns["pcie_link_width"] = np.where(passed > 0, 16.0 / size, columns["pcie_link_width"])
    elif kind == "replays":
        columns["pcie_replays_total"] = columns["pcie_replays_total"] + np.floor(passed * size / 60)
    elif kind == "ecc":
        errors = (passed > 0) * np.ceil(size)  # there is no half of an error
        columns["ecc_uncorrected_total"] = columns["ecc_uncorrected_total"] + errors
        columns["remapped_rows_uncorrected_total"] = columns["remapped_rows_uncorrected_total"] + errors
        columns["remap_pending"] = np.where(passed > 0, 1.0, columns["remap_pending"])
    elif kind == "nvlink_errors" and "nvlink_errors_total" in columns:
        columns["nvlink_errors_total"] = columns["nvlink_errors_total"] + np.floor(passed * size)
    elif kind in ("unused", "never_started"):
        columns["processes"] = 0.0 * t


def events(scenario: Scenario, plan: Plan, sources: list[Source], start_ms: int) -> list[Event]:
    """Xids and kills that the kernel reported."""
    found = []
    for fault in scenario.faults:
        at = start_ms + int(window(fault, plan.train, plan.end)[0] * 1000)
        if fault.kind == "xid":
            found.append(Event(sources[fault.devices[0]], at, "xid", int(fault.size)))
        elif fault.kind == "host_leak":
            killed = start_ms + int(plan.end * 1000)
            found.append(Event(Source(sources[0].node, "node"), killed, "oom_kill", 0))
    return found
