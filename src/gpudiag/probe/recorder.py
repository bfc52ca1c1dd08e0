"""What is counted between two messages to the agent; every call of the training loop costs about a microsecond."""

from __future__ import annotations

import threading
import time
from typing import Any

_MARKS_KEPT = 64
_EVALS_BELIEVED = 3


class _Waiting:
    """Counts the time inside as waiting for input; only the outermost of nested loaders counts."""

    __slots__ = ("began", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        local = self.recorder.local
        local.depth = getattr(local, "depth", 0) + 1
        self.began = time.perf_counter()
        if local.depth == 1:
            self.recorder.wait_began(self.began)

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter()
        local = self.recorder.local
        local.depth -= 1
        if local.depth == 0:
            self.recorder.wait_ended(self.began, now)


class Recorder:
    """Sums since the last `take()`: steps, their seconds, seconds spent waiting for input, marks.

    A step that contains an evaluation or a checkpoint counts as a step, but its length and its waiting do
    not: they would be taken for slow training. `now_waited_seconds` tells of the time since the last `take()`, also of a
    wait that is not over, `steady` whether all of it was training: so a step of a minute is not silent for a minute.
    """

    def __init__(self) -> None:
        self.local = threading.local()
        self.loader: dict[str, Any] = {}
        self.samples = 0
        self._last_step: float | None = None
        self._wait_in_step = 0.0
        # total, and when the wait that goes on began; replaced as a whole, since the sender's thread only reads it: no lock
        self._waits: tuple[float, float | None] = (0.0, None)
        self._waits_told = 0.0
        self._interrupted = False
        self._in_eval = False
        self._in_checkpoint = False
        self._evals_in_a_row = 0
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._timed_steps = 0
        self._step_seconds = 0.0
        self._step_seconds_max = 0.0
        self._wait_seconds = 0.0
        self._marks: list[tuple[str, float]] = []
        self.samples = 0

    def waiting(self) -> _Waiting:
        """A context whose duration is time spent waiting for input."""
        return _Waiting(self)

    def wait_began(self, now: float) -> None:
        self._waits = (self._waits[0], now)

    def wait_ended(self, began: float, now: float) -> None:
        self._waits = (self._waits[0] + now - began, None)
        self._wait_in_step += now - began

    def _waited_since_told(self) -> float:
        total, began = self._waits
        until_now = total if began is None else total + time.perf_counter() - began
        told, self._waits_told = self._waits_told, until_now
        return max(0.0, until_now - told)

    def step(self) -> None:
        """A training step ended now: an evaluation or a checkpoint that nobody ended was over before it."""
        now = time.perf_counter()
        if self._in_checkpoint:
            self.mark("checkpoint_end")
        if self._in_eval:
            self._evals_in_a_row += 1
        elif self._evals_in_a_row < _EVALS_BELIEVED:
            self._evals_in_a_row = 0
        if self._in_eval:
            self.mark("eval_end")
        elif self._last_step is not None and not self._interrupted:
            seconds = now - self._last_step
            self._timed_steps += 1
            self._step_seconds += seconds
            self._wait_seconds += min(self._wait_in_step, seconds)
            self._step_seconds_max = max(self._step_seconds_max, seconds)
        self._steps += 1
        self._last_step = now
        self._wait_in_step = 0.0
        self._interrupted = False

    def mark(self, name: str) -> None:
        """A phase begins or ends now; repeated starts are one, and so is what a trainer and torch.save both tell."""
        if name == "eval_start":
            # A frozen part put into eval mode in every step is training, not an evaluation.
            if self._in_eval or self._evals_in_a_row >= _EVALS_BELIEVED:
                return
            self._in_eval = True
        elif name == "checkpoint_start":
            if self._in_checkpoint:
                return
            self._in_checkpoint = True
        elif name == "checkpoint_end":
            if not self._in_checkpoint:
                return
            self._in_checkpoint = False
        elif name in ("eval_end", "train_start"):
            self._in_eval = False
        self._interrupted = True
        self._marks.append((name, time.time()))
        del self._marks[:-_MARKS_KEPT]

    def keep(self, marks: list[tuple[str, float]]) -> None:
        """Marks that could not be told: they go before those of the next `take()`, the latest ones if there are many."""
        self._marks[:0] = marks
        del self._marks[:-_MARKS_KEPT]

    def take(self) -> dict[str, Any]:
        """The sums since the last call, which begin again from zero. Times in seconds."""
        taken = {
            "steps": self._steps,
            "stepped": self._last_step is not None,
            "timed_steps": self._timed_steps,
            "step_seconds": self._step_seconds,
            "step_seconds_max": self._step_seconds_max,
            "wait_seconds": self._wait_seconds,
            "now_waited_seconds": self._waited_since_told(),
            "steady": not (self._in_eval or self._in_checkpoint or self._marks),
            "samples": self.samples,
            "loader": self.loader,
            "marks": self._marks,
        }
        self._clear()
        return taken
