"""Jobs and samples read from a real Prometheus and a real VictoriaMetrics, as the exporters' users have them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from prometheus import Serve

from gpudiag.errors import InputError, StoreError
from gpudiag.storage.open import open_reader
from gpudiag.storage.prometheus.reader import PrometheusReader
from gpudiag.storage.sample import Source
from gpudiag.storage.store import JobFilter

START = 1_790_000_000  # seconds; jobs below begin here
NOW_MS = (START + 6 * 3600) * 1000
SCRAPE = 15
A, B = "GPU-aaaa", "GPU-bbbb"
DCGM_LABELS = (
    'gpu="{index}",UUID="{uuid}",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu01",instance="gpu01:9400"'
)


def dcgm(uuid: str, index: int, values: dict[str, float], start: int, end: int, job: str = "") -> list[str]:
    labels = DCGM_LABELS.format(index=index, uuid=uuid) + (f',hpc_job="{job}"' if job else "")
    return [
        f"{name}{{{labels}}} {value + (at - start) * slope} {at}"
        for name, value in values.items()
        for slope in [1.0 if name.endswith("CONSUMPTION") else 0.0]
        for at in range(start, end, SCRAPE)
    ]


def openmetrics(lines: list[str]) -> str:
    by_name: dict[str, list[str]] = {}
    for line in lines:
        by_name.setdefault(line.partition("{")[0], []).append(line)
    text = [line for name, rows in by_name.items() for line in (f"# TYPE {name} gauge", *rows)]
    return "\n".join([*text, "# EOF", ""])


BUSY = {
    "DCGM_FI_DEV_GPU_UTIL": 90, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.8, "DCGM_FI_DEV_FB_USED": 1000,
    "DCGM_FI_DEV_FB_FREE": 79000, "DCGM_FI_DEV_FB_RESERVED": 500, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5000,
    "DCGM_FI_DEV_SM_CLOCK": 1410,
}  # fmt: skip
JOB_42 = openmetrics(
    dcgm(A, 0, BUSY, START, START + 7200, "42")
    + dcgm(B, 1, {**BUSY, "DCGM_FI_DEV_GPU_UTIL": 10}, START, START + 7200, "42")
    + dcgm(A, 0, BUSY, START + 7200, START + 9000)
    + dcgm(A, 0, BUSY, START + 14400, START + 18000, "42")
)


@pytest.fixture(params=["prometheus", "victoria_metrics"])
def serve(request: pytest.FixtureRequest) -> Serve:
    fixture: Serve = request.getfixturevalue(request.param)
    return fixture


def reader(url: str) -> PrometheusReader:
    return PrometheusReader(f"prometheus+{url}?lookback=1d", now_ms=lambda: NOW_MS)


@pytest.mark.integration
def test_a_job_of_dcgm_exporter_and_what_it_measured(serve: Serve) -> None:
    source = reader(serve(JOB_42))
    later, first = source.jobs(JobFilter(id="42"))
    assert (first.start_ms, first.end_ms) == (START * 1000, (START + 7200) * 1000)
    assert first.key == f"prometheus/42/{START}"
    assert later.start_ms == (START + 14400) * 1000
    assert [(one.source, one.start_ms, one.end_ms) for one in source.allocations(first.key)] == [
        (Source("gpu01", A), START * 1000, (START + 7200) * 1000),
        (Source("gpu01", B), START * 1000, (START + 7200) * 1000),
    ]
    block = source.read(Source("gpu01", A), START * 1000, (START + 7200) * 1000)
    assert len(block) == 480
    assert np.array_equal(np.diff(block.times_ms), np.full(479, 15_000))
    assert block.columns["gpu_util_ratio"][0] == pytest.approx(0.9)
    assert block.columns["memory_used_bytes"][0] == 1000 * 2**20
    assert block.columns["memory_total_bytes"][0] == 80500 * 2**20
    assert block.columns["sm_clock_hertz"][0] == pytest.approx(1.41e9)
    assert block.columns["energy_joules_total"][[0, 1]] == pytest.approx([5.0, 5.015])
    assert "sm_active_ratio" not in block.columns
    assert block.origins["graphics_active_ratio"] == "dcgm"
    device = source.devices([Source("gpu01", A)])[Source("gpu01", A)]
    assert (device.model, device.index) == ("NVIDIA A100-SXM4-80GB", 0)
    assert device.memory_total_bytes == 80500 * 2**20


@pytest.mark.integration
def test_a_job_of_jobstats_by_the_value_of_its_series(serve: Serve) -> None:
    labels = f'uuid="{A}",minor_number="3",instance="gpu07:9445",name="NVIDIA H100"'
    lines = [
        f"nvidia_gpu_jobId{{{labels}}} {7 if at < START + 1800 else 8} {at}"
        for at in range(START, START + 3600, 30)
    ]
    lines += [f"nvidia_gpu_duty_cycle{{{labels}}} 55 {at}" for at in range(START, START + 3600, 30)]
    source = reader(serve(openmetrics(lines)))
    (job,) = source.jobs(JobFilter(id="8"))
    assert (job.start_ms, job.end_ms) == ((START + 1800) * 1000, (START + 3600) * 1000)
    (allocation,) = source.allocations(job.key)
    assert allocation.source == Source("gpu07", A)
    block = source.read(allocation.source, job.start_ms, job.end_ms or 0)
    assert list(block.columns) == ["gpu_util_ratio"]
    assert block.columns["gpu_util_ratio"][0] == pytest.approx(0.55)
    assert {job.id for job in source.jobs()} == {"7", "8"}


@pytest.mark.integration
def test_a_job_of_slurm_job_exporter_without_uuids(serve: Serve) -> None:
    labels = 'slurmjobid="9",user="ann",account="x",gpu="1",gpu_type="A100",instance="gpu02:9817"'
    lines = [f"slurm_job_utilization_gpu{{{labels}}} 40 {at}" for at in range(START, START + 1800, 30)]
    lines += [
        f'slurm_job_pcie_gpu{{{labels},direction="RX"}} 1e9 {at}' for at in range(START, START + 1800, 30)
    ]
    source = reader(serve(openmetrics(lines)))
    (job,) = source.jobs(JobFilter(user="ann"))
    assert job.id == "9"
    (allocation,) = source.allocations(job.key)
    assert allocation.source == Source("gpu02", "index:1")
    columns = source.read(allocation.source, job.start_ms, job.end_ms or 0).columns
    assert columns["gpu_util_ratio"][0] == pytest.approx(0.4)
    assert columns["pcie_rx_bytes_per_second"][0] == 1e9
    assert "pcie_tx_bytes_per_second" not in columns


@pytest.mark.integration
def test_a_sticky_xid_is_one_event_and_an_old_one_none(prometheus: Serve) -> None:
    labels = DCGM_LABELS.format(index=0, uuid=A)
    codes = [
        f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} {31 if at < START + 900 else 79} {at}"
        for at in range(START, START + 3600, SCRAPE)
    ]
    source = reader(prometheus(openmetrics(dcgm(A, 0, BUSY, START, START + 3600, "42") + codes)))
    source.jobs(JobFilter(id="42"))
    events = source.events(START * 1000, (START + 3600) * 1000)
    assert [(event.code, event.time_ms) for event in events] == [(79, (START + 900) * 1000)]


@pytest.mark.integration
def test_a_value_nobody_can_believe_is_missing_not_zero(prometheus: Serve) -> None:
    lines = dcgm(
        A,
        0,
        {"DCGM_FI_DEV_GPU_UTIL": 9223372036854775794, "DCGM_FI_DEV_SM_CLOCK": 1410},
        START,
        START + 600,
        "42",
    )
    source = reader(prometheus(openmetrics(lines)))
    block = source.read(Source("gpu01", A), START * 1000, (START + 600) * 1000)
    assert "gpu_util_ratio" not in block.columns or np.isnan(block.columns["gpu_util_ratio"]).all()
    assert len(block) == 40


@pytest.mark.integration
def test_no_such_job(prometheus: Serve) -> None:
    assert reader(prometheus(JOB_42)).jobs(JobFilter(id="43")) == []


def test_a_server_that_is_away_is_one_line() -> None:
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:1 does not answer"):
        open_reader("prometheus+http://user:secret@127.0.0.1:1").jobs()


@pytest.mark.parametrize(
    "url",
    [
        "prometheus+ftp://h",
        "prometheus+http://",
        "prometheus+http://h?lookback=x",
        "prometheus+http://h?speed=1",
    ],
)
def test_a_wrong_url_says_what_was_expected(url: str) -> None:
    with pytest.raises(InputError, match="Prometheus URL"):
        open_reader(url)


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that refuses every slice longer than ten minutes, as one with a sample limit does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            from urllib.parse import parse_qs

            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            milliseconds = int(asked["query"][0].rpartition("[")[2].removesuffix("ms]"))
            fits = milliseconds <= 600_000
            at = float(asked["time"][0]) - 1
            body = (
                f'{{"data":{{"result":[{{"metric":{{"__name__":"DCGM_FI_DEV_GPU_UTIL"}},"values":[[{at},"50"]]}}]}}}}'
                if fits
                else '{"status":"error","error":"query processing would load too many samples into memory"}'
            ).encode()
            self.send_response(200 if fits else 422)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_slices_halve_until_the_server_accepts_them(refusing: str) -> None:
    block = reader(refusing).read(Source("gpu01", A), START * 1000, (START + 3600) * 1000, ["gpu_util_ratio"])
    assert len(block) >= 6
    assert set(block.columns["gpu_util_ratio"]) == {0.5}
