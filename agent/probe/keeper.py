"""Keeps one probe alive: starts it, notices when the driver hangs, is gone or crashed it, waits ever longer before trying again.

A call into the driver can block where SIGKILL does not help. Such a child is left alone, no second one is started
beside it (each would wedge too), and the caller loses no more than the wait for one late answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from gpudiag import message
from gpudiag.agent.probe.client import ProbeDiedError, Stuck
from gpudiag.agent.probe.framing import Message

HANG_AFTER = (
    30.0  # seconds; a cycle under a storm of ECC errors was seen to take 45, an average one takes 0.05
)
START_AFTER = 120.0  # the driver initialises every GPU when none was in use
_HUNG_PAUSE = (30.0, 600.0)
_GONE_PAUSE = (5.0, 60.0)
_CRASH_PAUSE = (5.0, 600.0)
_ABSENT_PAUSE = (60.0, 600.0)  # no library: a host without GPUs, most likely
_LIBRARY_NOT_FOUND = 12
_TO_DIE = 0.2  # seconds that a killed process may take to be gone


class Probe(Protocol):
    """What the keeper needs of `client.ProbeClient`."""

    @property
    def pid(self) -> int: ...
    def send(self, message: Message) -> None: ...
    def receive(self, timeout: float) -> Message | None: ...
    def stuck(self) -> Stuck: ...
    def operation(self) -> tuple[str, str]: ...
    def kill(self) -> None: ...
    def ended(self) -> bool: ...
    def how_it_ended(self) -> str: ...
    def close(self, timeout: float = 2.0) -> bool: ...


@dataclass(frozen=True)
class Incident:
    """Something about the driver as a whole that is told once: its kind, NVML code, and details."""

    kind: str
    code: int = 0
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass
class Pause:
    """Back-off between `first` and `last` seconds, doubling."""

    first: float
    last: float
    tries: int = 0

    def next(self) -> float:
        """Length of the next pause."""
        pause = min(self.last, self.first * 2.0 ** min(self.tries, 30))
        self.tries += 1
        return pause


class Keeper:
    """`exchange` asks the probe once; `state` is off, starting, running, late, hung, unavailable or released.

    `open_episode` is the kind and code of a trouble that was reported before this process began and not ended since:
    it is not reported again.
    """

    def __init__(
        self,
        start: Callable[[], Probe],
        monotonic: Callable[[], float],
        hang_after: float = HANG_AFTER,
        start_after: float = START_AFTER,
        open_episode: tuple[str, int] | None = None,
    ) -> None:
        self._start = start
        self._monotonic = monotonic
        self._hang_after = hang_after
        self._start_after = start_after
        self._probe: Probe | None = None
        self._asked: float | None = None
        self._answered = False
        self._killed = False
        self._next_start = 0.0
        self._pauses: dict[str, Pause] = {}
        self._episode = open_episode
        self._episode_began = monotonic()
        self._incidents: list[Incident] = []
        self._orphan: Probe | None = None
        self.state = "off"
        self.reason = ""
        self.starts = 0
        self.code = 0  # NVML's, of the latest trouble
        self.waited = 0.0  # seconds that the latest answer took

    def exchange(self, request: Message, patience: float) -> Message | None:
        """The answer to this request or to the one before it, or None: not yet, or no probe.

        Waits at most `patience` seconds, and not at all once an answer is late.
        """
        if self.state == "released" or not self._have_probe():
            return None
        probe = self._probe
        assert probe is not None
        try:
            late = self._asked is not None
            if not late:
                self._asked = self._monotonic()
                probe.send(request)
            reply = probe.receive(0.0 if late else patience)
        except ProbeDiedError as error:
            self._died(probe, str(error))
            return None
        if reply is None:
            self._silent(probe)
            return None
        return self._replied(probe, reply)

    def incidents(self) -> list[Incident]:
        """What happened since the last call."""
        happened, self._incidents = self._incidents, []
        return happened

    @property
    def pid(self) -> int | None:
        """The child, if there is one."""
        return self._probe.pid if self._probe else None

    @property
    def retry_in(self) -> float:
        """Seconds until the next try to start a probe; 0 when there is one."""
        return 0.0 if self._probe else max(0.0, self._next_start - self._monotonic())

    def release(self) -> bool:
        """End the child, so that no handle on any device is left; False when it is stuck in the driver."""
        gone = self._end()
        self.state, self.reason = "released", message.Message("released on request")
        return gone

    def resume(self) -> None:
        """Take up the driver again at the next exchange."""
        if self.state == "released":
            self.state, self.reason = "off", ""
            self._next_start = 0.0

    def restart(self) -> None:
        """Start over with a fresh process at the next exchange."""
        self._end()
        self.state, self._next_start = "off", 0.0

    def retry_now(self) -> None:
        """Do not sit out the rest of a pause."""
        self._next_start = 0.0

    def close(self) -> None:
        """End the child; one that is stuck in the driver is killed as far as that goes."""
        self._end()
        self.state = "off"

    # starting and ending -----------------------------------------------------------------------------

    def _have_probe(self) -> bool:
        if self._orphan is not None:
            if not self._orphan.ended():
                self.state = "hung"
                self.reason = message.Message("an earlier probe is still stuck in the driver")
                return False
            self._orphan = None
        if self._probe is not None:
            return True
        if self._monotonic() < self._next_start:
            return False
        try:
            self._probe = self._start()
        except OSError as error:
            self.state = "unavailable"
            self.reason = message.Message("the probe cannot be started: {error}", error=str(error))
            self._drop("crashed", _CRASH_PAUSE)
            return False
        self.starts += 1
        self._asked, self._answered, self._killed = None, False, False
        if self._episode is None:
            self.state, self.reason = "starting", message.Message("opening the driver")
        return True

    def _end(self) -> bool:
        probe, self._probe = self._probe, None
        if probe is None:
            return self._orphan is None or self._orphan.ended()
        if probe.close(0.0 if self._killed else 2.0):
            return True
        probe.kill()
        if probe.close(_TO_DIE):
            return True
        self._orphan = probe
        return False

    def _drop(self, kind: str, pause: tuple[float, float]) -> None:
        if self._probe is not None:
            self._end()
        self._next_start = self._monotonic() + self._pauses.setdefault(kind, Pause(*pause)).next()

    # what came of a question -------------------------------------------------------------------------

    def _replied(self, probe: Probe, reply: Message) -> Message | None:
        if self._asked is not None:
            self.waited = self._monotonic() - self._asked
        self._asked = None
        if "fatal" in reply:
            self._gone(reply)
            return None
        self._answered, self._killed = True, False
        self._pauses.clear()
        self.state, self.reason, self.code = "running", "", 0
        if self._episode is not None:
            kind, code = self._episode
            seconds = round(self._monotonic() - self._episode_began, 3)
            self._incidents.append(
                Incident("driver_recovered", 0, {"after": kind, "code": code, "seconds": seconds})
            )
            self._episode = None
        return reply

    def _gone(self, reply: Message) -> None:
        fatal = reply["fatal"]
        self.state, self.reason = "unavailable", f"{fatal['operation']}: {fatal['reason']}"
        self.code = fatal["code"]
        self._report("driver_unavailable", fatal["code"], {**fatal, "library": reply.get("library", "")})
        absent = fatal["code"] == _LIBRARY_NOT_FOUND
        self._drop("absent" if absent else "gone", _ABSENT_PAUSE if absent else _GONE_PAUSE)

    def _died(self, probe: Probe, why: str) -> None:
        operation, device = probe.operation()
        if self._killed:
            self.reason = message.Message("the probe that hung was ended; waiting before the next try")
            self._drop("hung", _HUNG_PAUSE)
            return
        probe.close()
        how = probe.how_it_ended()
        self.state = "unavailable"
        self.reason = message.Message(
            "the probe died ({how}) in {call}", how=how, call=operation or message.Message("no call")
        )
        self._report("driver_crashed", 0, {"how": how, "why": why, "operation": operation, "device": device})
        self._drop("crashed", _CRASH_PAUSE)

    def _silent(self, probe: Probe) -> None:
        assert self._asked is not None
        waited = self._monotonic() - self._asked
        if self._killed:
            return
        if waited <= (self._hang_after if self._answered else self._start_after):
            operation, device = probe.operation()
            self.reason = _slow(waited, operation, device)
            if self._answered:
                self.state = "late"
            return
        stuck = probe.stuck()
        self.state = "hung"
        self.reason = message.Message(
            "{call} has not returned for {seconds} s",
            call=stuck.operation or message.Message("a call"),
            seconds=f"{waited:.0f}",
        )
        self._report("driver_hung", 0, {**asdict(stuck), "seconds": round(waited, 3)})
        probe.kill()
        self._killed = True

    def _report(self, kind: str, code: int, detail: dict[str, Any]) -> None:
        """Tell of a trouble unless it is the one that was told of last."""
        if self._episode == (kind, code):
            return
        if self._episode is None:
            self._episode_began = self._monotonic()
        self._episode = (kind, code)
        self._incidents.append(Incident(kind, code, detail))


def _slow(waited: float, operation: str, device: str) -> message.Message:
    seconds = f"{waited:.1f}"
    if not operation:
        return message.Message("the driver does not answer for {seconds} s", seconds=seconds)
    where = f"{operation} ({device})" if device else operation
    return message.Message(
        "the driver does not answer for {seconds} s: it is in {call}", seconds=seconds, call=where
    )
