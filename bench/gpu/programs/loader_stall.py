"""Two workers that decode on the CPU for longer than the GPU needs: it waits for each batch."""

from __future__ import annotations

import time

import course
import torch

DECODE_SECONDS = 0.4


class Slow(torch.utils.data.Dataset):
    """Items that take CPU time."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        end = time.perf_counter() + DECODE_SECONDS
        while time.perf_counter() < end:
            pass
        return index


def main() -> None:
    trainer, matrix = course.Trainer(), course.work()
    batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2))
    for _ in course.steps():
        next(batches)
        trainer.step(matrix, products=300)


if __name__ == "__main__":
    main()
