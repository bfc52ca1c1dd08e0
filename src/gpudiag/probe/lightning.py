"""PyTorch Lightning: `Trainer(callbacks=[GpudiagCallback()])` marks evaluation and checkpoints."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from pytorch_lightning.callbacks import Callback  # type: ignore[import-not-found,unused-ignore]

from . import mark, start


class GpudiagCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Steps and data waits come from torch itself; this adds what only the trainer knows."""

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        start()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        mark("eval_start")

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        mark("eval_end")

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        mark("checkpoint_start")
