"""`torch.cuda` of the fake driver's first GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from . import driver, memory
from .memory import memory_stats as memory_stats
from .memory import reset_peak_memory_stats as reset_peak_memory_stats

OutOfMemoryError = memory.OutOfMemoryError


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return driver.is_connected()


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def synchronize() -> None:
    """Products are over when they return."""


def get_device_properties(index: int) -> Any:
    return SimpleNamespace(total_memory=driver.total_bytes(), uuid=driver.uuid().removeprefix("GPU-"))
