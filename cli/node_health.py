"""Is this node fit for the next job? What counts as a warning and what as critical, for `gpudiag check`.

Thresholds: 512 uncorrectable row remaps and 63 retired pages are DCGM's own limits; the recovery action is what the
driver itself asks for; Xids weigh what the catalogue (`agent/xid_catalogue.yaml` and a site's own) says to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpudiag.cli.node_view import Gpu, NodeView, OpenFinding
from gpudiag.message import Message

if TYPE_CHECKING:
    from gpudiag.agent.xid import Xid

Level = Literal["ok", "warning", "critical"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")
_NEEDS_OPERATOR = ("reset_gpu", "reboot_node", "drain_node")
_RECOVERY = {
    1: Message("a reset"),
    2: Message("a reboot"),
    3: Message("to be drained"),
    4: Message("to be drained and reset"),
}
_HEALTH_RULES = ("health/", "clocks/")
_EVENT_AGE_MS = 24 * 3_600_000
_SLOWED = {
    0x8: Message("hardware slowdown"),
    0x40: Message("hardware thermal slowdown"),
    0x80: Message("external power brake"),
}


@dataclass(frozen=True)
class Expected:
    """What the site expects: number of GPUs (0: any), GPUs without processes, an agent that runs."""

    gpus: int = 0
    idle: bool = False
    agent: bool = False


@dataclass(frozen=True)
class Complaint:
    """One thing that is not well."""

    level: Level
    what: Message
    uuid: str = ""


def complaints(
    view: NodeView, expected: Expected = Expected(), xids: Mapping[int, Xid] | None = None
) -> list[Complaint]:
    """Everything that is not well, the worst first; `xids` is the catalogue, by default the built-in one."""
    found = [*_node(view, expected)]
    for gpu in view.gpus:
        found += _gpu(gpu)
    found += _events(view, xids)
    found += _findings(view)
    if expected.idle:
        found += _busy(view)
    return sorted(dict.fromkeys(found), key=lambda complaint: -LEVELS.index(complaint.level))


def worst(found: list[Complaint]) -> Level:
    """The level of the whole node."""
    return found[0].level if found else "ok"


def _node(view: NodeView, expected: Expected) -> Iterator[Complaint]:
    if view.trouble:
        yield Complaint("critical", view.trouble)
    if view.unknown:
        yield Complaint("warning", view.unknown)
        return
    for uuid, reason in view.lost.items():
        yield Complaint("critical", Message("GPU lost: {reason}", reason=Message(reason)), uuid)
    answering = sum(1 for gpu in view.gpus if gpu.values and not gpu.uuid.startswith("MIG-"))
    if expected.gpus and answering < expected.gpus:
        text = Message(
            "{answering} of {expected} GPUs answer", answering=str(answering), expected=str(expected.gpus)
        )
        yield Complaint("critical", text)
    if expected.agent and view.seen_by != "agent":
        yield Complaint("warning", Message("no agent runs"))


def _gpu(gpu: Gpu) -> Iterator[Complaint]:
    values = gpu.values
    action = int(values.get("recovery_action", 0))
    if action:
        needs = _RECOVERY.get(action) or Message("recovery action {number}", number=str(action))
        yield Complaint("critical", Message("the driver says the GPU needs {what}", what=needs), gpu.uuid)
    if values.get("remap_failed"):
        yield Complaint("critical", Message("a row remap failed: memory is damaged for good"), gpu.uuid)
    if values.get("remapped_rows_uncorrected_total", 0) >= 512:
        yield Complaint("critical", Message("512 or more rows remapped after uncorrectable errors"), gpu.uuid)
    if values.get("retired_pages_total", 0) >= 63:
        yield Complaint("critical", Message("63 or more memory pages retired"), gpu.uuid)
    if values.get("remap_pending"):
        yield Complaint("warning", Message("a row remap waits for a reset"), gpu.uuid)
    if errors := values.get("ecc_uncorrected_total", 0):
        text = Message("{count} uncorrected ECC errors since driver load", count=f"{errors:.0f}")
        yield Complaint("warning", text, gpu.uuid)
    reasons = int(values.get("clock_event_reasons", 0))
    for bit, what in _SLOWED.items():
        if reasons & bit:
            yield Complaint("warning", Message("clocks held down now: {what}", what=what), gpu.uuid)


def _events(view: NodeView, xids: Mapping[int, Xid] | None) -> Iterator[Complaint]:
    """Xids of the last day: critical when an operator must act, a warning when hardware or a link is to blame."""
    recent = [
        event for event in view.events
        if event.kind == "xid" and view.time_ms - event.time_ms <= _EVENT_AGE_MS
    ]  # fmt: skip
    if not recent:
        return
    from gpudiag.agent.xid import Xid, load_catalogue  # YAML only where there is an Xid

    catalogue = load_catalogue() if xids is None else xids
    for event in recent:
        xid = catalogue.get(event.code, Xid(event.code))
        told = Message("Xid {code} within a day: {name}", code=str(event.code), name=xid.name)
        if xid.action in _NEEDS_OPERATOR:
            yield Complaint("critical", told, event.uuid)
        elif xid.kind in ("hardware", "link"):
            yield Complaint("warning", told, event.uuid)


def _findings(view: NodeView) -> Iterator[Complaint]:
    for uuid, findings in [("", view.findings), *((gpu.uuid, gpu.findings) for gpu in view.gpus)]:
        for finding in findings:
            if finding.rule.startswith(_HEALTH_RULES) and finding.severity in ("warning", "critical"):
                yield Complaint(_level(finding), Message(finding.rule), uuid)


def _level(finding: OpenFinding) -> Level:
    return "critical" if finding.severity == "critical" else "warning"


def _busy(view: NodeView) -> Iterator[Complaint]:
    for gpu in view.gpus:
        count = view.processes.get(gpu.uuid, 0)
        if count:
            text = Message("{count} processes are left on the GPU", count=str(count))
            yield Complaint("warning", text, gpu.uuid)
