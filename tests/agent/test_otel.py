"""OTLP by the official SDK to a receiver that decodes what arrives with the official protobuf messages."""

from __future__ import annotations

import gzip
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 as pb
import pytest
from agent_process import AgentProcess
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpudiag.agent import otel
from gpudiag.agent.config import OtelSection
from gpudiag.agent.families import own
from gpudiag.agent.metrics import SnapshotCollector, registry
from gpudiag.agent.recorder import StoreState
from gpudiag.agent.sampler import Snapshot
from gpudiag.errors import InputError
from gpudiag.storage.sample import Frame, Source

SNAPSHOT = Snapshot(
    time_ms=1_767_225_600_000,
    monotonic=0.0,
    frames=(
        Frame(Source("n1", "GPU-a"), 1, {"power_watts": 300.0, "energy_joules_total": 12.5}),
        Frame(Source("n1", "GPU-b"), 1, {"power_watts": 90.0}),
        Frame(Source("n1", "node"), 1, {"cpu_busy_ratio": 0.5}),
    ),
    events={("GPU-a", "xid", 79): (2, 1_767_225_500_000)},
    ticks=7,
)


class Receiver:
    """An OTLP/HTTP receiver that answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/metrics" and receiver.status == 200:
                    receiver.requests.append(pb.ExportMetricsServiceRequest.FromString(body))
                self.send_response(receiver.status if self.path == "/v1/metrics" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def metrics(self) -> dict[str, Any]:
        """The metrics of the latest request, by name."""
        [resource] = self.requests[-1].resource_metrics
        [scope] = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def resource(self) -> dict[str, str]:
        [resource] = self.requests[-1].resource_metrics
        return {pair.key: pair.value.string_value for pair in resource.resource.attributes}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def export(receiver: Receiver) -> Iterator[Any]:
    collector = SnapshotCollector(lambda: SNAPSHOT, StoreState, lambda: 0.0, lambda: 10.0)
    made = otel.Export(OtelSection(receiver.url, 60.0, 0.5), "n1", collector.collect, start=False)
    made.collector = collector
    yield made
    made.close()


def points(metrics: dict[str, Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for name, metric in metrics.items():
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes))
            found[f"{name}_total" if kind == "sum" else name, labels] = point.as_double
    return found


def test_what_arrives_is_what_metrics_shows(export: Any, receiver: Receiver) -> None:
    assert export.once()
    text = generate_latest(registry(export.collector)).decode()
    shown = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gpudiag_")
    }
    assert points(receiver.metrics()) == shown
    assert shown["gpudiag_gpu_energy_joules_total", (("uuid", "GPU-a"),)] == 12.5


def test_counters_are_cumulative_sums_and_the_resource_says_which_node(
    export: Any, receiver: Receiver
) -> None:
    export.once()
    energy = receiver.metrics()["gpudiag_gpu_energy_joules"]
    assert energy.sum.is_monotonic
    assert energy.sum.aggregation_temporality == 2  # cumulative
    assert energy.sum.data_points[0].start_time_unix_nano < energy.sum.data_points[0].time_unix_nano
    assert receiver.metrics()["gpudiag_gpu_power_watts"].WhichOneof("data") == "gauge"
    resource = receiver.resource()
    assert (resource["service.name"], resource["service.instance.id"]) == ("gpudiag", "n1")


def test_a_receiver_that_refuses_is_counted_and_the_next_export_goes_through(
    export: Any, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 400
    with caplog.at_level(logging.CRITICAL):
        assert not export.once()
    [failures] = export.families(SNAPSHOT)
    assert failures.samples[0].value == 1
    receiver.status = 200
    assert export.once()
    assert export.failures == 1


def test_a_collection_that_breaks_off_does_not_end_the_exports(receiver: Receiver) -> None:
    calls = iter([OSError("gone")])

    def collect() -> Any:
        for error in calls:
            raise error
        family = own("gpudiag_store_up")
        family.add((), 1)
        return [family.metric]

    export = otel.Export(OtelSection(receiver.url, 60.0, 0.5), "n1", collect, start=False)
    assert not export.once()
    assert export.once()
    assert list(receiver.metrics()) == ["gpudiag_store_up"]
    export.close()


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:4318", "http://h:4318/v1/metrics"),
        ("http://h:4318/", "http://h:4318/v1/metrics"),
        ("https://h/otlp/v1/metrics", "https://h/otlp/v1/metrics"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_usual_one(given: str, used: str) -> None:
    assert otel.endpoint(given) == used


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    monkeypatch.delitem(sys.modules, "gpudiag.agent.otel")
    with pytest.raises(InputError, match=r"pip install 'gpudiag\[otel\]'"):
        importlib.import_module("gpudiag.agent.otel")


@pytest.mark.integration
def test_the_real_agent_exports_and_survives_a_receiver_that_is_away(
    start_agent: Callable[..., AgentProcess], receiver: Receiver
) -> None:
    receiver.status = 503
    agent = start_agent(
        sources__nvml="false", otel__endpoint=receiver.url, otel__interval="500ms", otel__timeout="500ms"
    )
    agent.wait_for(lambda: agent.value("gpudiag_otlp_failures_total") >= 1)
    agent.wait_for_ticks(2)
    receiver.status = 200
    agent.wait_for(lambda: bool(receiver.requests) and "gpudiag_node_cpus" in receiver.metrics())
    assert receiver.resource()["host.name"] == "node-a"
    assert agent.stop() == 0
    assert "Traceback" not in agent.log.read_text()
