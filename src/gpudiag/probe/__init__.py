"""Inside the training process: step time, data wait and allocator statistics, sent to the agent once a second.

Standard library only. It never imports torch, never raises into the program, never delays its exit, and is
silent when no agent listens. Either `gpudiag run --probe -- python train.py`, or in the program::

    import gpudiag.probe
    gpudiag.probe.start()
    for batch in gpudiag.probe.timed(loader): ...    # only for loaders that are not torch's own
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from .recorder import Recorder
from .sender import Sender
from .torch_import import when_torch_is_imported

T = TypeVar("T")

__all__ = ["mark", "start", "step", "timed"]


def _current() -> tuple[Recorder, Sender]:
    # One recorder per process, whether it came in by the start-up hook or by an import.
    found = getattr(sys, "_gpudiag_probe", None)
    if found is None:
        recorder = Recorder()
        found = recorder, Sender(recorder)
        sys._gpudiag_probe = found  # type: ignore[attr-defined]
    recorder, sender = found
    return recorder, sender


def start(socket_path: str | None = None) -> None:
    """Begin to measure; a second call changes nothing but the socket. `socket_path`: the agent's, by default
    GPUDIAG_PROBE_SOCKET or /run/gpudiag/probe.sock."""
    recorder, sender = _current()
    if socket_path:
        sender.path = socket_path
    if sender.start():
        when_torch_is_imported(recorder, sender)


def step(samples: int = 0) -> None:
    """A training step ended; only for programs whose optimizer is not torch's."""
    recorder, _ = _current()
    recorder.samples += samples
    recorder.step()


def mark(name: str) -> None:
    """Note a phase change: `checkpoint_start`, `checkpoint_end`, `eval_start`, `eval_end`, `train_start`."""
    recorder, _ = _current()
    recorder.mark(name)


def timed(loader: Iterable[T]) -> Iterator[T]:
    """Iterate over `loader`, counting the time until each item as waiting for input."""
    recorder, _ = _current()
    iterator = iter(loader)
    while True:
        with recorder.waiting():
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
