"""What the fake driver shows of this process: that it is there, its memory, and how much of the last moment it computed."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from pathlib import Path
from typing import Any

PRODUCT_SECONDS = 0.001
_MOMENT_SECONDS = 0.25
_CONTEXT_BYTES = 500 << 20
_GRAPHICS, _SM_ACTIVE = 1, 2  # NVML_GPM_METRIC_GRAPHICS_UTIL, NVML_GPM_METRIC_SM_UTIL

_busy = [0.0]


def compute() -> None:
    """A product of two matrices."""
    began = time.monotonic()
    time.sleep(PRODUCT_SECONDS)
    _busy[0] += time.monotonic() - began


def is_connected() -> bool:
    return _gpu.cache_info().currsize > 0


def total_bytes() -> int:
    return int(_gpu().memory_total)


def uuid() -> str:
    return bytes(_gpu().uuid).decode()


def hold(reserved_bytes: int) -> None:
    """The process's memory from now on."""
    gpu = _gpu()
    gpu.memory_used = gpu.processes[0].used_bytes = _CONTEXT_BYTES + reserved_bytes


@functools.cache
def _gpu() -> Any:
    from fake_nvml.control import FakeNvml

    gpu, pid = FakeNvml.attached(Path(os.environ["FAKE_NVML_STATE"])).gpus[0], os.getpid()
    gpu.processes[0].pid, gpu.process_count = pid, 1
    threading.Thread(target=_show, args=(gpu,), daemon=True).start()
    atexit.register(_leave, gpu, pid)
    return gpu


def _show(gpu: Any) -> None:
    before, then = _busy[0], time.monotonic()
    while True:
        time.sleep(_MOMENT_SECONDS)
        busy, now = _busy[0], time.monotonic()
        share = min(1.0, (busy - before) / (now - then))
        gpu.gpm[_GRAPHICS] = gpu.gpm[_SM_ACTIVE] = 95.0 * share
        gpu.gpu_util = round(100 * share)
        before, then = busy, now


def _leave(gpu: Any, pid: int) -> None:
    if os.getpid() == pid:  # not a worker
        gpu.process_count = gpu.memory_used = gpu.gpu_util = 0
        gpu.gpm[_GRAPHICS] = gpu.gpm[_SM_ACTIVE] = 0.0
