"""What the driver says about processes on GPUs, for attribution and the process collectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on a device; `used_bytes` is None where the driver does not say."""

    uuid: str
    pid: int
    used_bytes: int | None = None
