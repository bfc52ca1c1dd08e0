"""Calls into NVML through the nvidia-ml-py binding: announced, counted, timed, and their failures sorted.

What a failure means (nvml.h): the driver is gone for every GPU, one GPU is lost, this GPU cannot do it, or it
went wrong just now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpudiag.agent.probe.failures import CannotError, DriverError, DriverGoneError, GpuLostError
from gpudiag.agent.probe.progress import Progress

T = TypeVar("T")

GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
CANNOT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    }
)
_NAMES = {
    getattr(pynvml, name): name[len("NVML_ERROR_") :].lower().replace("_", " ")
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}
_REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported by this GPU in its present mode",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission: the driver restricts it to root (CAP_SYS_ADMIN)",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this driver's library does not have the function",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "this driver knows another version of the structure",
}


def describe(code: int) -> str:
    """An NVML return code in words."""
    return _REASONS.get(code) or f"{_NAMES.get(code, 'error')} ({code})"


def failure(code: int, operation: str) -> DriverError:
    """The right kind of error for a return code."""
    kinds = ((GONE, DriverGoneError), (LOST, GpuLostError), (CANNOT, CannotError))
    kind = next((kind for codes, kind in kinds if code in codes), DriverError)
    return kind(code, operation, describe(code))


class Driver:
    """The initialised library; `calls`, `succeeded` and `slowest` are about the cycle since `begin`."""

    def __init__(self, progress: Progress, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.progress = progress
        self.monotonic = monotonic
        self.calls = 0
        self.succeeded = 0
        self.slowest = ("", 0.0)

    def begin(self) -> None:
        """A cycle begins."""
        self.calls = self.succeeded = 0
        self.slowest = ("", 0.0)

    def call(self, name: str, function: Callable[..., T], *arguments: Any) -> T:
        """Make one call; raises the kind of `DriverError` that its return code means."""
        self.progress.call(name)
        self.calls += 1
        started = self.monotonic()
        try:
            result = function(*arguments)
        except pynvml.NVMLError as error:
            raise failure(error.value, name) from None
        finally:
            taken = self.monotonic() - started
            if taken > self.slowest[1]:
                self.slowest = (name, taken)
            self.progress.call("")
        self.succeeded += 1
        return result


def library_path() -> str:
    """The mapped libnvidia-ml, version in its name, or an empty text."""
    try:
        with open("/proc/self/maps") as maps:
            return next((line.split()[-1] for line in maps if "libnvidia-ml" in line), "")
    except OSError:
        return ""
