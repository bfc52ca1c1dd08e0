"""`torch.optim`: an optimizer whose step is told to the hooks."""

from __future__ import annotations

from typing import Any

from .optimizer import Optimizer


class SGD(Optimizer):
    def __init__(self, parameters: list[Any], lr: float) -> None:
        self._parameters = parameters
