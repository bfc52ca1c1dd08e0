"""What happens in the simulated job, and when: seconds from the start of its allocation."""

from __future__ import annotations

from dataclasses import dataclass, field

GPUS = 8
GIB = 1024.0**3


@dataclass(frozen=True)
class Stretch:
    """Seconds `start` to `end`, half open."""

    start: int
    end: int


@dataclass(frozen=True)
class Script:
    """The schedule of a four-hour data-parallel training on eight GPUs, and its faults."""

    length: int = 4 * 3600
    idle_before: int = 60  # the node is sampled before and after the job
    idle_after: int = 60
    processes_from: int = 35  # the container starts
    compile_from: int = 215  # weights are loaded
    train_from: int = 815
    crash_at: int = 14_100  # out of memory on GPU 0; the batch script ends 5 min later
    checkpoint_every: int = 1800
    checkpoint_seconds: int = 20
    evaluations: tuple[Stretch, ...] = (Stretch(4500, 4590), Stretch(9000, 9090), Stretch(12_600, 12_690))
    loader_stall: Stretch = Stretch(1500, 4200)  # heavy augmentation: 32 workers decode too slowly
    staircase: Stretch = Stretch(5000, 9000)  # longer and longer sequences split the allocator's blocks
    hot_gpu: int = 5
    hot: Stretch = Stretch(9400, 11_000)  # its air flow is blocked
    leaking_gpu: int = 0
    leak_from: int = 10_700  # rank 0 keeps the graph of every logged loss
    workers: int = 32
    cpus_allowed: int = 96
    cpus: int = 128
    seed: int = 42
    gpu_memory: float = 79.65 * GIB
    steps_up: tuple[tuple[int, float], ...] = field(
        default=(
            (5000, 7.0),
            (5400, 5.5),
            (5850, 4.5),
            (6300, 3.5),
            (6800, 2.8),
            (7300, 1.8),
            (7800, 1.2),
            (8300, 0.7),
        )
    )  # (second, GiB): each new longest sequence needs fresh segments, old ones stay split

    @property
    def seconds(self) -> int:
        """Length of the simulation, idle ends included."""
        return self.idle_before + self.length + self.idle_after

    @property
    def checkpoints(self) -> tuple[Stretch, ...]:
        """Stretches in which the job writes its state and does nothing else."""
        starts = range(self.train_from + self.checkpoint_every, self.crash_at, self.checkpoint_every)
        return tuple(Stretch(start, start + self.checkpoint_seconds) for start in starts)
