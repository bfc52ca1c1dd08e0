"""Where a view of the node comes from: the agent when one runs, else fresh samples in the store, else the driver itself.

A command never talks to the driver beside a running agent: a second reader of GPM or of event sets costs it samples.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.agent.collectors import Collector, NothingToCollect
from gpudiag.agent.config import Config
from gpudiag.cli import node_view
from gpudiag.cli.node_view import JobOnGpu, NodeView, OpenFinding
from gpudiag.errors import GpudiagError, UnavailableError
from gpudiag.message import NOTHING, Message
from gpudiag.storage.job import Device
from gpudiag.storage.sample import Frame

if TYPE_CHECKING:
    from gpudiag.agent.collectors.nvml import NvmlCollector
    from gpudiag.agent.probe.client import ProbeClient
    from gpudiag.storage.store import Reader

_FRESH_MS = 60_000
_HTTP_TIMEOUT = 1.0


@dataclass(frozen=True)
class Answer:
    """What the agent's address said: HTTP status and body, or `refused` with the reason."""

    status: int = 0
    body: str = ""
    refused: str = ""

    @property
    def runs(self) -> bool:
        """Something answered there."""
        return self.status > 0


def ask_agent(config: Config, path: str = "/metrics", timeout: float = _HTTP_TIMEOUT) -> Answer:
    """One GET to the address that this node's agent is configured to listen on."""
    if not config.metrics.enabled:
        return Answer(refused="metrics.enabled is false")
    host, port = config.metrics.listen.host, config.metrics.listen.port
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    if config.metrics.tls_cert:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=_trust_own(config))
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        return Answer(refused=f"{host}:{port}: {error}")
    finally:
        connection.close()


def _trust_own(config: Config) -> ssl.SSLContext:
    """Only the agent's own certificate, whatever name it is for: this is the same machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with contextlib.suppress(OSError):
        context.load_verify_locations(config.metrics.tls_cert)
    return context


def from_agent(config: Config) -> NodeView | None:
    """The view of a running agent; None when there is none, or it wants a password."""
    answer = ask_agent(config)
    if answer.status != 200:
        return None
    try:
        return node_view.from_metrics(answer.body)
    except ValueError:
        return None


def from_store(reader: Reader, node: str, now_ms: int) -> NodeView | None:
    """The latest samples that the store has of this node, when they are fresh."""
    from gpudiag.storage.store import JobFilter

    start_ms = now_ms - _FRESH_MS
    frames = []
    for source in reader.sources(start_ms, now_ms + 1):
        if source.node != node or source.scope == "job":
            continue
        block = reader.read(source, start_ms, now_ms + 1)
        if len(block):
            values = {name: float(column[-1]) for name, column in block.columns.items()}
            known = {name: value for name, value in values.items() if not math.isnan(value)}
            frames.append(Frame(source, int(block.times_ms[-1]), known))
    if not frames:
        return None
    devices = {s.device: d for s, d in reader.devices([frame.source for frame in frames]).items()}
    jobs = {
        allocation.source.device: JobOnGpu(job.id, job.user, job.name)
        for job in reader.jobs(JobFilter(state="running", node=node))
        for allocation in reader.allocations(job.key)
    }
    view = node_view.from_frames(max(frame.time_ms for frame in frames), "store", frames, devices, jobs)
    return _with_findings(view, reader, node, start_ms, now_ms)


def _with_findings(view: NodeView, reader: Reader, node: str, start_ms: int, now_ms: int) -> NodeView:
    opened: dict[str, list[OpenFinding]] = {}
    for finding in reader.findings(start_ms, now_ms + 1):
        if finding.end_ms is None and finding.source.node == node:
            opened.setdefault(finding.source.device, []).append(OpenFinding(finding.rule, finding.severity))
    gpus = tuple(replace(gpu, findings=tuple(opened.get(gpu.uuid, ()))) for gpu in view.gpus)
    return replace(view, gpus=gpus, findings=tuple(opened.get("node", ())))


class Driver:
    """Asks the driver directly, through the same probe process as the agent, and the host's own files."""

    def __init__(self, config: Config, node: str, interval: float = 1.0) -> None:
        from gpudiag.agent.clock import SystemClock
        from gpudiag.agent.collectors import host_collectors
        from gpudiag.agent.collectors.nvml import NvmlCollector

        clock = SystemClock()
        root = Path(config.agent.root)
        self.nvml: NvmlCollector | None = None
        if config.sources.nvml:
            library = config.sources.nvml_library
            self.nvml = NvmlCollector(node, clock, interval, root=root, start=lambda: self._start(library))
        self._host = host_collectors(root, node, clock) if config.sources.host else []
        self.reason = NOTHING if self.nvml else Message("sources.nvml is false")
        self._trouble = NOTHING
        self._devices: dict[str, Device] = {}
        self._probe: ProbeClient | None = None

    def _start(self, library: str) -> ProbeClient:
        self._probe = _hasty_probe(library)
        return self._probe

    def view(self, now_ms: int, host: bool = True) -> NodeView:
        """One reading of everything that answers."""
        self._trouble = NOTHING
        frames = []
        for collector in [*([self.nvml] if self.nvml else []), *(self._host if host else [])]:
            try:
                for found in collector.collect(now_ms):
                    if isinstance(found, Frame):
                        frames.append(found)
                    elif isinstance(found, Device):
                        self._devices[found.source.device] = found
            except NothingToCollect as nothing:
                self._failed(collector, said(nothing), NOTHING)
            except Exception as error:  # noqa: BLE001 - whatever a source raises, the others still count
                self._failed(collector, said(error), said(error))
        status = self.nvml.status if self.nvml else None
        return node_view.from_frames(
            now_ms, "driver", frames, self._devices, {},
            lost=dict(status.lost) if status else {},
            absent=dict(status.absent) if status else {},
            driver=status.driver if status else "",
            trouble=self._trouble,
            processes=_counted(self.nvml),
        )  # fmt: skip

    def _failed(self, collector: Collector, reason: Message, trouble: Message) -> None:
        if collector is self.nvml:
            self.reason, self._trouble = reason, trouble

    def settle(self, seconds: float, sleep: Callable[[float], None] = time.sleep) -> NodeView:
        """Read until the GPUs have answered, or for so long at most."""
        deadline = time.monotonic() + seconds
        while True:
            view = self.view(time.time_ns() // 1_000_000, host=False)
            state = self.nvml.status.state if self.nvml else "off"
            if any(gpu.values for gpu in view.gpus) or state in ("unavailable", "hung", "off"):
                return view
            if time.monotonic() >= deadline:
                return self._late(view, seconds)
            sleep(0.05)

    def _late(self, view: NodeView, seconds: float) -> NodeView:
        """A call that does not return is trouble; a probe that is not even running yet says nothing of the driver."""
        call, _ = self._probe.operation() if self._probe else ("", "")
        if not call:
            busy = "this machine is too busy to ask the driver within {seconds} s"
            return replace(view, unknown=Message(busy, seconds=f"{seconds:.3g}"))
        mute = "the driver did not answer {call} within {seconds} s (hung, or no persistence mode)"
        return replace(view, trouble=Message(mute, call=call, seconds=f"{seconds:.3g}"))

    def close(self) -> None:
        """End the probe; one that is stuck in the driver is left behind."""
        for collector in [*([self.nvml] if self.nvml else []), *self._host]:
            collector.close()


def _hasty_probe(library: str) -> ProbeClient:
    """A probe that is not waited for when it does not end at once: the command has told what it saw."""
    from gpudiag.agent.probe.client import ProbeClient

    class Hasty(ProbeClient):
        def close(self, timeout: float = 0.1) -> bool:
            return super().close(min(timeout, 0.1))

    return Hasty(library)


def _counted(nvml: NvmlCollector | None) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for process in nvml.processes if nvml else ():
        counts[process.uuid] = counts.get(process.uuid, 0) + 1
    return counts


def said(error: Exception) -> Message:
    """What an error says, still to be translated where its own text is."""
    text = error.args[0] if error.args else ""
    return text if isinstance(text, Message) else Message(str(error))


def node_name(config: Config) -> str:
    """The name under which this node's samples are stored."""
    return config.agent.node or socket.gethostname()


def open_own_store(config: Config, environ: Mapping[str, str], db: str | None = None) -> Reader:
    """The database of this node's agent, for reading. Raises `StoreError`."""
    from gpudiag.agent.main import database_url
    from gpudiag.storage.open import open_reader

    return open_reader(db or database_url(config, environ))


def fresh_view(config: Config, environ: Mapping[str, str]) -> NodeView | None:
    """What the agent says, or else what it stored less than a minute ago; None: no agent runs here."""
    view = from_agent(config)
    if view is not None:
        return view
    with contextlib.suppress(GpudiagError):
        reader = open_own_store(config, environ)
        try:
            return from_store(reader, node_name(config), time.time_ns() // 1_000_000)
        finally:
            reader.close()
    return None


def require_gpus(view: NodeView) -> NodeView:
    """The same view, or `UnavailableError` when the driver gives nothing for a reason."""
    if not view.gpus and view.trouble:
        raise UnavailableError(view.trouble)
    return view
