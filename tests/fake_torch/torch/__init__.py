"""As much of PyTorch as the programs of bench/gpu need, on the fake driver's first GPU instead of a real one.

Products take time and count as SM activity; memory comes from a caching allocator (`cuda/memory.py`). What the driver
would show follows both.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from . import cuda as cuda
from . import nn as nn
from . import optim as optim
from . import serialization as serialization
from . import utils as utils
from .cuda import driver, memory

uint8, bfloat16, float32 = 1, 2, 4
save = serialization.save


def device(name: str) -> SimpleNamespace:
    return SimpleNamespace(type=name, index=None)


class Tensor:
    """Memory on the GPU for as long as the object lives."""

    grad: Any = None

    def __init__(self, shape: tuple[int, ...], itemsize: int) -> None:
        size = itemsize
        for length in shape:
            size *= length
        self.shape, self.itemsize = shape, itemsize
        self._block = memory.ALLOCATOR.allocate(size)

    def __del__(self) -> None:
        if hasattr(self, "_block"):
            memory.ALLOCATOR.free(self._block)

    def __matmul__(self, other: Tensor) -> Tensor:
        driver.compute()
        return Tensor(self.shape, self.itemsize)


def empty(*shape: int, device: Any, dtype: int = float32) -> Tensor:
    return Tensor(shape, dtype)


randn = zeros = empty


def zeros_like(tensor: Tensor) -> Tensor:
    return Tensor(tensor.shape, tensor.itemsize)
