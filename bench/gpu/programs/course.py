"""What the programs share: how long they run, their GPU, and a step of training that PyTorch's optimizer counts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

# The allocator must behave as it does by default: its free pieces are what two of the programs are about.
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"

import gpudiag_probe  # comes with `gpudiag run --probe`
import torch

DEVICE = torch.device("cuda")
MATMUL = 8192
BYTES = torch.uint8


def total_bytes() -> int:
    """Memory of the GPU."""
    return int(torch.cuda.get_device_properties(0).total_memory)


def work() -> torch.Tensor:
    """A square matrix to multiply with itself."""
    return torch.randn(MATMUL, MATMUL, device=DEVICE, dtype=torch.bfloat16)


class Trainer:
    """One parameter and its optimizer: the smallest thing that PyTorch calls a training step."""

    def __init__(self) -> None:
        self._parameter = torch.nn.Parameter(torch.zeros(8, device=DEVICE))
        self._parameter.grad = torch.zeros_like(self._parameter)
        self._optimizer = torch.optim.SGD([self._parameter], lr=0.1)

    def step(self, matrix: torch.Tensor, products: int) -> None:
        """Keep the GPU busy with so many products, then step."""
        for _ in range(products):
            matrix @ matrix
        torch.cuda.synchronize()
        self._optimizer.step()


def steps() -> Iterator[int]:
    """Numbers of steps until the seconds of the command line are over; from the first one on, it is training."""
    end = time.monotonic() + float(sys.argv[1])
    number = 0
    gpudiag_probe.mark("train_start")
    while time.monotonic() < end:
        yield number
        number += 1
