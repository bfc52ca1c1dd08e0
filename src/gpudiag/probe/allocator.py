"""The caching allocator's statistics per GPU, with peaks since the last reading, unseen by the program.

Keys: torch.cuda.memory_stats (torch/cuda/memory.py). Reading the peaks resets them; the program's own
`max_memory_allocated()` and the like still answer as if nobody had, because what was reset is remembered.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

_KEPT = {
    "allocated_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.peak",
    "requested_bytes": "requested_bytes.all.peak",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


class Allocator:
    """Reads statistics only of devices on which the program has initialised CUDA itself."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._memory = torch.cuda.memory
        self._stats = self._memory.memory_stats
        self._reset = self._memory.reset_peak_memory_stats
        self._peaks: dict[int, dict[str, int]] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Let the program's own calls see the peaks that our readings reset."""

        @functools.wraps(self._stats)
        def memory_stats(device: Any = None) -> Any:
            with self._lock:
                stats = self._stats(device)
                for key, peak in self._peaks.get(self._index(device), {}).items():
                    if peak > stats.get(key, 0):
                        stats[key] = peak
                return stats

        @functools.wraps(self._reset)
        def reset_peak_memory_stats(device: Any = None) -> Any:
            with self._lock:
                self._peaks.pop(self._index(device), None)
                return self._reset(device)

        for place in (self._memory, self._torch.cuda):
            place.memory_stats = memory_stats
            place.reset_peak_memory_stats = reset_peak_memory_stats

    def _index(self, device: Any) -> int:
        if isinstance(device, int):
            return device
        index = None if device is None else self._torch.device(device).index
        current: int = self._torch.cuda.current_device() if index is None else index
        return current

    def read(self) -> list[dict[str, Any]]:
        """One entry per GPU in use: bytes (peaks since the last call), counts, and which allocator it is."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return []
        readings = (self._read_device(index) for index in range(cuda.device_count()))
        return [{**reading, "allocator": self._kind()} for reading in readings if reading]

    def _kind(self) -> int:
        """0 native, 1 native with expandable segments, 2 cudaMallocAsync: the counters mean different things."""
        backend = getattr(self._torch.cuda, "get_allocator_backend", lambda: "native")()
        if backend != "native":
            return 2
        settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        return int("expandable_segments:true" in settings.replace(" ", "").lower())

    def _read_device(self, index: int) -> dict[str, Any]:
        with self._lock:
            stats = self._stats(index)
            if not stats.get("reserved_bytes.all.peak"):
                return {}
            self._reset(index)
            remembered = self._peaks.setdefault(index, {})
            for key, value in stats.items():
                if key.endswith(".peak"):
                    remembered[key] = max(value, remembered.get(key, 0))
        reading = {name: stats[key] for name, key in _KEPT.items() if key in stats}
        uuid = getattr(self._torch.cuda.get_device_properties(index), "uuid", None)
        return {"index": index, "uuid": f"GPU-{uuid}" if uuid else "", **reading}
