"""DCGM through its bindings: a tree like NVIDIA's, written for the test, in a child process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.dcgm import DcgmCollector
from gpudiag.agent.probe.client import ProbeClient
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Frame

pytestmark = pytest.mark.integration
BINDINGS = str(Path(__file__).parents[1] / "fake_dcgm/bindings")
FIELDS = {"1002": 0.61, "1004": 0.2, "155": 432.1, "203": 97, "230": 31, "252": 1024, "1010": 5e9}


class Rig:
    def __init__(self, folder: Path, address: str = "127.0.0.1:5555", bindings: str = BINDINGS) -> None:
        self.file = folder / "dcgm.json"
        self.state: dict[str, Any] = {"gpus": {}}
        for gpu in range(2):
            self.state["gpus"][str(gpu)] = {"uuid": f"GPU-{gpu}", "fields": dict(FIELDS)}
        self.save()
        self.clock = ManualClock(1_767_225_600_000)
        self.probes: list[ProbeClient] = []
        self._source = ("dcgm", address, bindings)
        self.collector = DcgmCollector(
            "n1", address, self.clock, start=self._start, hang_after=30.0, instance=self._instance
        )

    def _start(self) -> ProbeClient:
        environ = {**os.environ, "FAKE_DCGM_STATE": str(self.file)}
        self.probes.append(ProbeClient(environ=environ, source=self._source))
        return self.probes[-1]

    @staticmethod
    def _instance(gpu: str, number: int) -> str | None:
        return {("GPU-1", 3): "MIG-a", ("GPU-1", 5): "MIG-b"}.get((gpu, number))

    def save(self) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.state))
        fresh.rename(self.file)

    def collect(self) -> tuple[dict[str, Frame], list[Event]]:
        """Collect until there are frames, an event or a failure; no time passes."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            try:
                found = list(self.collector.collect(self.clock.now_ms()))
            except NothingToCollect:
                continue
            events = [one for one in found if isinstance(one, Event)]
            return {one.source.device: one for one in found if isinstance(one, Frame)}, events
        raise AssertionError("no answer")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.state["hang"] = False
    made.save()
    made.collector.close()
    for probe in made.probes:
        probe.kill()
        probe.wait()


def test_fields_arrive_by_number_in_base_units(rig: Rig) -> None:
    frames, events = rig.collect()
    assert set(frames) == {"GPU-0", "GPU-1"}
    assert dict(frames["GPU-0"].values) == {
        "sm_active_ratio": 0.61, "tensor_active_ratio": 0.2, "power_watts": 432.1, "gpu_util_ratio": 0.97,
        "memory_used_bytes": 1 << 30, "pcie_rx_bytes_per_second": 5e9,
    }  # fmt: skip
    assert set(frames["GPU-0"].origins.values()) == {"dcgm"}
    assert events == []
    assert rig.collector.last_xids == {"GPU-0": 31, "GPU-1": 31}


def test_it_connects_and_never_embeds(rig: Rig) -> None:
    rig.collect()
    assert Path(f"{rig.file}.connected").read_text() == "127.0.0.1:5555"
    rig.collector.close()
    assert not Path(f"{rig.file}.connected").exists()


def test_a_path_is_a_unix_socket(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "/run/nvidia/hostengine.sock")
    rig.collect()
    assert Path(f"{rig.file}.connected").read_text() == "unix /run/nvidia/hostengine.sock"
    rig.collector.close()


def test_blank_values_are_absent(rig: Rig) -> None:
    rig.state["gpus"]["0"]["fields"] |= {"1002": None, "203": 0x7FFFFFFFFFFFFFF2}
    rig.save()
    values = rig.collect()[0]["GPU-0"].values
    assert not {"sm_active_ratio", "gpu_util_ratio"} & set(values)
    assert values["power_watts"] == 432.1


def test_values_of_a_paused_host_engine_are_unknown(rig: Rig) -> None:
    rig.collect()
    rig.state["age"] = 30
    rig.save()
    assert rig.collect()[0] == {}


def test_profiling_that_is_not_to_be_had_leaves_the_rest(rig: Rig) -> None:
    rig.state["fail"] = {
        "WatchFields profiling": "This request is serviced by a module of DCGM that is not loaded"
    }
    rig.save()
    values = rig.collect()[0]["GPU-0"].values
    assert values["power_watts"] == 432.1
    assert "sm_active_ratio" not in values
    assert "module of DCGM" in rig.collector.absent["profiling"]


def test_a_host_engine_that_is_down_is_told_once_and_tried_again(rig: Rig) -> None:
    rig.state["fail"] = {"connect": "Host engine connection invalid/disconnected"}
    rig.save()
    kinds: list[str] = []
    for _ in range(60):
        with contextlib.suppress(NothingToCollect, RuntimeError):
            for one in rig.collector.collect(0):
                kinds += [one.kind] if isinstance(one, Event) else []
        if rig.probes and rig.collector.state == "starting":
            rig.probes[-1].wait()
        rig.clock.sleep(1.0)
    assert kinds == ["dcgm_unavailable"]
    with pytest.raises(RuntimeError, match="dcgmConnect_v2: Host engine connection invalid"):
        rig.collect()
    rig.state["fail"] = {}
    rig.save()
    rig.clock.sleep(60.0)
    frames, events = rig.collect()
    assert len(frames) == 2
    assert [one.kind for one in events] == ["dcgm_recovered"]


def test_a_host_engine_that_restarts_is_connected_anew(rig: Rig) -> None:
    rig.collect()
    rig.state["fail"] = {"GetLatest_v2": "Host engine connection invalid/disconnected"}
    rig.save()
    with pytest.raises(RuntimeError, match="GetLatest"):
        rig.collect()
    rig.state["fail"] = {}
    rig.save()
    rig.clock.sleep(10.0)
    assert len(rig.collect()[0]) == 2
    assert len(rig.probes) == 2


def test_a_hang_is_seen_and_costs_the_tick_little(rig: Rig) -> None:
    rig.collect()
    rig.state["hang"] = True
    rig.save()
    kinds: list[str] = []
    for _ in range(40):
        started = time.perf_counter()
        with contextlib.suppress(RuntimeError):
            for one in rig.collector.collect(0):
                kinds += [one.kind] if isinstance(one, Event) else []
        assert time.perf_counter() - started < 0.5
        rig.clock.sleep(1.0)
    assert rig.collector.state == "hung"
    assert kinds == ["dcgm_hung"]


def test_without_the_bindings_the_reason_names_where_they_were_looked_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, bindings=str(tmp_path / "nowhere"))
    with pytest.raises(
        RuntimeError, match=r"bindings are in none of .*nowhere, /usr/share/datacenter-gpu-manager-4"
    ):
        rig.collect()


def part(number: int, active: float) -> dict[str, Any]:
    return {"gpu": "GPU-1", "number": number, "fields": {**FIELDS, "1002": active}}


def test_mig_instances_are_known_by_uuid_and_have_only_what_is_their_own(rig: Rig) -> None:
    rig.state["instances"] = {"12": part(3, 0.3), "13": part(5, 0.5), "14": part(9, 0.9)}
    rig.save()
    frames, _ = rig.collect()
    assert set(frames) == {"GPU-0", "GPU-1", "MIG-a", "MIG-b"}  # nobody knows a UUID of number 9
    assert dict(frames["MIG-a"].values) == {
        "sm_active_ratio": 0.3, "tensor_active_ratio": 0.2, "memory_used_bytes": 1 << 30,
    }  # fmt: skip
    assert frames["MIG-b"].values["sm_active_ratio"] == 0.5


def test_a_gpu_sliced_anew_is_followed(rig: Rig) -> None:
    rig.state["instances"] = {"12": part(3, 0.3)}
    rig.save()
    assert "MIG-a" in rig.collect()[0]
    rig.state["instances"] = {"12": part(5, 0.6)}  # DCGM uses its numbers again
    rig.save()
    for _ in range(10):
        frames = rig.collect()[0]
    assert "MIG-a" not in frames
    assert frames["MIG-b"].values["sm_active_ratio"] == 0.6
    assert len(rig.probes) == 1


def test_a_host_engine_that_cannot_tell_instances_leaves_the_gpus(rig: Rig) -> None:
    rig.state["fail"] = {"hierarchy": "This request is not supported"}
    rig.save()
    assert set(rig.collect()[0]) == {"GPU-0", "GPU-1"}
    assert "not supported" in rig.collector.absent["mig"]
