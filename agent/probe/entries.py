"""What one device can be asked: each entry point is tried once, and one that cannot be is asked again only after a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpudiag.agent.probe.driver import Driver
from gpudiag.agent.probe.failures import CannotError, DriverError, DriverGoneError, GpuLostError

T = TypeVar("T")
RETRY_CANNOT = 600.0  # seconds; MIG or ECC may have been switched in the meantime
RETRY_FAILED = 60.0
FAILURES_IN_A_ROW = 3


class Entries:
    """The entry points of one handle; `absent` maps those that give nothing to the reason."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self.driver = driver
        self.handle = handle
        self.absent: dict[str, str] = {}
        self._again: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._refused: dict[str, bool] = {}

    def read(self, name: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """The result of one call on this device, or None; raises `DriverGoneError` and `GpuLostError`."""
        if not self.may(name):
            return None
        try:
            result = self.driver.call(name, function, self.handle, *arguments)
        except (DriverGoneError, GpuLostError):
            raise
        except DriverError as error:
            self.failed(name, error)
            return None
        self.worked(name)
        return result

    def may(self, name: str) -> bool:
        """Whether it is worth asking now."""
        again = self._again.get(name)
        return again is None or self.driver.monotonic() >= again

    def refused(self, name: str) -> bool:
        """Whether the latest call was refused for its arguments, not for want of the function or of permission."""
        return self._refused.get(name, False)

    def worked(self, name: str) -> None:
        """Forget earlier failures."""
        if name in self.absent:
            del self.absent[name]
            self._again.pop(name, None)
        if self._failures:
            self._failures.pop(name, None)

    def failed(self, name: str, error: DriverError) -> None:
        """Remember why, and when to ask again: a mishap next time, a repeated one after a minute."""
        self._refused[name] = error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT
        self.cannot(name, error.reason, self._pause(name, error))

    def cannot(self, name: str, reason: str, pause: float = RETRY_CANNOT) -> None:
        """Do not ask for `pause` seconds, for this reason."""
        self.absent[name] = reason
        self._again[name] = self.driver.monotonic() + pause

    def _pause(self, name: str, error: DriverError) -> float:
        if isinstance(error, CannotError):
            return RETRY_CANNOT
        self._failures[name] = self._failures.get(name, 0) + 1
        return 0.0 if self._failures[name] < FAILURES_IN_A_ROW else RETRY_FAILED
