"""Xid and kindred events, as the driver delivers them while the probe listens; none from before."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import pynvml

from gpudiag.agent.probe.driver import Driver
from gpudiag.agent.probe.failures import DriverError, DriverGoneError

_KINDS = {
    pynvml.nvmlEventTypeXidCriticalError: "xid",
    pynvml.nvmlEventTypeGpuUnavailableError: "gpu_unavailable",
    pynvml.nvmlEventTypeGpuRecoveryAction: "recovery_action",
}
_ONE_CYCLE = 64  # a flood is read over several cycles
_NO_INSTANCE = 0xFFFFFFFF


class Listener:
    """One event set over all GPUs; `reason` says why there is none."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._set: Any = None
        self._uuids: dict[int, str] = {}
        self.reason = ""

    def listen(self, gpus: dict[str, Any]) -> None:
        """Register for each of these handles, by UUID."""
        try:
            self._set = self._driver.call("nvmlEventSetCreate", pynvml.nvmlEventSetCreate)
        except DriverGoneError:
            raise
        except DriverError as error:
            self.reason = str(error)
            return
        for uuid, handle in gpus.items():
            self._register(uuid, handle)

    def read(self) -> list[dict[str, Any]]:
        """Events since the last call; never waits."""
        events: list[dict[str, Any]] = []
        while self._set is not None and len(events) < _ONE_CYCLE:
            event = self._next()
            if event is None:
                break
            events.append(event)
        return events

    def free(self) -> None:
        """Give the event set back."""
        if self._set is not None:
            with contextlib.suppress(DriverError):
                self._driver.call("nvmlEventSetFree", pynvml.nvmlEventSetFree, self._set)
            self._set = None

    def _register(self, uuid: str, handle: Any) -> None:
        call = self._driver.call
        try:
            types = call("nvmlDeviceGetSupportedEventTypes", pynvml.nvmlDeviceGetSupportedEventTypes, handle)
            wanted = sum(kind for kind in _KINDS if kind & types)
            if wanted:
                call("nvmlDeviceRegisterEvents", pynvml.nvmlDeviceRegisterEvents, handle, wanted, self._set)
                self._uuids[_address(handle)] = uuid
        except DriverGoneError:
            raise
        except DriverError as error:
            self.reason = f"{uuid}: {error}"

    def _next(self) -> dict[str, Any] | None:
        try:
            data = self._driver.call("nvmlEventSetWait_v2", pynvml.nvmlEventSetWait, self._set, 0)
        except DriverGoneError:
            raise
        except DriverError as error:
            if error.code != pynvml.NVML_ERROR_TIMEOUT:
                self.reason = str(error)
            return None
        kind = _KINDS.get(data.eventType, "nvml_event")
        event = {"kind": kind, "code": data.eventData, "uuid": self._uuids.get(_address(data.device), "")}
        if data.gpuInstanceId != _NO_INSTANCE:
            event["gpu_instance"] = data.gpuInstanceId
        return event


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
