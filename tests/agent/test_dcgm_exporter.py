"""Scraping a dcgm-exporter: real captures, and an HTTP server that fails in every way it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agent_process import AgentProcess
from fake_nvml.control import FakeNvml

from gpudiag.agent.clock import ManualClock
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.dcgm_exporter import DcgmExporterCollector
from gpudiag.agent.collectors.fetcher import Fetcher
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Frame

CAPTURES = Path(__file__).parents[2] / "../shared/data/dcgm-exporter"
GPU = "GPU-c2f76b33-7953-256e-8f33-1343419b1a1c"
LABELS = f'gpu="0",UUID="{GPU}",pci_bus_id="00000000:31:00.0",modelName="NVIDIA L4",Hostname="h"'


class Exporter:
    """Answers with `body`, or with `status`; `delay` seconds late."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.delay = 0.0
        self.requests = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                time.sleep(outer.delay)
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Rig:
    """The collector on the test's clock."""

    def __init__(self, url: str, **options: object) -> None:
        self.clock = ManualClock(1_767_225_600_000)
        self.fetcher = Fetcher(url, timeout=2.0)
        self.collector = DcgmExporterCollector("n1", url, self.clock, fetcher=self.fetcher, **options)  # type: ignore[arg-type]

    def collect(self, seconds: float = 10.0) -> tuple[dict[str, Frame], list[Device]]:
        """Start a fetch, wait for it, take it in."""
        found = self._once()
        self.fetcher.wait(5.0)
        found = self._once() or found
        self.clock.sleep(seconds)
        frames = {one.source.device: one for one in found if isinstance(one, Frame)}
        return frames, [one for one in found if isinstance(one, Device)]

    def _once(self) -> list[object]:
        try:
            return list(self.collector.collect(self.clock.now_ms()))
        except NothingToCollect:
            return []


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    server = Exporter()
    yield server
    server.close()


def capture(name: str) -> bytes:
    path = CAPTURES / name
    if not path.exists():
        pytest.skip("the captures of real exporters are not here")
    return path.read_bytes()


def line(name: str, value: object, labels: str = LABELS) -> str:
    return f"{name}{{{labels}}} {value}\n"


def test_a_real_exporter_beside_an_l4(exporter: Exporter) -> None:
    exporter.body = capture("v1.35_kops_tests_TestObservability_AcceleratorMetrics_ViaDCGM_output.prom")
    rig = Rig(exporter.url)
    frames, devices = rig.collect()
    assert GPU in frames
    assert len(frames) == 1  # the file holds the same GPU twice
    values = frames[GPU].values
    assert (values["power_watts"], values["energy_joules_total"]) == (16.365, 4742.776)
    assert (values["sm_clock_hertz"], values["temperature_celsius"]) == (210e6, 31)
    assert values["pcie_replays_total"] == 0
    assert "graphics_active_ratio" in values
    assert not {"sm_active_ratio", "memory_temperature_celsius"} & set(values)
    assert set(frames[GPU].origins.values()) == {"dcgm-exporter"}
    device = next(one for one in devices if one.source.device == GPU)
    assert (device.index, device.model, device.driver) == (0, "NVIDIA L4", "580.105.08")
    assert device.pci_bus_id == "00000000:31:00.0"
    assert rig.collect()[1] == []


@pytest.mark.parametrize(
    ("name", "gpus"),
    [("v1.35_upcloud_accelerator-metrics.prom", 1), ("v1.35_vks_accelerator_metrics.prom", 1)],
)
def test_other_real_exporters(exporter: Exporter, name: str, gpus: int) -> None:
    exporter.body = capture(name)
    frames, _ = Rig(exporter.url).collect()
    assert len(frames) == gpus
    for frame in frames.values():
        assert frame.values["memory_total_bytes"] > 30 << 30
        assert 0 <= frame.values["gpu_util_ratio"] <= 1


def test_new_names_and_new_label_case(exporter: Exporter) -> None:
    labels = f'gpu="0",uuid="{GPU}",hostname="h"'
    exporter.body = (
        line("DCGM_FI_PROF_SM_UTIL_RATIO", 0.5, labels) + line("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 40, labels)
    ).encode()
    frames, _ = Rig(exporter.url).collect()
    assert dict(frames[GPU].values) == {"sm_active_ratio": 0.5, "temperature_celsius": 40}


def test_blanks_are_dropped_and_not_zero(exporter: Exporter) -> None:
    exporter.body = (
        line("DCGM_FI_DEV_POWER_USAGE", 100)
        + line("DCGM_FI_DEV_GPU_UTIL", 9223372036854775794)
        + line("DCGM_FI_DEV_FB_USED", 2147483634)
    ).encode()
    frames, _ = Rig(exporter.url).collect()
    assert dict(frames[GPU].values) == {"power_watts": 100}


def test_the_xid_gauge_is_the_last_value_and_no_event(exporter: Exporter) -> None:
    exporter.body = (line("DCGM_FI_DEV_XID_ERRORS", 79) + line("DCGM_FI_DEV_POWER_USAGE", 100)).encode()
    rig = Rig(exporter.url)
    frames, _ = rig.collect()
    assert rig.collector.last_xids == {GPU: 79}
    assert dict(frames[GPU].values) == {"power_watts": 100}


def test_per_link_series_and_other_exporters_are_left_out(exporter: Exporter) -> None:
    exporter.body = (
        line("DCGM_FI_PROF_NVLINK_TX_BYTES", 5, LABELS + ',nvlink="3"')
        + line("DCGM_FI_PROF_NVLINK_TX_BYTES", 50)
        + line("node_load1", 3)
        + "go_threads 7\n"
    ).encode()
    frames, _ = Rig(exporter.url).collect()
    assert dict(frames[GPU].values) == {"nvlink_tx_bytes_per_second": 50}


def test_a_gpu_shared_by_pods_is_one_gpu(exporter: Exporter) -> None:
    exporter.body = "".join(
        line("DCGM_FI_DEV_POWER_USAGE", 100, f'{LABELS},pod="p{n}"') for n in range(3)
    ).encode()
    frames, _ = Rig(exporter.url).collect()
    assert frames[GPU].values["power_watts"] == 100


def test_mig_instances_have_an_identity_of_their_own(exporter: Exporter) -> None:
    labels = LABELS + ',GPU_I_PROFILE="3g.71gb",GPU_I_ID="2"'
    exporter.body = (
        line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, labels) + line("DCGM_FI_DEV_POWER_USAGE", 100)
    ).encode()
    frames, devices = Rig(exporter.url).collect()
    assert set(frames) == {GPU, f"MIG-{GPU}/2/0"}
    assert [(one.parent_uuid, one.mig_profile) for one in devices if one.mig_profile] == [(GPU, "3g.71gb")]
    known = Rig(
        exporter.url, instance=lambda uuid, number: "MIG-aaaa" if (uuid, number) == (GPU, 2) else None
    )
    assert set(known.collect()[0]) == {GPU, "MIG-aaaa"}


def test_a_device_that_nvml_describes_is_not_described_again(exporter: Exporter) -> None:
    exporter.body = line("DCGM_FI_DEV_POWER_USAGE", 100).encode()
    frames, devices = Rig(exporter.url, described=lambda uuid: True).collect()
    assert frames
    assert devices == []


def test_it_is_asked_every_ten_seconds_and_holds_in_between(exporter: Exporter) -> None:
    exporter.body = line("DCGM_FI_DEV_POWER_USAGE", 100).encode()
    rig = Rig(exporter.url)
    for _ in range(30):
        frames, _ = rig.collect(1.0)
        assert frames[GPU].values["power_watts"] == 100
    assert exporter.requests == 3


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, b"", "HTTP status 500"),
        (200, b"<html>", "not in the Prometheus text format"),
        (200, b"go_threads 7\n", "no DCGM series with a GPU's UUID in it"),
        (200, b"\xff\xfe\x00", "not in the Prometheus text format"),
        (200, b"", "no DCGM series"),
    ],
)
def test_a_bad_answer_ends_the_series_with_a_reason(
    exporter: Exporter, status: int, body: bytes, reason: str
) -> None:
    exporter.body = line("DCGM_FI_DEV_POWER_USAGE", 100).encode()
    rig = Rig(exporter.url)
    assert rig.collect()[0]
    exporter.status, exporter.body = status, body
    with pytest.raises(RuntimeError, match=reason):
        rig.collect()
    exporter.status, exporter.body = 200, line("DCGM_FI_DEV_POWER_USAGE", 101).encode()
    rig.clock.sleep(10.0)
    rig.fetcher.start()
    rig.fetcher.wait(5.0)
    assert rig.collect()[0][GPU].values["power_watts"] == 101


def test_a_closed_port_is_a_failure_with_its_reason() -> None:
    rig = Rig("http://127.0.0.1:9/metrics")
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9/metrics: .*refused"):
        rig.collect()


def test_an_exporter_that_does_not_answer_delays_no_tick(exporter: Exporter) -> None:
    exporter.body, exporter.delay = line("DCGM_FI_DEV_POWER_USAGE", 100).encode(), 0.5
    rig = Rig(exporter.url)
    started = time.perf_counter()
    with pytest.raises(NothingToCollect):
        list(rig.collector.collect(0))
    assert time.perf_counter() - started < 0.1
    rig.fetcher.wait(5.0)


def test_values_do_not_outlive_their_source(exporter: Exporter) -> None:
    exporter.body = line("DCGM_FI_DEV_POWER_USAGE", 100).encode()
    rig = Rig(exporter.url)
    assert rig.collect()[0]
    exporter.delay = 1.0
    rig.clock.sleep(6.0)  # 16 s after the last answer, and the next one is late
    with pytest.raises(NothingToCollect):
        list(rig.collector.collect(0))
    rig.fetcher.wait(5.0)


@pytest.mark.integration
def test_a_running_agent_shows_the_exporter_and_lets_the_driver_win(
    exporter: Exporter, start_agent: Callable[..., AgentProcess], fake_nvml: FakeNvml
) -> None:
    shared = f'gpu="0",UUID="{fake_nvml.uuid(0)}",modelName="NVIDIA H200"'
    exporter.body = (
        line("DCGM_FI_DEV_POWER_USAGE", 1, shared)
        + line("DCGM_FI_PROF_SM_ACTIVE", 0.111, shared)
        + line("DCGM_FI_DEV_POWER_USAGE", 77)
        + line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.25)
    ).encode()
    agent = start_agent(fake_nvml.environ, sources__dcgm_exporter=exporter.url, sources__jobs="false")
    agent.wait_for(lambda: (("uuid", GPU),) in agent.values("gpudiag_gpu_power_watts"))
    own = (
        ("uuid", fake_nvml.uuid(0)),
    )  # GPM needs two readings: until then the exporter's is the best there is
    agent.wait_for(lambda: agent.values("gpudiag_gpu_sm_active_ratio").get(own) == 0.8)
    power, busy = agent.values("gpudiag_gpu_power_watts"), agent.values("gpudiag_gpu_sm_active_ratio")
    assert power[(("uuid", GPU),)] == 77
    assert agent.values("gpudiag_gpu_graphics_active_ratio")[(("uuid", GPU),)] == 0.25
    assert power[(("uuid", fake_nvml.uuid(0)),)] == 550
    assert busy[(("uuid", fake_nvml.uuid(0)),)] == 0.8
    assert (("uuid", GPU),) not in busy
    assert agent.values("gpudiag_collector_success")[(("collector", "dcgm_exporter"),)] == 1
    exporter.status = 503
    agent.wait_for(lambda: agent.values("gpudiag_collector_success")[(("collector", "dcgm_exporter"),)] == 0)
    assert (("uuid", GPU),) not in agent.values("gpudiag_gpu_power_watts")
    assert len(agent.values("gpudiag_gpu_power_watts")) == 8
