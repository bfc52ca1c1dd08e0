"""Xids: what each means (a data file that a site may override), and which reports of one are the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpudiag.agent.collectors import Collector
from gpudiag.errors import InputError
from gpudiag.storage.job import Device, Event
from gpudiag.storage.sample import Frame

CATALOGUE = Path(__file__).with_name("xid_catalogue.yaml")
CLASSES = ("application", "hardware", "driver", "link", "echo", "info")
ACTIONS = (
    "none", "restart_job", "check_job", "reset_gpu", "reboot_node", "drain_node", "contact_support", "check_link",
)  # fmt: skip
ONE_EPISODE_MS = 60_000
_UNKNOWN_NAME = "Not in the catalogue"


@dataclass(frozen=True)
class Xid:
    """`kind` is a name of `CLASSES`, `action` one of `ACTIONS`; `repeat`: so many in 24 h accuse the hardware."""

    code: int
    name: str = _UNKNOWN_NAME
    kind: str = "driver"
    action: str = "contact_support"
    repeat: int | None = None

    @property
    def is_fatal(self) -> bool:
        """Whether the GPU stays useless until it is reset or repaired."""
        needs_reset = self.action in ("reset_gpu", "reboot_node", "drain_node")
        return needs_reset or (self.kind == "hardware" and self.action == "contact_support")


def load_catalogue(override: Path | None = None) -> dict[int, Xid]:
    """The built-in catalogue with a site's file over it. Raises `InputError` that names the file and the entry."""
    catalogue = dict(_built_in())
    if override is not None:
        for code, entry in _read(override).items():
            catalogue[code] = _merge(override, catalogue.get(code, Xid(code)), entry)
    return catalogue


@cache
def _built_in() -> Mapping[int, Xid]:
    return {code: _merge(CATALOGUE, Xid(code), entry) for code, entry in _read(CATALOGUE).items()}


def _read(path: Path) -> Mapping[int, Mapping[str, Any]]:
    try:
        body = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        line = f":{place.line + 1}:{place.column + 1}" if place is not None else ""
        raise InputError(f"{path}{line}: no YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(body, dict) or body.get("gpudiag_xids") != 1 or not isinstance(body.get("xids"), dict):
        raise InputError(f"{path}: expected `gpudiag_xids: 1` and `xids:` with one entry per code")
    for code, entry in body["xids"].items():
        if not isinstance(code, int) or not isinstance(entry, dict):
            raise InputError(f"{path}: xids: {code!r}: expected a number and a mapping")
    entries: Mapping[int, Mapping[str, Any]] = body["xids"]
    return entries


def _merge(path: Path, base: Xid, entry: Mapping[str, Any]) -> Xid:
    where = f"{path}: xids: {base.code}"
    unknown = set(entry) - {"name", "class", "action", "repeat"}
    if unknown:
        raise InputError(f"{where}: unknown key {min(unknown)!r}; known are name, class, action, repeat")
    if entry.get("class", base.kind) not in CLASSES:
        raise InputError(f"{where}: class {entry['class']!r}: expected one of {', '.join(CLASSES)}")
    if entry.get("action", base.action) not in ACTIONS:
        raise InputError(f"{where}: action {entry['action']!r}: expected one of {', '.join(ACTIONS)}")
    repeat = entry.get("repeat", base.repeat)
    if repeat is not None and (not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1):
        raise InputError(f"{where}: repeat {repeat!r}: expected a number of 1 or more")
    return Xid(
        base.code,
        str(entry.get("name", base.name)),
        str(entry.get("class", base.kind)),
        str(entry.get("action", base.action)),
        repeat,
    )


class XidReports:
    """Makes one event out of what the kernel log, NVML and DCGM say about the same Xid, and adds what it means.

    Within a minute of an Xid on a GPU, reports of it from other places are the same; the same place may report
    it again.
    """

    def __init__(self, catalogue: Mapping[int, Xid]) -> None:
        self._catalogue = catalogue
        self._seen: dict[tuple[str, int], tuple[str, int]] = {}

    def admit(self, events: Iterable[Event]) -> list[Event]:
        """The events without such doubles; other kinds pass as they are."""
        return [
            self._explained(event) if event.kind == "xid" else event
            for event in events
            if event.kind != "xid" or self._is_new(event)
        ]

    def _is_new(self, event: Event) -> bool:
        key = (event.source.device, event.code)
        origin = str(event.detail.get("known_from", "nvml"))
        first = self._seen.get(key)
        if first is not None and abs(event.time_ms - first[1]) < ONE_EPISODE_MS:
            return origin == first[0]
        if len(self._seen) > 10_000:
            self._seen.clear()
        self._seen[key] = (origin, event.time_ms)
        return True

    def _explained(self, event: Event) -> Event:
        xid = self._catalogue.get(event.code, Xid(event.code))
        kind, action = xid.kind, xid.action
        if event.detail.get("fatal") is False and kind == "link":
            kind, action = "info", "none"  # NVLink 5 marks most of its reports itself as not fatal
        return replace(event, detail={"name": xid.name, "class": kind, "action": action, **event.detail})


class WithXids:
    """A collector whose Xids go through the reports that all collectors share."""

    def __init__(self, collector: Collector, reports: XidReports) -> None:
        self._collector, self._reports = collector, reports
        self.name = collector.name

    @property
    def rejected(self) -> Mapping[str, int]:
        """What the collector itself did not believe."""
        rejected: Mapping[str, int] = getattr(self._collector, "rejected", {})
        return rejected

    def collect(self, now_ms: int) -> Iterable[Frame | Event | Device]:
        for item in self._collector.collect(now_ms):
            if isinstance(item, Event):
                yield from self._reports.admit([item])
            else:
                yield item

    def close(self) -> None:
        self._collector.close()
