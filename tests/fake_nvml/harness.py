"""The real collector with its real child process on the fake driver, one cycle at a time, on a clock of the test."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_nvml.control import FakeNvml

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.nvml import NvmlCollector
from gpudiag.agent.probe.client import ProbeClient
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame

NOON_MS = 1_767_225_600_000
SECONDS_TO_ANSWER = 10.0


@dataclass
class Cycle:
    """What one `collect` gave, by device UUID."""

    frames: dict[str, Frame] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    devices: dict[str, Device] = field(default_factory=dict)
    failure: str = ""
    nothing: str = ""
    seconds: float = 0.0

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


class Bench:
    """`cycle()` collects and lets a second pass; `until_frames()` goes on until the driver answers."""

    def __init__(
        self, fake: FakeNvml, root: Path, environ: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.fake = fake
        self.clock = ManualClock(NOON_MS)
        self.probes: list[ProbeClient] = []
        self._environ = {**os.environ, **fake.environ, **(environ or {})}
        self.collector = NvmlCollector("n1", self.clock, root=root, start=self._start, **options)

    def _start(self) -> ProbeClient:
        self.probes.append(ProbeClient(environ=self._environ))
        return self.probes[-1]

    def cycle(self, seconds: float = 1.0) -> Cycle:
        """One collect, and then `seconds` on the test's clock."""
        result, started = Cycle(), time.perf_counter()
        try:
            for one in self.collector.collect(self.clock.now_ms()):
                if isinstance(one, Frame):
                    result.frames[one.source.device] = one
                elif isinstance(one, Event):
                    result.events.append(one)
                else:
                    result.devices[one.source.device] = one
        except NothingToCollect as nothing:
            result.nothing = str(nothing) or "nothing"
        except RuntimeError as error:
            result.failure = str(error)
        result.seconds = time.perf_counter() - started
        self.clock.sleep(seconds)
        return result

    def until_frames(self) -> Cycle:
        """Cycles, without time passing, until there are frames; events and devices of all of them."""
        events: list[Event] = []
        devices: dict[str, Device] = {}
        deadline = time.monotonic() + SECONDS_TO_ANSWER
        while time.monotonic() < deadline:
            result = self.cycle(0.0)
            events += result.events
            devices |= result.devices
            if result.frames:
                self.clock.sleep(1.0)
                result.events, result.devices = events, devices
                return result
        raise AssertionError(f"no frames: {self.collector.status}")

    def settled(self) -> Cycle:
        """The first cycle with GPM and rates, which need one before it."""
        first = self.until_frames()
        second = self.next()
        second.events, second.devices = first.events + second.events, first.devices | second.devices
        return second

    def next(self, pause: float = 0.11) -> Cycle:
        """A cycle far enough from the one before, by real time, for the hardware's refresh of 0.1 s."""
        time.sleep(pause)
        return self.until_frames()
