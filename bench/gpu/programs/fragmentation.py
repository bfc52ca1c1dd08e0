"""A long-lived piece in each large segment: most of the reserved memory is free, and no large tensor fits into it."""

from __future__ import annotations

import course
import torch


def allocate(share: float) -> torch.Tensor:
    """A tensor of this share of the GPU's memory."""
    return torch.empty(int(course.total_bytes() * share), dtype=course.BYTES, device=course.DEVICE)


trainer, matrix = course.Trainer(), course.work()
kept = []
for number in course.steps():
    try:
        large = allocate(0.15)  # a new segment, since the free part of the others is smaller
        del large
        kept.append(allocate(0.01))  # and a piece of it that stays
    except torch.cuda.OutOfMemoryError:
        pass  # what a program does that skips a batch which does not fit
    for _ in range(10 if number < 10 else 1):
        trainer.step(matrix, products=50)
