"""A year of trouble in compressed time: whatever the driver does, the collector keeps nothing that is over."""

from __future__ import annotations

import contextlib
import gc
import itertools
from typing import Any

from restless_driver import GPUS, ScriptedProbe, World

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.nvml import NvmlCollector
from gpudiag.storage.job import Event

CYCLES = 60_000


def test_nothing_grows_and_every_trouble_is_told_once() -> None:
    clock, world = ManualClock(1_767_225_600_000), World()
    collector = NvmlCollector("n1", clock, start=lambda: ScriptedProbe(world, clock))
    told: list[str] = []
    objects: list[int] = []
    for cycle in range(CYCLES):
        with contextlib.suppress(NothingToCollect, RuntimeError):
            for one in collector.collect(clock.now_ms()):
                if isinstance(one, Event):
                    told.append(one.kind)
        clock.sleep(1.0)
        if cycle in (CYCLES // 10, CYCLES - 1):
            gc.collect()
            objects.append(len(gc.get_objects()))
    assert world.made > CYCLES // 50
    internals: Any = collector
    known = set(internals._inventory.devices)
    assert len(known) <= GPUS * 5
    assert set(internals._values._slow) <= known
    assert len(internals._values._rates._previous) <= len(known)
    assert objects[1] - objects[0] < 500
    ups_and_downs = [kind for kind in told if kind.startswith("driver_")]
    for kind, following in itertools.pairwise(ups_and_downs):
        assert (kind, following) != ("driver_recovered", "driver_recovered")
    assert ups_and_downs.count("driver_recovered") > 100
