"""How the agent itself does: collectors, loop, database. Shown even when nothing can be sampled."""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag import __version__
from gpudiag.agent.families import Families, own, single
from gpudiag.agent.recorder import StoreState
from gpudiag.agent.runner import Outcome
from gpudiag.agent.sampler import Snapshot


def collectors(outcomes: Iterable[Outcome]) -> Families:
    """How each collector does; one that has nothing to collect on this host shows neither success nor failure."""
    success = own("gpudiag_collector_success", "collector")
    duration = own("gpudiag_collector_duration_seconds", "collector")
    last = own("gpudiag_collector_last_success_timestamp_seconds", "collector")
    failures = own("gpudiag_collector_failures_total", "collector")
    rejected = own("gpudiag_samples_rejected_total", "collector", "metric")
    for outcome in outcomes:
        name = (outcome.collector,)
        if outcome.success is not None:
            success.add(name, outcome.success)
            duration.add(name, outcome.duration_seconds)
        if outcome.last_success_ms is not None:
            last.add(name, outcome.last_success_ms / 1000)
        failures.add(name, outcome.failures)
        for metric, count in sorted(outcome.rejected.items()):
            rejected.add((outcome.collector, metric), count)
    for family in (success, duration, last, failures, rejected):
        yield from family.filled()


def loop(snapshot: Snapshot) -> Families:
    """The sampling loop."""
    info = own("gpudiag_build_info", "version")
    info.add((__version__,), 1)
    yield info.metric
    yield from single("gpudiag_ticks_total", snapshot.ticks)
    yield from single("gpudiag_ticks_skipped_total", snapshot.skipped)
    yield from single("gpudiag_last_tick_timestamp_seconds", _seconds(snapshot.time_ms or None))


def repetitions(failed_cycles: int, suppressed_lines: int) -> Families:
    """What the log tells no more because it told it before."""
    yield from single("gpudiag_cycles_failed_total", failed_cycles)
    yield from single("gpudiag_log_lines_suppressed_total", suppressed_lines)


def store(state: StoreState) -> Families:
    """The local database."""
    yield from single("gpudiag_store_up", float(not state.error))
    yield from single("gpudiag_store_waiting_frames", state.waiting_frames)
    yield from single("gpudiag_store_dropped_frames_total", state.dropped_frames)
    yield from single("gpudiag_store_flushes_total", state.flushes)
    yield from single("gpudiag_store_flush_seconds", state.flush_seconds)
    yield from single("gpudiag_store_last_flush_timestamp_seconds", _seconds(state.last_flush_ms))


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else time_ms / 1000
