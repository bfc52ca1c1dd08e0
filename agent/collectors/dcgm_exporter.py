"""GPUs through the /metrics of a dcgm-exporter on this node.

It exports what its list of counters says: SM activity is off there by default. Its values change as often as it reads
them (every 30 s unless told otherwise), so they are fetched every 10 s and hold in between; when a fetch fails the
series end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect, dcgm_fields
from gpudiag.agent.collectors.fetcher import Fetcher
from gpudiag.message import Message
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame, Source

ORIGIN = "dcgm-exporter"
EVERY = 10.0  # seconds between fetches
HOLD = 1.5  # fetches that a value holds


@dataclass
class _Gpu:
    labels: Mapping[str, str]
    named: list[tuple[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class _Scrape:
    """One answer of the exporter, in our terms."""

    values: Mapping[str, Mapping[str, float]]
    devices: tuple[Device, ...]
    last_xids: Mapping[str, int]


class DcgmExporterCollector:
    """Scrapes `url`. `described`: devices that another collector describes better, and MIG instances by (GPU, instance id)."""

    name = "dcgm_exporter"

    def __init__(
        self,
        node: str,
        url: str,
        clock: Clock,
        described: Callable[[str], bool] = lambda uuid: False,
        instance: Callable[[str, int], str | None] = lambda uuid, number: None,
        fetcher: Fetcher | None = None,
    ) -> None:
        self._node = node
        self._clock = clock
        self._described = described
        self._instance = instance
        self._fetcher = fetcher or Fetcher(url)
        self._next = -math.inf
        self._scrape: _Scrape | None = None
        self._scraped = -math.inf
        self._error = ""
        self._known: dict[str, Device] = {}
        self.last_xids: Mapping[str, int] = {}

    def collect(self, now_ms: int) -> Iterator[Frame | Event | Device]:
        """The latest values of each GPU; raises `NothingToCollect` before the first answer, `RuntimeError` without one."""
        now = self._clock.monotonic()
        if now >= self._next and self._fetcher.start():
            self._next = now + EVERY
        self._take(now, now_ms)
        if self._scrape is None or now - self._scraped > HOLD * EVERY:
            if self._error:
                raise RuntimeError(self._error)
            raise NothingToCollect(Message("waiting for the first answer"))
        for device in self._scrape.devices:
            yield from self._describe(device)
        for uuid, values in self._scrape.values.items():
            yield Frame(Source(self._node, uuid), now_ms, values, dict.fromkeys(values, ORIGIN))

    def close(self) -> None:
        """Nothing is open between fetches."""
        self._fetcher.wait(1.0)

    def _take(self, now: float, now_ms: int) -> None:
        fetched = self._fetcher.take()
        if fetched is None:
            return
        self._error = fetched.error
        if not self._error:
            try:
                self._scrape, self._scraped = self._parse(fetched.text, now_ms), now
                self.last_xids = self._scrape.last_xids
            except ValueError as error:
                self._error = f"not in the Prometheus text format: {error}"
        if self._error:
            self._scrape = None

    def _describe(self, device: Device) -> Iterator[Device]:
        uuid = device.source.device
        known = self._known.get(uuid)
        same = known is not None and Device(**{**vars(known), "since_ms": device.since_ms}) == device
        if not same and not self._described(uuid):
            self._known[uuid] = device
            yield device

    def _parse(self, text: str, now_ms: int) -> _Scrape:
        gpus: dict[str, _Gpu] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._sort(sample, gpus)
        if not gpus:
            raise ValueError("no DCGM series with a GPU's UUID in it")
        fields = {uuid: dcgm_fields.numbered(gpu.named) for uuid, gpu in gpus.items()}
        values = {uuid: dcgm_fields.metrics(found) for uuid, found in fields.items()}
        xids = {
            uuid: int(found[dcgm_fields.XID])
            for uuid, found in fields.items()
            if not dcgm_fields.blank(found.get(dcgm_fields.XID, math.inf))
        }
        devices = tuple(self._device(uuid, gpu.labels, values[uuid], now_ms) for uuid, gpu in gpus.items())
        return _Scrape({uuid: found for uuid, found in values.items() if found}, devices, xids)

    def _sort(self, sample: Sample, gpus: dict[str, _Gpu]) -> None:
        labels = {name.lower(): value for name, value in sample.labels.items()}
        uuid = labels.get("uuid", "")
        if not sample.name.startswith("DCGM_FI_") or not uuid or "nvlink" in labels:
            return
        uuid = self._identity(uuid, labels)
        gpus.setdefault(uuid, _Gpu(labels)).named.append((sample.name, sample.value))

    def _identity(self, uuid: str, labels: Mapping[str, str]) -> str:
        """A MIG instance's own UUID where somebody knows it, its older name by GPU and instance number otherwise."""
        number = labels.get("gpu_i_id", "")
        if not number.isdigit():
            return uuid
        return self._instance(uuid, int(number)) or f"MIG-{uuid}/{number}/0"

    def _device(
        self, uuid: str, labels: Mapping[str, str], values: Mapping[str, float], now_ms: int
    ) -> Device:
        gpu = labels.get("gpu", "")
        profile = labels.get("gpu_i_profile", "")
        return Device(
            Source(self._node, uuid),
            now_ms,
            index=int(gpu) if gpu.isdigit() else None,
            pci_bus_id=labels.get("pci_bus_id", ""),
            model=labels.get("modelname", ""),
            driver=labels.get("dcgm_fi_driver_version", ""),
            memory_total_bytes=values.get("memory_total_bytes"),
            parent_uuid=labels["uuid"] if profile else "",
            mig_profile=profile,
        )
