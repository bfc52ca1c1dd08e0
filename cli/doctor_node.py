"""What can be sampled on this node, what cannot, and why: driver, host, jobs, store, rules."""

from __future__ import annotations

import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.agent.collectors import NothingToCollect, host_collectors
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.config import Config, StorageSection
from gpudiag.cli.doctor_item import Item
from gpudiag.cli.node_source import Answer, Driver, ask_agent, from_agent, node_name, open_own_store, said
from gpudiag.cli.node_view import NodeView
from gpudiag.cli.render.units import duration, quantity
from gpudiag.errors import GpudiagError
from gpudiag.message import Message, joined
from gpudiag.storage.catalog import GPU_METRICS, Metric

if TYPE_CHECKING:
    from gpudiag.storage.store import Reader

_SKEW_MS = 5000
_TWO_READINGS = 0.15  # seconds between them: rates and GPM compare two, and GPM refreshes every 0.1 s
_DAY_MS = 86_400_000
_NOT_FROM_DRIVER = ("torch_", "processes")
_PROFILING = Message("needs GPM (Hopper and newer) or DCGM")
_NO_NVLINK = Message("no NVLink, or a driver that does not count it")
_NO_ECC = Message("no ECC memory, or ECC is off")
_GENERATION = {
    "sm_active_ratio": _PROFILING,
    "sm_occupancy_ratio": _PROFILING,
    "tensor_active_ratio": _PROFILING,
    "dram_active_ratio": _PROFILING,
    "graphics_active_ratio": _PROFILING,
    "fp64_active_ratio": _PROFILING,
    "fp32_active_ratio": _PROFILING,
    "fp16_active_ratio": _PROFILING,
    "memory_temperature_celsius": Message("boards with GDDR memory have no such sensor"),
    "retired_pages_total": Message("only before Ampere, which remaps rows instead"),
    "remap_pending": Message("only Ampere and newer data-centre GPUs remap rows"),
    "nvlink_rx_bytes_per_second": _NO_NVLINK,
    "nvlink_tx_bytes_per_second": _NO_NVLINK,
    "ecc_corrected_total": _NO_ECC,
    "ecc_uncorrected_total": _NO_ECC,
}
_SLOW_CALL_S = 0.1


class Doctor:
    """Looks at everything once; `items` in the order in which they are told."""

    def __init__(
        self, config: Config, environ: Mapping[str, str], now_ms: int, patience: float = 10.0
    ) -> None:
        self._config = config
        self._environ = environ
        self._now_ms = now_ms
        self._patience = patience
        self._measured: set[tuple[str, str]] = set()

    def items(self) -> Iterator[Item]:
        view = yield from self._gpus()
        yield from self._metrics(view)
        yield from self._host()
        yield from self._dcgm()
        yield from self._jobs()
        yield from self._store()
        yield from self._rules()

    def _gpus(self) -> Generator[Item, None, NodeView]:
        """Agent and driver."""
        answer = ask_agent(self._config, "/healthz")
        if answer.runs:
            return (yield from self._agent(answer))
        remedy = Message("gpudiag agent, or systemctl start gpudiag-agent")
        yield Item(
            "agent", "agent", "missing", Message("does not run ({reason})", reason=answer.refused), remedy
        )
        driver = Driver(self._config, node_name(self._config))
        try:
            view = driver.settle(self._patience)
            if any(gpu.values for gpu in view.gpus):
                time.sleep(_TWO_READINGS)
                view = driver.settle(self._patience)
            if not view.gpus and not view.trouble:
                yield Item("driver", "driver", "missing", Message("no GPU: {reason}", reason=driver.reason))
            yield from _driver_items(view)
            if driver.nvml:
                yield from _slowness(*driver.nvml.status.slowest)
            if driver.nvml and driver.nvml.status.events:
                yield Item("driver", "Xid events", "missing", Message(driver.nvml.status.events))
            return view
        finally:
            driver.close()

    def _agent(self, answer: Answer) -> Generator[Item, None, NodeView]:
        told = Message("runs: {answer}", answer=answer.body.strip() or str(answer.status))
        yield Item("agent", "agent", "ok" if answer.status == 200 else "problem", told)
        view = from_agent(self._config)
        if view is None:
            reason = Message("cannot be read: a password is set, or the agent has just started")
            yield Item("agent", "/metrics", "problem", reason)
            return NodeView(self._now_ms, "agent")
        age = (self._now_ms - view.time_ms) / 1000
        if age > 60:
            text = Message("{age} ago: the sampling loop stands still", age=duration(age))
            yield Item("agent", "last tick", "problem", text)
        yield from _driver_items(view)
        return view

    def _metrics(self, view: NodeView) -> Iterator[Item]:
        """Each metric of the catalog that the driver could give: on all GPUs, on some, on none and why."""
        gpus = [gpu for gpu in view.gpus if gpu.values]
        if not gpus:
            return
        measured = []
        for metric in GPU_METRICS:
            if metric.name.startswith(_NOT_FROM_DRIVER):
                continue
            have = [gpu for gpu in gpus if metric.name in gpu.values]
            if have:
                measured.append(metric.name)
                self._measured.add(("gpu", metric.name))
            if len(have) < len(gpus):
                reasons = {why(metric, view.absent.get(gpu.uuid, {})) for gpu in gpus if gpu not in have}
                text = joined(sorted(reasons), "{one}; {other}")
                if have:
                    only = "only on {count} of {all} GPUs; {reason}"
                    text = Message(only, count=str(len(have)), all=str(len(gpus)), reason=text)
                yield Item("gpu metrics", metric.name, "missing", text)
        found = Message("{count}: {names}", count=str(len(measured)), names=", ".join(measured))
        yield Item("gpu metrics", "measured", "ok", found)

    def _host(self) -> Iterator[Item]:
        if not self._config.sources.host:
            yield Item("host", "host", "missing", Message("sources.host is false"))
            return
        from gpudiag.agent.clock import SystemClock

        collectors = host_collectors(self._config.agent.root, node_name(self._config), SystemClock())
        for collector in collectors:
            yield self._collected(collector)
            collector.close()

    def _collected(self, collector: Any) -> Item:
        """One collector, read twice because rates need two readings."""
        names: set[str] = set()
        try:
            for wait in (0.1, 0.0):
                for frame in collector.collect(time.time_ns() // 1_000_000):
                    names |= set(getattr(frame, "values", ()))
                time.sleep(wait)
        except NothingToCollect as nothing:
            reason = said(nothing) or Message("nothing to collect here")
            return Item("host", collector.name, "missing", reason)
        except Exception as error:  # noqa: BLE001 - a collector may raise anything, the others still count
            return Item("host", collector.name, "problem", Message(f"{type(error).__name__}: {error}"))
        self._measured |= {("node", name) for name in names}
        return Item("host", collector.name, "ok", Message(", ".join(sorted(names))))

    def _dcgm(self) -> Iterator[Item]:
        url = self._config.sources.dcgm_exporter
        if not url:
            text = Message("not configured ([sources] dcgm_exporter)")
            yield Item("dcgm", "dcgm-exporter", "missing", text)
            return
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                exposition = answer.read().decode("utf-8", "replace")
        except (OSError, urllib.error.URLError) as error:
            yield Item("dcgm", "dcgm-exporter", "problem", Message(f"{url}: {error}"))
            return
        if re.search(r"^DCGM_FI_PROF_SM_(ACTIVE|UTIL_RATIO)\{", exposition, re.MULTILINE):
            yield Item("dcgm", "SM activity", "ok", Message("{url} exports it", url=url))
        else:
            yield Item(
                "dcgm", "SM activity", "missing", Message("{url} does not export field 1002", url=url),
                Message("add it to the exporter's counters; when it is there, profiling is paused: dcgmi profile --resume"),
            )  # fmt: skip

    def _jobs(self) -> Iterator[Item]:
        if not self._config.sources.jobs:
            yield Item("jobs", "jobs", "missing", Message("sources.jobs is false"))
            return
        root = HostRoot.at(self._config.agent.root)
        yield _cgroups(root)
        yield _environ(root)
        hooks = Path(self._config.agent.runtime_dir) / "jobs.d"
        if hooks.is_dir():
            count = str(len(list(hooks.glob("*.json"))))
            yield Item(
                "jobs", "hook files", "ok", Message("{path}, {count} jobs", path=str(hooks), count=count)
            )
        else:
            absent = Message("{path} is not there", path=str(hooks))
            remedy = Message("gpudiag job start in the Prolog makes it")
            yield Item("jobs", "hook files", "missing", absent, remedy)
        yield _program("scontrol", Message("Slurm's commands are not here"))
        yield _program("sacct", Message("not needed: it would tell old ends"))
        remedy = Message("Xid and out-of-memory kills come from it; CAP_SYSLOG")
        yield _readable(root.path("dev/kmsg"), "kernel log", remedy)

    def _store(self) -> Iterator[Item]:
        from gpudiag.agent.main import database_url

        url = database_url(self._config, self._environ)
        try:
            reader = open_own_store(self._config, self._environ)
        except GpudiagError as error:
            yield Item("store", "database", "problem", Message(f"{url}: {error}"))
            return
        try:
            yield Item("store", "database", "ok", Message(url))
            yield from _space(url)
            yield _retention(self._config.storage)
            yield from _freshness(reader, node_name(self._config), self._now_ms)
        except GpudiagError as error:
            yield Item("store", "database", "problem", Message(str(error)))
        finally:
            reader.close()

    def _rules(self) -> Iterator[Item]:
        from gpudiag.rules.loader import load

        try:
            rules = load([Path(path) for path in self._config.rules.paths])
        except GpudiagError as error:
            yield Item("rules", "rule files", "problem", Message(str(error)))
            return
        lacking = {rule.id: [group for group in rule.requires if not self._has(group)] for rule in rules}
        for rule, groups in sorted(lacking.items()):
            if groups:
                wanted = [
                    joined([Message(name) for _, name in group], "{one} or {other}") for group in groups
                ]
                names = joined(wanted, "{one}, {other}")
                yield Item(
                    "rules", rule, "missing", Message("cannot be judged here without {names}", names=names)
                )
        able = str(sum(1 for groups in lacking.values() if not groups))
        told = "{able} of {all} can be judged with what is measured here"
        yield Item("rules", "rules", "ok", Message(told, able=able, all=str(len(rules))))

    def _has(self, group: Iterable[tuple[str, str]]) -> bool:
        # what a job's own cgroup and processes give is only known while a job runs
        return any(scope == "job" or (scope, name) in self._measured for scope, name in group)


def _slowness(call: str, seconds: float) -> Iterator[Item]:
    """A call that takes a tenth of a sampling interval is one that a busy driver makes too late."""
    if seconds >= _SLOW_CALL_S:
        told = "slow: {call} took {milliseconds} ms; samples come late, or not at all"
        text = Message(told, call=call, milliseconds=f"{1000 * seconds:.0f}")
        yield Item(
            "driver", "speed", "problem", text, Message("is another tool asking the driver all the time?")
        )


def _driver_items(view: NodeView) -> Iterator[Item]:
    if view.trouble:
        yield Item("driver", "driver", "problem", view.trouble, Message("dmesg | grep -i nvrm"))
    if view.unknown:
        yield Item("driver", "driver", "problem", view.unknown)
    if view.gpus:
        models = ", ".join(sorted({gpu.model for gpu in view.gpus if gpu.model}))
        told = "{count} devices: {models}; driver {version}" if view.driver else "{count} devices: {models}"
        text = Message(told, count=str(len(view.gpus)), models=models, version=view.driver)
        yield Item("driver", "devices", "ok", text)
    for uuid, reason in view.lost.items():
        lost = Message("lost: {reason}", reason=Message(reason))
        yield Item("driver", uuid, "problem", lost, Message("reset it, or reboot the node"))


def why(metric: Metric, absent: Mapping[str, str]) -> Message:
    """Why the driver does not give a metric: its own answer where there is one, else what is known of the generations."""
    wanted = {token.strip() for token in re.split(r",", metric.field)}
    numbers = {
        f"field {number}"
        for token in wanted
        if token.startswith("NVML ")
        for number in re.findall(r"\d+", token)
    }
    for entry, reason in sorted(absent.items()):
        called = entry.partition("(")[0]
        gpm = any(token.startswith("GPM") for token in wanted) and called.startswith("nvmlGpm")
        if gpm or called in wanted or called in numbers or any(token.startswith(called) for token in wanted):
            known = _GENERATION.get(metric.name)
            told = Message(f"{entry}: {reason}")
            return Message("{reason} ({known})", reason=told, known=known) if known else told
    return _GENERATION.get(metric.name) or Message("the driver gives no value")


def _cgroups(root: HostRoot) -> Item:
    if root.exists("sys/fs/cgroup/cgroup.controllers"):
        return Item("jobs", "cgroups", "ok", Message("version 2"))
    if root.exists("sys/fs/cgroup/unified/cgroup.controllers"):
        return Item("jobs", "cgroups", "ok", Message("version 1 with a unified tree (hybrid)"))
    if root.names("sys/fs/cgroup"):
        return Item("jobs", "cgroups", "ok", Message("version 1; pressure of a job needs version 2"))
    nothing = Message("nothing is mounted at /sys/fs/cgroup")
    return Item("jobs", "cgroups", "problem", nothing, Message("mount it into the container"))


def _environ(root: HostRoot) -> Item:
    """The environment of somebody else's process: init's is always there to try."""
    remedy = Message(
        "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, a drop-in of the unit; cgroups and hooks do without"
    )
    return _readable(root.path("proc/1/environ"), "environments", remedy)


def _program(name: str, otherwise: Message) -> Item:
    found = shutil.which(name)
    return Item("jobs", name, "ok", Message(found)) if found else Item("jobs", name, "missing", otherwise)


def _readable(path: str, name: str, remedy: Message) -> Item:
    try:
        with open(path, "rb"):
            return Item("jobs", name, "ok", Message("{path} can be read", path=path))
    except OSError as error:
        return Item("jobs", name, "missing", Message(f"{path}: {error.strerror}"), remedy)


def _space(url: str) -> Iterator[Item]:
    if not url.startswith("sqlite:///"):
        return
    path = Path(url.removeprefix("sqlite:///"))
    files = [path, path.with_name(path.name + "-wal")]
    size = sum(file.stat().st_size for file in files if file.exists())
    free = shutil.disk_usage(path.parent).free
    told = "{used} used, {free} free"
    text = Message(told, used=quantity(size, "bytes"), free=quantity(free, "bytes"))
    yield Item("store", "space", "problem" if free < 1 << 30 else "ok", text)
    if not os.access(path, os.W_OK):
        text = Message("{path} cannot be written by this user: reports only", path=str(path))
        yield Item("store", "permission", "missing", text)


def _retention(storage: StorageSection) -> Item:
    """How long what is kept: a job older than that has its frozen report and no samples."""
    days = {
        name: f"{seconds / 86400:g}"
        for name, seconds in (
            ("samples", storage.keep_samples),
            ("minutes", storage.keep_minutes),
            ("jobs", storage.keep_jobs),
        )
    }
    text = Message("samples {samples} days, per-minute means {minutes} days, jobs {jobs} days", **days)
    if storage.max_size:
        text = Message("{kept}, at most {size}", kept=text, size=quantity(storage.max_size, "bytes"))
    return Item("store", "retention", "ok", text)


def _freshness(reader: Reader, node: str, now_ms: int) -> Iterator[Item]:
    """When the newest sample of this node is from, and clocks that disagree."""
    newest = newest_sample(reader, node, now_ms - 30 * _DAY_MS, now_ms + _DAY_MS)
    if newest is None:
        yield Item(
            "store", "newest sample", "missing", Message("none of node {node} within 30 days", node=node)
        )
    elif newest > now_ms + _SKEW_MS:
        ahead = Message("samples are {length} in the future", length=duration((newest - now_ms) / 1000))
        yield Item("store", "clock", "problem", ahead, Message("check NTP on node and reader"))
    else:
        age = duration(max(0, now_ms - newest) / 1000)
        yield Item("store", "newest sample", "ok", Message("{age} old", age=age))


def newest_sample(reader: Reader, node: str, start_ms: int, end_ms: int) -> int | None:
    """About when (to a second) the latest sample of a node in a stretch was, without reading any; None: there is none."""

    def any_in(low: int, high: int) -> bool:
        return any(source.node == node for source in reader.sources(low, high))

    if not any_in(start_ms, end_ms):
        return None
    while end_ms - start_ms > 1000:
        middle = (start_ms + end_ms) // 2
        if any_in(middle, end_ms):
            start_ms = middle
        else:
            end_ms = middle
    return start_ms
