"""Each fault of the driver seen from all sides: /metrics, what is stored, the event, and what `gpudiag doctor` says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from command_line import Gpudiag
from fake_nvml.control import FakeNvml
from fake_nvml.harness import NOON_MS, Bench
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpudiag.agent.metrics import SnapshotCollector, registry
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.sampler import Sampler
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Source

pytestmark = pytest.mark.integration
POWER, INIT, GPM = "nvmlDeviceGetPowerUsage", "nvmlInitWithFlags", "nvmlGpmQueryDeviceSupport"
HEALTHY_TICKS, FAULTY_TICKS = 3, 45
ALL = tuple(range(8))


@dataclass(frozen=True)
class Fault:
    """`power`: GPUs whose power is still measured; `success` None: nothing to collect; `doctor`: what it says of it."""

    name: str
    cause: Callable[[FakeNvml], None]
    doctor: str
    events: tuple[tuple[str, int], ...] = ()
    power: tuple[int, ...] = ALL
    success: float = 1.0
    at_start: bool = False
    sm_active: bool = True
    rejected: str = ""


def everywhere(call: str, mode: str) -> Callable[[FakeNvml], None]:
    def cause(fake: FakeNvml) -> None:
        for gpu in ALL:
            fake.fail(gpu, call, mode)

    return cause


FAULTS = [
    Fault("none", lambda fake: None, ": sm_active_ratio, sm_occupancy_ratio"),
    Fault(
        "a call that one GPU does not support", lambda fake: fake.fail(0, POWER, "not_supported"),
        f"{POWER}: not supported by this GPU", power=ALL[1:],
    ),
    Fault(
        "no permission for GPM", everywhere(GPM, "no_permission"), f"{GPM}: no permission", at_start=True,
        sm_active=False,
    ),
    Fault(
        "an older driver", everywhere(POWER, "function_not_found"), f"{POWER}: this driver's library does not have",
        power=(),
    ),
    Fault("a mishap that lasts", lambda fake: fake.fail(0, POWER, "unknown"), "power_watts", power=ALL[1:]),
    Fault("garbage", lambda fake: fake.set(0, "power_mw", 0xFFFFFFFF), "8 devices", power=ALL[1:], rejected="power_watts"),
    Fault("a lost GPU", lambda fake: fake.set(3, "lost", 1), "lost", (("gpu_lost", 15),), power=(0, 1, 2, 4, 5, 6, 7)),
    Fault("a GPU that wants a reset", lambda fake: fake.fail(3, POWER, "reset_required"), "lost", (("gpu_lost", 16),),
          power=(0, 1, 2, 4, 5, 6, 7)),
    Fault("a hang in a call", lambda fake: fake.fail(5, POWER, "hang"), "answer", (("driver_hung", 0),), (), 0.0),
    Fault("a hang while opening", lambda fake: fake.fail(None, INIT, "hang"), "answer", (("driver_hung", 0),), (),
          0.0, at_start=True),
    Fault("no driver loaded", lambda fake: fake.fail(None, INIT, "driver_not_loaded"), "driver not loaded",
          (("driver_unavailable", 9),), (), 0.0, at_start=True),
    Fault("an upgraded library", lambda fake: fake.fail(None, INIT, "lib_rm_version_mismatch"), "rm version mismatch",
          (("driver_unavailable", 18),), (), 0.0, at_start=True),
    Fault("a driver unloaded while running", lambda fake: fake.fail(None, "*", "driver_not_loaded"), "driver not loaded",
          (("driver_unavailable", 9),), (), 0.0),
    Fault("device files taken away", everywhere("*", "unknown"), "unknown", (("driver_unavailable", 999),), (), 0.0),
    Fault("a GPU sliced anew", lambda fake: fake.slice(0, [("MIG-aaaa", 4), ("MIG-bbbb", 3)]), "10 devices",
          (("mig_changed", 0),)),
    Fault("a slow call", lambda fake: fake.fail(0, POWER, "slow", delay=0.12), f"slow: {POWER} took 12"),
    Fault("a crash", lambda fake: fake.fail(2, POWER, "crash"), "SIGABRT", (("driver_crashed", 0),), (), 0.0),
]  # fmt: skip


class Node:
    """A sampler with a database and the collector on the fake driver."""

    def __init__(self, bench: Bench, url: str) -> None:
        self.bench = bench
        self.store = open_store(url, node="n1", agent=True)
        self.recorder = Recorder(lambda: self.store, "n1", bench.clock, store=self.store)
        self.closed = False
        self.sampler = Sampler([bench.collector], self.recorder, bench.clock, "n1")

    def tick(self, times: int, pause: float = 0.0) -> None:
        for _ in range(times):
            self.sampler.tick()
            time.sleep(pause)
            self._let_children_end()
            self.bench.clock.sleep(1.0)

    def _let_children_end(self) -> None:
        """Real time passes for a child that is about to end."""
        keeper = self.bench.collector._keeper
        if keeper._killed and self.bench.probes:
            self.bench.probes[-1].wait()

    def close(self) -> None:
        """Write what is in memory, once."""
        if not self.closed:
            self.recorder.close(self.bench.clock.now_ms())
        self.closed = True

    def exposition(self) -> dict[str, dict[tuple[str, ...], float]]:
        sampler, clock = self.sampler, self.bench.clock
        source = SnapshotCollector(
            lambda: sampler.snapshot, lambda: self.recorder.state, clock.monotonic, lambda: 10.0
        )
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(generate_latest(registry(source)).decode()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found


@pytest.fixture
def node(nvml_bench: Callable[..., Bench], tmp_path: Path) -> Iterator[Node]:
    made = Node(nvml_bench(hang_after=30.0, start_after=30.0), f"sqlite:///{tmp_path}/fault.db")
    yield made
    made.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_from_all_sides(
    fault: Fault,
    fake_nvml: FakeNvml,
    node: Node,
    gpudiag: Gpudiag,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault.at_start:
        fault.cause(fake_nvml)
        node.tick(1, pause=0.5)
    else:
        node.tick(HEALTHY_TICKS, pause=0.3)
        fault.cause(fake_nvml)
    since_ms = node.bench.clock.now_ms()
    node.tick(FAULTY_TICKS - 1)
    time.sleep(0.12)  # GPM says nothing about a shorter time
    node.tick(1)

    shown = node.exposition()
    power = {fake_nvml.uuid(gpu) for gpu in fault.power}
    assert {labels[0] for labels in shown.get("gpudiag_gpu_power_watts", {})} == power
    assert bool(shown.get("gpudiag_gpu_sm_active_ratio")) == (fault.sm_active and fault.success == 1.0)
    assert shown["gpudiag_collector_success"][("nvml",)] == fault.success
    assert shown.get("gpudiag_samples_rejected_total", {}).get(("nvml", fault.rejected), 0) == (
        FAULTY_TICKS if fault.rejected else 0
    )

    node.close()
    store = open_store(f"sqlite:///{tmp_path}/fault.db", node="n1", agent=False)
    events = [(one.kind, one.code) for one in store.events(NOON_MS - 1, NOON_MS + 10**7)]
    assert events == list(fault.events)
    for gpu in ALL:
        block = store.read(Source("n1", fake_nvml.uuid(gpu)), since_ms, since_ms + 10**6, ["power_watts"])
        measured = int(np.count_nonzero(~np.isnan(block.columns.get("power_watts", np.array([])))))
        assert measured == (FAULTY_TICKS if gpu in fault.power else 0)
    store.close()

    assert fault.doctor in doctor(fake_nvml, gpudiag, tmp_path, monkeypatch)


def doctor(fake: FakeNvml, gpudiag: Gpudiag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What it says about the driver and the devices' metrics, no agent running."""
    settings = {
        "GPUDIAG_METRICS__LISTEN": "127.0.0.1:1", "GPUDIAG_AGENT__ROOT": str(tmp_path / "root"),
        "GPUDIAG_AGENT__RUNTIME_DIR": str(tmp_path / "run"), "GPUDIAG_SOURCES__NVML_LIBRARY": str(fake.library),
    }  # fmt: skip
    for name, value in {**fake.environ, **settings}.items():
        monkeypatch.setenv(name, value)
    outcome = gpudiag("doctor", "--json")
    assert outcome.code == 0, outcome.err
    assert "Traceback" not in outcome.err
    items = json.loads(outcome.out)["items"]
    return "\n".join(
        f"{item['name']}: {item['text']}" for item in items if item["area"] in ("driver", "gpu metrics")
    )
