"""Listens to torch: optimizer steps, DataLoader waits, checkpoints, evaluation, allocator statistics.

Only public classes are wrapped, and each wrapper calls the original first thing and last thing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from .allocator import Allocator
from .recorder import Recorder
from .sender import Sender

_ATTACHED = "_gpudiag_attached"
_STEPS_WITHOUT_CHOSEN = 100


def attach(torch: Any, recorder: Recorder, sender: Sender) -> None:
    """Install every hook that this version of torch allows; whatever is missing is left out, silently."""
    if getattr(torch, _ATTACHED, False):
        return
    for install in (_optimizer, _loader, _checkpoint, _evaluation, _allocator):
        with contextlib.suppress(Exception):  # nothing here may reach the user's program
            install(torch, recorder, sender)
    setattr(torch, _ATTACHED, True)


def _optimizer(torch: Any, recorder: Recorder, sender: Sender) -> None:
    counted = _CountedOptimizer()
    process = [os.getpid()]

    def stepped(optimizer: Any, arguments: Any, keywords: Any) -> None:
        if not counted.is_it(optimizer):
            return
        if process[0] != os.getpid():
            process[0] = os.getpid()
            sender.resume_after_fork()
        recorder.step()

    # torch.optim hides this submodule from attribute access, yet has imported it.
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(stepped)


class _CountedOptimizer:
    """Programs with several optimizers step each once per iteration: one of them stands for the iteration.

    It is the first one seen, until it is gone or the others step on without it.
    """

    def __init__(self) -> None:
        self._chosen: Any = None
        self._others = 0

    def is_it(self, optimizer: Any) -> bool:
        chosen = self._chosen and self._chosen()
        if chosen is optimizer:
            self._others = 0
            return True
        self._others += 1
        if chosen is None or self._others > _STEPS_WITHOUT_CHOSEN:
            self._chosen, self._others = weakref.ref(optimizer), 0
            return True
        return False


def _loader(torch: Any, recorder: Recorder, sender: Sender) -> None:
    loader = torch.utils.data.DataLoader
    iterator = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
    begin, advance = loader.__iter__, iterator.__next__

    @functools.wraps(begin)
    def __iter__(self: Any) -> Any:  # noqa: N807 - takes the original's place
        recorder.loader = {
            "workers": self.num_workers,
            "batch_size": self.batch_size,
            "pin_memory": bool(self.pin_memory),
            "prefetch_factor": self.prefetch_factor,
            "persistent_workers": bool(self.persistent_workers),
        }
        # Starting workers and filling the first batch is time the program waits for input, too.
        with recorder.waiting():
            return begin(self)

    @functools.wraps(advance)
    def __next__(self: Any) -> Any:  # noqa: N807 - takes the original's place
        with recorder.waiting():
            batch = advance(self)
        recorder.samples += recorder.loader.get("batch_size") or 0
        return batch

    loader.__iter__ = __iter__
    iterator.__next__ = __next__


def _checkpoint(torch: Any, recorder: Recorder, sender: Sender) -> None:
    saved = _marked(torch.save, recorder, "checkpoint")
    torch.save = torch.serialization.save = saved


def _marked(original: Callable[..., Any], recorder: Recorder, name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def marked(*arguments: Any, **keywords: Any) -> Any:
        recorder.mark(f"{name}_start")
        try:
            return original(*arguments, **keywords)
        finally:
            recorder.mark(f"{name}_end")

    return marked


def _evaluation(torch: Any, recorder: Recorder, sender: Sender) -> None:
    module = torch.nn.Module
    original = module.eval

    @functools.wraps(original)
    def evaluate(self: Any) -> Any:
        recorder.mark("eval_start")
        return original(self)

    module.eval = evaluate


def _allocator(torch: Any, recorder: Recorder, sender: Sender) -> None:
    allocator = Allocator(torch)
    allocator.install()
    sender.devices = allocator.read
