"""Out-of-memory messages put together to events: ranks, layers and retries tell the same one again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from gpudiag.rules.oom_message import Kind, OomMessage

EVENTS_KEPT = 10_000
_NEARBY_LINES = 200  # layers and ranks that tell one event do so within as many lines of each other
_RETRY_SHARE = 0.8  # allocators ask again for a little less, nine tenths in TensorFlow's case
_FAMILIES: Mapping[Kind, str] = {
    "host_oom": "kill", "cgroup_oom": "kill", "oom_killed": "kill", "worker_died": "kill", "shared_memory_full": "kill",
    "host_allocation": "host", "kernel_resources": "kernel",
}  # fmt: skip
# How much a kind says about the cause; of two messages of one event the surer one names it.
_SURENESS: Mapping[Kind, int] = {
    "unknown": 0, "worker_died": 0, "oom_killed": 1, "outside_allocator": 1, "library_memory": 1, "pool_exhausted": 2,
    "shared_memory_full": 3, "host_oom": 4, "cgroup_oom": 4,
}  # fmt: skip
_FACTS = tuple(one.name for one in fields(OomMessage) if one.name not in ("kind", "text_line", "told"))


@dataclass
class _Event:
    message: OomMessage
    last_line: int
    last_request: int | None


class OomEvents:
    """Takes messages in the order of the log; at most `EVENTS_KEPT` different events are kept."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._same: dict[OomMessage, _Event] = {}
        self._latest: dict[str, _Event] = {}

    def add(self, message: OomMessage, line: int) -> None:
        """A message that starts in a line."""
        family = _FAMILIES.get(message.kind, "device")
        event = self._same.get(message)
        latest = self._latest.get(family)
        if event is None and latest is not None and line - latest.last_line <= _NEARBY_LINES:
            event = latest if _is_same(latest, message) else None
        if event is None:
            self._append(_Event(replace(message, text_line=line), line, message.requested_bytes), family)
            if len(self._same) < EVENTS_KEPT:
                self._same[message] = self._events[-1]
            return
        event.message = _together(event.message, message)
        event.last_line, event.last_request = line, message.requested_bytes

    def _append(self, event: _Event, family: str) -> None:
        if len(self._events) < EVENTS_KEPT:
            self._events.append(event)
        self._latest[family] = event

    def messages(self) -> list[OomMessage]:
        """The events, in the order of their first lines."""
        return sorted((event.message for event in self._events), key=lambda message: message.text_line)


def _is_same(event: _Event, message: OomMessage) -> bool:
    """Whether a message close to an event tells it again, or tells more of it."""
    known = event.message
    if known.device is not None and message.device is not None and known.device != message.device:
        return False
    if known.victim_pid is not None and known.victim_pid == message.victim_pid:
        return True
    if _is_weak(known) or _is_weak(message):
        return True
    asked, asks = event.last_request, message.requested_bytes
    retried = asked is not None and asks is not None and _RETRY_SHARE * asked <= asks < asked
    return known.kind == message.kind == "outside_allocator" and retried


def _is_weak(message: OomMessage) -> bool:
    """A message that could tell any event of its family."""
    told = (name for name in _FACTS if name != "device" and getattr(message, name) is not None)
    return message.kind in ("worker_died", "oom_killed") or not any(told)


def _together(first: OomMessage, second: OomMessage) -> OomMessage:
    """What both say, the first where they differ; but the surer one's kind.

    A data loader knows its worker by the pid of its own container, which is not the kernel's: with a surer kind it goes.
    """
    surer = _SURENESS.get(second.kind, 3) > _SURENESS.get(first.kind, 3)
    main, other = (second, first) if surer else (first, second)
    if other.kind == "worker_died" != main.kind:
        other = replace(other, victim_pid=None)
    facts = {name: getattr(other, name) for name in _FACTS if getattr(main, name) is None}
    return replace(main, **facts, text_line=first.text_line, told=first.told + 1)
