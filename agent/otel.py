"""Sends what /metrics shows to an OTLP receiver, by OpenTelemetry's own SDK; needs the extra `otel`.

Imported only where it is configured: the SDK costs memory that an agent without it need not pay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit, urlunsplit

from prometheus_client.core import Metric as Family

from gpudiag import __version__
from gpudiag.agent.config import OtelSection
from gpudiag.agent.families import Families, single
from gpudiag.agent.sampler import Snapshot
from gpudiag.errors import InputError

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Metric,
        MetricExportResult,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as error:
    raise InputError(
        f"otel.endpoint needs gpudiag's extra otel (pip install 'gpudiag[otel]'): {error}"
    ) from None

log = logging.getLogger(__name__)
_PATH = "/v1/metrics"


class Export:
    """Exports the families that `collect` yields, now and then until `close`; headers and certificates by `OTEL_*`."""

    def __init__(
        self, section: OtelSection, node: str, collect: Callable[[], Iterable[Family]], start: bool = True
    ) -> None:
        self._exporter = OTLPMetricExporter(endpoint=endpoint(section.endpoint), timeout=section.timeout)
        self._interval = section.interval
        self._collect = collect
        self._since_ns = time.time_ns()
        self._resource = Resource(
            {"service.name": "gpudiag", "service.version": __version__, "service.instance.id": node, "host.name": node}
        )  # fmt: skip
        self.failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel", daemon=True)
        if start:
            self._thread.start()

    def once(self) -> bool:
        """One export; one that fails is counted and told, and the next brings newer values anyway."""
        try:
            content = metrics_data(self._collect(), self._resource, self._since_ns, time.time_ns())
            sent = self._exporter.export(content) is MetricExportResult.SUCCESS
        except Exception:
            log.exception("an OTLP export broke off")
            sent = False
        self.failures += not sent
        return sent

    def families(self, _: Snapshot) -> Families:
        """For `SnapshotCollector(always=...)`."""
        yield from single("gpudiag_otlp_failures_total", self.failures)

    def close(self) -> None:
        """End; what is under way is given up."""
        self._stop.set()
        self._exporter.shutdown()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.once()


def endpoint(url: str) -> str:
    """The receiver's URL; one without a path gets the path that OTLP/HTTP has for metrics."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=_PATH)) if parts.path in ("", "/") else url


def metrics_data(families: Iterable[Family], resource: Resource, since_ns: int, now_ns: int) -> MetricsData:
    """Counters as cumulative sums, the rest as gauges; names without `_total`, which receivers add again."""
    metrics = [
        Metric(family.name, family.documentation, family.unit, _data(family, since_ns, now_ns))
        for family in families
    ]
    scope = ScopeMetrics(InstrumentationScope("gpudiag", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _data(family: Family, since_ns: int, now_ns: int) -> Sum | Gauge:
    points = [
        NumberDataPoint(one.labels, since_ns, now_ns, float(one.value))
        for one in family.samples
        if not one.name.endswith("_created")
    ]
    if family.type == "counter":
        return Sum(points, AggregationTemporality.CUMULATIVE, True)
    return Gauge(points)
