"""`torch.utils.data.dataloader`: batches made by real worker processes."""

from __future__ import annotations

import atexit
import multiprocessing
from typing import Any


class Dataset:
    pass


class DataLoader:
    pin_memory = False
    prefetch_factor = 2
    persistent_workers = False

    def __init__(self, dataset: Any, batch_size: int, num_workers: int) -> None:
        self.dataset, self.batch_size, self.num_workers = dataset, batch_size, num_workers

    def __iter__(self) -> _BaseDataLoaderIter:
        return _BaseDataLoaderIter(self)


class _BaseDataLoaderIter:
    """Two batches are on their way for each worker."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader, self._next = loader, 0
        self._pool = multiprocessing.get_context("fork").Pool(loader.num_workers)
        atexit.register(self._pool.terminate)
        self._waiting = [self._ask() for _ in range(2 * loader.num_workers)]

    def __iter__(self) -> _BaseDataLoaderIter:
        return self

    def __next__(self) -> list[Any]:
        batch: list[Any] = self._waiting.pop(0).get()
        self._waiting.append(self._ask())
        return batch

    def _ask(self) -> Any:
        first, size = self._next, self._loader.batch_size
        self._next += size
        return self._pool.map_async(self._loader.dataset.__getitem__, range(first, first + size), size)
