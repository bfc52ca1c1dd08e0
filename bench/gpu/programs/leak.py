"""Keeps a hundred-and-fiftieth of the memory every second, as a loss does that is summed up with its graph, until none is left."""

from __future__ import annotations

import time

import course
import torch

trainer, matrix = course.Trainer(), course.work()
kept = [torch.empty(course.total_bytes() * 6 // 10, dtype=course.BYTES, device=course.DEVICE)]
grows_at = time.monotonic()
for _ in course.steps():
    trainer.step(matrix, products=50)
    if time.monotonic() >= grows_at:
        grows_at += 1
        kept.append(torch.empty(course.total_bytes() // 240, dtype=course.BYTES, device=course.DEVICE))
