"""How a call into a driver or a host engine fails."""

from __future__ import annotations

from gpudiag.agent.probe.framing import Message


class DriverError(Exception):
    """A call failed: its return code, the function, and the reason in words."""

    def __init__(self, code: int, operation: str, reason: str) -> None:
        super().__init__(f"{operation}: {reason}")
        self.code = code
        self.operation = operation
        self.reason = reason

    def told(self) -> Message:
        """As it travels to the agent."""
        return {"code": self.code, "operation": self.operation, "reason": self.reason}


class DriverGoneError(DriverError):
    """Nothing can be read any more; only a new process can start over."""


class GpuLostError(DriverError):
    """This GPU has fallen off the bus or wants a reset."""


class CannotError(DriverError):
    """This GPU, driver or user cannot do it; asking again soon is pointless."""
