"""A GPU that computes all the time: nothing may be found."""

from __future__ import annotations

import course

trainer, matrix = course.Trainer(), course.work()
for _ in course.steps():
    trainer.step(matrix, products=100)
