"""Puts the agent together from its configuration and runs it. The entry of the service.

config -> collectors -> sampler -> recorder -> store
                             \\-> judge, /metrics
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gpudiag.agent import compat, configfile, health_metrics, http, logs, metrics
from gpudiag.agent.clock import Clock, SystemClock
from gpudiag.agent.config import Config, MetricsSection
from gpudiag.agent.continued import Continued
from gpudiag.agent.control import Command, Control
from gpudiag.agent.daemon import Daemon, Wakeup
from gpudiag.agent.driver_metrics import driver
from gpudiag.agent.forwarding import Forwarding, sink_url
from gpudiag.agent.housekeeping import Housekeeping, policy
from gpudiag.agent.notify import Notifier
from gpudiag.agent.operator import operator_commands
from gpudiag.agent.passwords import Users
from gpudiag.agent.recorder import Recorder
from gpudiag.agent.remembered import Remembered, remember
from gpudiag.agent.sampler import Judge, Sampler
from gpudiag.agent.service import Agent, Changes
from gpudiag.agent.sources import Sources
from gpudiag.agent.values import Address
from gpudiag.errors import CorruptStoreError, GpudiagError, SchemaError, StoreBusyError, StoreError
from gpudiag.storage.location import default_url, url_of
from gpudiag.storage.open import open_store
from gpudiag.storage.store import Store

log = logging.getLogger(__name__)
_FATAL_AT_START = (StoreBusyError, SchemaError, CorruptStoreError)  # a person must act; a full disk may pass
_RELOADED = ("agent.interval", "agent.log_level", "agent.log_burst", "rules.enabled", "rules.paths")


def run(load: Callable[[], Config], environ: Mapping[str, str] = os.environ) -> None:
    """Run the service until it is told to stop. `load` reads the configuration, now and at each reload."""
    clock = SystemClock()
    config = load()
    limit = logs.configure(
        config.agent.log_level, config.agent.log_burst, clock.monotonic, "JOURNAL_STREAM" in environ
    )
    agent = build(config, clock, environ, load, limit)
    gc.freeze()  # modules and configuration stay for good: no collection need look at them again
    gc.set_threshold(10_000, 20, 20)  # a tick makes thousands of objects, and hardly ever a cycle
    wakeup = Wakeup()
    with wakeup.listening():
        log.info("sampling every %g s into %s", agent.interval, database_url(config, environ))
        Daemon(agent, clock, Notifier(environ), wakeup.wait).run()
    log.info("stopped")


def build(
    config: Config,
    clock: Clock,
    environ: Mapping[str, str],
    load: Callable[[], Config],
    limit: logs.RateLimit,
) -> Agent:
    """The agent, ready to tick, its HTTP server listening.

    Raises `StoreError` when the database belongs to another agent, to a newer gpudiag or is none; `InputError`
    for bad rule files.
    """
    node = config.agent.node or socket.gethostname()
    judge = _judge(config, node)
    store = _open(config, node, environ)
    remembered = _remember(store, node, clock)
    if judge is not None and remembered.open_findings:
        judge = Continued(judge, remembered.open_findings, remembered.last_sample_ms)
    recorder = _recorder(config, node, clock, environ, store)
    runtime_dir = Path(config.agent.runtime_dir)
    with suppress(OSError):  # whoever needs it says so
        runtime_dir.mkdir(parents=True, exist_ok=True)
    sources = Sources(config, node, clock, runtime_dir, _state_dir(config, environ), remembered)
    interval = config.agent.interval
    sampler = Sampler(
        *(sources.collectors, recorder, clock, node, interval, sources.attributor, judge),
        on_devices=sources.learn_devices,
    )
    agent = Agent(sampler, recorder, clock, interval, lambda: _reread(config, load(), node, limit))
    forwarding = _forward(config, node, clock, environ)
    if forwarding is not None:
        agent.attach(forwarding)
    housekeeping = _keep_house(config, node, clock, environ)
    if housekeeping is not None:
        agent.attach(housekeeping)
    always: list[metrics.Extra] = [
        lambda _: health_metrics.repetitions(agent.failed_cycles, limit.suppressed)
    ]
    if sources.nvml is not None:
        always.append(driver(sources.nvml))
    if forwarding is not None:
        always.append(forwarding.families)
    if housekeeping is not None:
        always.append(housekeeping.families)
    _publish(config, node, agent, recorder, clock, always)
    _attach_control(agent, runtime_dir, operator_commands(sources.nvml))
    return agent


def _state_dir(config: Config, environ: Mapping[str, str]) -> Path | None:
    """Where small state files go: beside the database file."""
    url = database_url(config, environ)
    return Path(url.removeprefix("sqlite:///")).parent if url.startswith("sqlite:///") else None


def _attach_control(agent: Agent, folder: Path, commands: Mapping[str, Command]) -> None:
    """A user's own agent goes on without the control socket where it may not make one."""
    try:
        agent.attach(Control(folder, commands))
    except (OSError, GpudiagError) as error:
        log.warning("no control socket, `gpudiag agent release` will not work: %s", error)


def _reread(config: Config, new: Config, node: str, limit: logs.RateLimit) -> Changes:
    """What a changed configuration changes without a restart; the log names the keys that need one."""
    fixed = [item.path for item in configfile.changed(config, new) if item.path not in _RELOADED]
    if fixed:
        log.warning("changed, but only a restart takes it over: %s", ", ".join(fixed))
    judge = _judge(new, node)
    logs.adjust(new.agent.log_level, new.agent.log_burst, limit)
    return Changes(new.agent.interval, judge)


def database_url(config: Config, environ: Mapping[str, str]) -> str:
    """The configured database, else the service's state directory, else the default of everyone."""
    if config.storage.url:
        return config.storage.url
    state = environ.get("STATE_DIRECTORY", "").split(":")[0]
    return url_of(Path(state) / "gpudiag.db") if state else default_url(environ)


def _judge(config: Config, node: str) -> Judge | None:
    if not config.rules.enabled:
        return None
    from gpudiag.agent.live import LiveJudge  # numpy and the rules only where they are wanted
    from gpudiag.rules import loader

    return LiveJudge(loader.load([Path(path) for path in config.rules.paths]), node)


def _open(config: Config, node: str, environ: Mapping[str, str]) -> Store | None:
    try:
        return open_store(database_url(config, environ), node=node, agent=True)
    except _FATAL_AT_START:
        raise
    except StoreError as error:
        log.error("the database cannot be opened, samples are kept in memory: %s", error)
        return None


def _remember(store: Store | None, node: str, clock: Clock) -> Remembered:
    if store is None:
        return Remembered()
    try:
        return remember(store, node, clock.now_ms())
    except StoreError as error:
        log.error("what was before cannot be read from the database: %s", error)
        return Remembered()


def _recorder(
    config: Config, node: str, clock: Clock, environ: Mapping[str, str], store: Store | None
) -> Recorder:
    url = database_url(config, environ)

    def open_again() -> Store:
        return open_store(url, node=node, agent=True)

    return Recorder(open_again, node, clock, config.agent.flush, config.storage.ring, store)


def _forward(config: Config, node: str, clock: Clock, environ: Mapping[str, str]) -> Forwarding | None:
    if not sink_url(config.forward, environ):
        return None
    from gpudiag.storage.forward import Forwarder  # the driver of PostgreSQL only where it is wanted

    local, interval = database_url(config, environ), config.forward.interval

    def sink() -> str:
        return sink_url(config.forward, environ)

    return Forwarding(lambda: Forwarder(local, sink, node, clock, interval=interval))


def _keep_house(config: Config, node: str, clock: Clock, environ: Mapping[str, str]) -> Housekeeping | None:
    url = database_url(config, environ)
    if not url.startswith("sqlite:"):
        return None
    from gpudiag.storage.forward import sink_name

    sink = sink_url(config.forward, environ)
    return Housekeeping(
        lambda: open_store(url, node=node, seal=False),
        policy(config.storage),
        clock,
        sink_name(sink) if sink else "",
    )


def _publish(
    config: Config,
    node: str,
    agent: Agent,
    recorder: Recorder,
    clock: Clock,
    always: list[metrics.Extra],
) -> None:
    """Show the latest tick on /metrics, and export it where that is configured."""
    collector = metrics.SnapshotCollector(
        lambda: agent.sampler.snapshot,
        lambda: recorder.state,
        clock.monotonic,
        lambda: agent.stale_after,
        fresh=[compat.dcgm(node)] if config.metrics.compat == "dcgm" else [],
        always=always,
    )
    if config.otel.endpoint:
        from gpudiag.agent.otel import Export  # an extra, and dear

        export = Export(config.otel, node, collector.collect)
        always.append(export.families)
        agent.attach(export)
    if config.metrics.enabled:
        agent.attach(_serve(config.metrics, agent, collector))


def _serve(section: MetricsSection, agent: Agent, collector: metrics.SnapshotCollector) -> http.Server:
    tls = http.tls_context(section.tls_cert, section.tls_key) if section.tls_cert else None
    users = Users.read(Path(section.users_file)) if section.users_file else None
    endpoints = http.Endpoints(metrics.registry(collector), agent.alive, agent.ready)
    server = http.Server(section.listen, endpoints, section.max_scrapes, tls, users)
    scheme = "https" if tls is not None else "http"
    log.info("serving %s://%s/metrics", scheme, Address(section.listen.host, server.port))
    return server
