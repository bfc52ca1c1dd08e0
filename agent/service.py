"""The running agent: a cycle never raises, a reload keeps what works, a shutdown writes what is in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gpudiag.agent.clock import Clock
from gpudiag.agent.continued import Continued
from gpudiag.agent.http import Health
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.sampler import Judge, Sampler
from gpudiag.errors import GpudiagError

log = logging.getLogger(__name__)


class Closable(Protocol):
    """Something that is let go of at the end (the HTTP server, the forwarder, the control socket)."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Changes:
    """What a reload takes over at once."""

    interval: float
    judge: Judge | None


class Agent:
    """What the daemon's loop drives.

    `reread` reads configuration and rules anew; it raises `GpudiagError` when they are bad, and then the old
    ones stay.
    """

    def __init__(
        self,
        sampler: Sampler,
        recorder: Recorder,
        clock: Clock,
        interval: float,
        reread: Callable[[], Changes],
    ) -> None:
        self.sampler = sampler
        self.interval = interval
        self._recorder = recorder
        self._clock = clock
        self._reread = reread
        self._attached: list[Closable] = []
        self.failed_cycles = 0

    @property
    def stale_after(self) -> float:
        """Seconds after which the latest tick no longer says anything about now."""
        return max(3 * self.interval, 10.0)

    def attach(self, other: Closable) -> None:
        """Close this one too at the end."""
        self._attached.append(other)

    def cycle(self) -> None:
        """One tick; whatever goes wrong in it is logged and counted, the loop goes on."""
        try:
            self.sampler.tick()
        except Exception:
            self.failed_cycles += 1
            log.exception("a sampling cycle failed")

    def reload(self) -> None:
        """Take over changed configuration and rules when they are good."""
        try:
            changes = self._reread()
        except GpudiagError as error:
            log.error("reload refused, the old configuration and rules stay: %s", error)
            return
        self._judge_by(changes.judge)
        self.interval = changes.interval
        self.sampler.set_interval(changes.interval)
        log.info("configuration and rules reloaded")

    def _judge_by(self, judge: Judge | None) -> None:
        """From now on; what is open goes on under the new rules, or ends when nothing is judged any more."""
        before = tuple(self.sampler.judge.open) if self.sampler.judge else ()
        now_ms = self._clock.now_ms()
        if judge is not None:
            self.sampler.judge = Continued(judge, before, now_ms) if before else judge
            return
        self.sampler.judge = None
        self._recorder.add_findings([replace(one, end_ms=max(one.start_ms, now_ms)) for one in before])

    def shutdown(self) -> None:
        """Stop serving, write what is in memory, let go of everything."""
        for other in reversed(self._attached):
            other.close()
        self.sampler.close()

    def alive(self) -> Health:
        """Well while the loop goes round."""
        age = self._clock.monotonic() - self.sampler.snapshot.monotonic
        if not self.sampler.snapshot.ticks:
            return Health(True, "starting")
        return Health(age <= self.stale_after, f"last tick {age:.1f} s ago")

    def ready(self) -> Health:
        """Well when the first tick is done, the loop goes round and the database takes writes."""
        if not self.sampler.snapshot.ticks:
            return Health(False, "no sample yet")
        if self._recorder.state.error:
            return Health(False, f"database: {self._recorder.state.error}")
        return self.alive()
