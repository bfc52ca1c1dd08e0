"""A driver in compressed time: GPUs that are sliced, lost and found, and a probe that falls silent or dies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.probe.client import ProbeDiedError, Stuck
from gpudiag.agent.probe.framing import Message

GPUS = 4


@dataclass
class World:
    """What the scripted driver is like now."""

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    slices: dict[int, list[str]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    made: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    calm: bool = False

    def step(self) -> str:
        """Change something now and then, unless calm; what the probe does this cycle."""
        if self.calm:
            self.slices.clear()
            self.lost.clear()
            return "answer"
        roll = self.chance.random()
        if roll < 0.05:
            gpu = self.chance.randrange(GPUS)
            self.made += 1
            self.slices[gpu] = [f"MIG-{self.made}-{part}" for part in range(self.chance.randrange(4))]
        elif roll < 0.07:
            self.lost ^= {self.chance.randrange(GPUS)}
        return self.chance.choices(["answer", "silence", "die", "gone"], [0.97, 0.01, 0.01, 0.01])[0]

    def answer(self, at: float) -> Message:
        devices: list[Message] = []
        readings: list[Message] = []
        for gpu in range(GPUS):
            uuid = f"GPU-{gpu}"
            devices.append({"uuid": uuid, "index": gpu, "minor": gpu, "model": "H200"})
            names = [uuid] + [one for one in self.slices.get(gpu, []) if gpu not in self.lost]
            devices += [
                {"uuid": one, "parent_uuid": uuid, "gpu_instance": n} for n, one in enumerate(names[1:])
            ]
            readings += [self._reading(one, at) for one in names if gpu not in self.lost]
        lost = {f"GPU-{gpu}": {"code": 15, "operation": "x", "reason": "lost"} for gpu in self.lost}
        listed = {"driver": "580", "library": "", "devices": devices, "silent": [], "events": ""}
        events = [{"kind": "xid", "code": 31, "uuid": "GPU-0"}] if self.chance.random() < 0.02 else []
        return {"gpus": readings, "lost": lost, "events": events, "inventory": listed, "calls": 1, "seconds": 0.0,
                "slowest": ["x", 0.0]}  # fmt: skip

    def _reading(self, uuid: str, at: float) -> Message:
        counters = {"pcie_rx_bytes_per_second": [at * 1e9, 2.0**64]}
        chance = self.chance.random()
        values = {
            "power_watts": 700 * chance,
            "memory_used_bytes": 1.5e11 * chance,
            "memory_total_bytes": 1.5e11,
        }
        pid = self.pids.get(int(uuid[4:])) if uuid.startswith("GPU-") else None
        return {"uuid": uuid, "at": at, "gpm": {"sm_active_ratio": chance}, "nvml": values, "counters": counters,
                "slow": {"power_limit_watts": 700.0}, "processes": [[pid, 5]] if pid else []}  # fmt: skip


class ScriptedProbe:
    pid = 1

    def __init__(self, world: World, clock: ManualClock) -> None:
        self._world = world
        self._clock = clock
        self._mood = "answer"
        self._dead = False

    def send(self, message: Message) -> None:
        self._mood = self._world.step()

    def receive(self, timeout: float) -> Message | None:
        if self._dead or self._mood == "die":
            raise ProbeDiedError("it closed the connection")
        if self._mood == "silence":
            return None
        if self._mood == "gone":
            return {"fatal": {"code": 9, "operation": "nvmlInit", "reason": "driver not loaded"}}
        return self._world.answer(self._clock.monotonic())

    def stuck(self) -> Stuck:
        return Stuck("nvmlDeviceGetName", "GPU-1", "S", "", "", 1)

    def operation(self) -> tuple[str, str]:
        return "nvmlDeviceGetName", "GPU-1"

    def kill(self) -> None:
        self._dead = True

    def ended(self) -> bool:
        return self._dead

    def how_it_ended(self) -> str:
        return "signal SIGKILL"

    def close(self, timeout: float = 2.0) -> bool:
        self._dead = True
        return True
