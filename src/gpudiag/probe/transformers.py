"""Hugging Face Trainer: `Trainer(callbacks=[GpudiagCallback()])` marks evaluation and checkpoints."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

from . import mark, start


class GpudiagCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Steps and data waits come from torch itself; this adds what only the trainer knows."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        start()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The trainer evaluates first, then saves; its own callback has decided on both by now."""
        if control.should_evaluate:
            mark("eval_start")
        elif control.should_save:
            mark("checkpoint_start")

    on_epoch_end = on_step_end

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        mark("eval_start")

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        mark("eval_end")
        if control.should_save:
            mark("checkpoint_start")

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        mark("checkpoint_end")
