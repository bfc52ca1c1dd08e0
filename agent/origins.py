"""Which of several sources a metric comes from: ranked, and one series never changes hands for a moment.

DCGM's profiling fields are best for what happens inside the SMs (they exist from Volta on), then GPM; for everything
else the driver itself is best; an exporter, which repeats its values for many seconds, and a snapshot of 20 ms come
last. A lesser source takes over only after the better one has been silent for a minute, so that a sample missed here
or there is a gap and not a change of instrument.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag.storage.sample import Frame, Source

INSIDE_SM = ("dcgm", "gpm", "nvml", "dcgm-exporter", "nvml-snapshot")
ELSE = ("nvml", "gpm", "dcgm", "dcgm-exporter", "nvml-snapshot")
HOLD_MS = 60_000
_MANY = 256  # sources; MIG instances come and go
_INSIDE = frozenset(
    f"{name}_ratio"
    for name in (
        "sm_active", "sm_occupancy", "tensor_active", "dram_active", "graphics_active", "fp64_active", "fp32_active",
        "fp16_active",
    )
)  # fmt: skip


def rank(metric: str, origin: str) -> int:
    """Place of an origin for this metric, 0 is best; unknown origins are last."""
    order = INSIDE_SM if metric in _INSIDE else ELSE
    return order.index(origin) if origin in order else len(order)


class Merger:
    """Makes one frame per source of the frames of a tick."""

    def __init__(self, hold_ms: int = HOLD_MS) -> None:
        self._hold_ms = hold_ms
        self._holders: dict[
            Source, dict[str, tuple[str, int]]
        ] = {}  # metric -> origin, when it last had a value

    def merge(self, frames: Iterable[Frame], now_ms: int) -> tuple[Frame, ...]:
        """Frames stamped with the tick's time, each metric from one origin; frames without values are left out."""
        by_source: dict[Source, list[Frame]] = {}
        for frame in frames:
            by_source.setdefault(frame.source, []).append(frame)
        if len(self._holders) > _MANY:
            self._holders = {source: held for source, held in self._holders.items() if source in by_source}
        merged = (self._one(source, found, now_ms) for source, found in by_source.items())
        return tuple(frame for frame in merged if frame.values)

    def _one(self, source: Source, found: list[Frame], now_ms: int) -> Frame:
        if len(found) == 1 and source not in self._holders:
            return Frame(source, now_ms, found[0].values, found[0].origins)
        if source.scope != "gpu":
            return _joined(source, found, now_ms)
        holders = self._holders.setdefault(source, {})
        values: dict[str, float] = {}
        origins: dict[str, str] = {}
        for frame in found:
            for metric, value in frame.values.items():
                origin = frame.origins.get(metric, "")
                if metric in values and rank(metric, origin) >= rank(metric, origins.get(metric, "")):
                    continue
                if self._yields(holders.get(metric), metric, origin, now_ms):
                    values[metric] = value
                    origins[metric] = origin
        holders.update((metric, (origin, now_ms)) for metric, origin in origins.items())
        return Frame(source, now_ms, values, {metric: origin for metric, origin in origins.items() if origin})

    def _yields(self, holder: tuple[str, int] | None, metric: str, origin: str, now_ms: int) -> bool:
        """Whether this origin may have the metric now."""
        if holder is None or holder[0] == origin or rank(metric, origin) < rank(metric, holder[0]):
            return True
        return now_ms - holder[1] >= self._hold_ms


def _joined(source: Source, found: Iterable[Frame], now_ms: int) -> Frame:
    """Frames of the host and of jobs: each collector measures its own metrics there."""
    values: dict[str, float] = {}
    origins: dict[str, str] = {}
    for frame in found:
        values.update(frame.values)
        origins.update(frame.origins)
    return Frame(source, now_ms, values, origins)
