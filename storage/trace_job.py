"""What a trace's job was: the optional `NAME.json`, in which every key is optional and unknown ones are ignored.

    {"job": {"id", "start", "end", "state", "tags", "nodes", "devices": [{"device", "node", "model", ...}],
             "origins": {device: {metric: origin}}},
     "events": [{"time", "node", "device", "kind", "code", "detail"}]}

Times are UNIX seconds or ISO 8601; attributes of a device are the fields of `Device`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpudiag.errors import InputError, LocatedError, Problem
from gpudiag.storage.job import Allocation, Device, Event, Job, Json
from gpudiag.storage.sample import JOB_PREFIX, NODE, Block, Source
from gpudiag.storage.storable import storable
from gpudiag.storage.store import Reader
from gpudiag.storage.trace_rows import is_name, number_of, parse_time

_TEXTS = ("key", "cluster", "raw_id", "name", "user", "state")
_DEVICE_FIELDS = {
    name: field.type
    for name, field in Device.__dataclass_fields__.items()
    if name not in ("source", "since_ms")
}
_MOST = 2**31 - 1  # what a column holds
_LONGEST_DAYS = 3660


@dataclass(frozen=True)
class Said:
    """The JSON file, checked; empty when there is none."""

    file: str = ""
    job: Mapping[str, Json] = field(default_factory=dict)
    events: Sequence[Mapping[str, Json]] = ()


def read(path: Path) -> Said:
    """The JSON beside a trace; raises `InputError` when it is there but wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return Said()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    try:
        document = storable(json.loads(text, parse_constant=lambda _: None))
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text else ""
        raise LocatedError([Problem(str(path), error.lineno, error.colno, error.msg, line)]) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
        raise InputError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f'{path}: expected an object such as {{"job": {{"id": "42"}}}}')
    said = Said(str(path), document.get("job", {}), document.get("events", ()))
    _check(said)
    return said


def _check(said: Said) -> None:
    _expect(said, "job", said.job, isinstance(said.job, dict), "an object")
    listed = isinstance(said.events, (list, tuple)) and all(isinstance(e, dict) for e in said.events)
    _expect(said, "events", said.events, listed, "a list of objects")
    job = said.job
    devices = job.get("devices", [])
    named = isinstance(devices, list) and all(
        isinstance(d, dict) and is_name(d.get("device")) for d in devices
    )
    _expect(said, "job.devices", devices, named, 'a list of objects with a "device" (UUID)')
    for name in ("tags", "nodes"):
        values = job.get(name, [])
        texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
        _expect(said, f"job.{name}", values, texts, "a list of texts")
    for name in _TEXTS:
        value = job.get(name, "")
        printable = isinstance(value, str) and (name != "key" or value.isprintable())
        _expect(said, f"job.{name}", value, printable, "a text")
    _expect(said, "job.id", job.get("id"), isinstance(job.get("id", ""), (str, int, type(None))), "a text")
    _expect(said, "job.meta", job.get("meta"), isinstance(job.get("meta"), (dict, type(None))), "an object")
    for name in ("exit_code", "restart"):
        _expect_whole(said, f"job.{name}", job.get(name))
    for number, entry in enumerate(devices):
        _check_device(said, f"job.devices[{number}]", entry)
    for number, entry in enumerate(said.events):
        _check_event(said, f"events[{number}]", entry)


def _check_device(said: Said, place: str, entry: Mapping[str, Json]) -> None:
    _expect_name(said, f"{place}.node", entry.get("node"))
    _expect_name(said, f"{place}.known_from", entry.get("known_from"))
    confidence = entry.get("confidence")
    likely = confidence is None or (_is_number(confidence) and 0 <= confidence <= 1)
    _expect(said, f"{place}.confidence", confidence, likely, "a number from 0 to 1")
    for name, kind in _DEVICE_FIELDS.items():
        value = entry.get(name)
        if kind == "str":
            _expect(said, f"{place}.{name}", value, isinstance(value, (str, type(None))), "a text")
        elif kind == "int | None":
            _expect_whole(said, f"{place}.{name}", value)
        else:
            _expect(said, f"{place}.{name}", value, value is None or _is_number(value), "a number")


def _check_event(said: Said, place: str, entry: Mapping[str, Json]) -> None:
    named = is_name(entry.get("kind")) and is_name(entry.get("node"))
    _expect(said, place, entry, named, "time, node, device and kind")
    _expect_name(said, f"{place}.device", entry.get("device"))
    _expect_whole(said, f"{place}.code", entry.get("code"), 2**63 - 1)
    _expect_whole(said, f"{place}.ordinal", entry.get("ordinal"))
    detail = entry.get("detail")
    _expect(said, f"{place}.detail", detail, isinstance(detail, (dict, type(None))), "an object")


def _expect(said: Said, place: str, value: Json, right: bool, what: str) -> None:
    if not right:
        raise InputError(f"{said.file}: {place}: expected {what}, not {json.dumps(value)[:80]}")


def _expect_name(said: Said, place: str, value: Json) -> None:
    _expect(said, place, value, value is None or value == "" or is_name(value), "a name")


def _expect_whole(said: Said, place: str, value: Json, most: int = _MOST) -> None:
    whole = value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= most)
    _expect(said, place, value, whole, f"a whole number up to {most}")


def _is_number(value: Json) -> bool:
    return not isinstance(value, str) and number_of(value) is not None


def refuse_endless(start_ms: int, end_ms: int, file: str) -> None:
    """Raise `InputError` for a job that lasts longer than a machine does: one of its times is wrong."""
    days = (end_ms - start_ms) / 86_400_000
    if days > _LONGEST_DAYS:
        raise InputError(
            f"{file}: a job of {days:.0f} days, {start_ms / 1000:.0f} to {end_ms / 1000:.0f} in UNIX seconds: "
            f"expected at most {_LONGEST_DAYS}; one of these times is wrong"
        )


def job_of(said: Said, path: Path, job_id: str, name: str, user: str, start_ms: int, end_ms: int) -> Job:
    """The job: what the JSON says, else all the time of the trace; `job_id` overrides its id."""
    own_id = "" if said.job.get("id") is None else str(said.job["id"])
    wanted = (job_id or own_id).strip()
    if not wanted or not wanted.isprintable() or "/" in wanted:
        raise InputError(f"--job {job_id!r}: expected the id to store this trace under, such as --job 42")
    first_ms = start_ms
    start_ms = _time(said, "job.start", said.job.get("start"), first_ms)
    last_ms = _time(said, "job.end", said.job.get("end"), end_ms)
    if last_ms < start_ms:
        raise InputError(f"{said.file}: job.end is before job.start")
    refuse_endless(min(start_ms, first_ms), max(last_ms, end_ms), said.file or str(path))
    running = said.job.get("state") == "running" and said.job.get("end") is None
    texts = {key: said.job[key] for key in _TEXTS if said.job.get(key)}
    key = texts.pop("key", "") if wanted == own_id else ""
    texts.setdefault("cluster", "import")
    texts.setdefault("raw_id", "" if key else wanted)
    texts.update({key: value for key, value in (("name", name), ("user", user)) if value})
    return Job(
        key=key or f"{texts['cluster']}/{wanted}/{start_ms // 1000}",
        id=wanted,
        start_ms=start_ms,
        end_ms=None if running else last_ms,
        exit_code=said.job.get("exit_code"),
        restart=said.job.get("restart") or 0,
        tags=tuple(said.job.get("tags", ())),
        meta=dict(said.job.get("meta") or {}),
        **texts,
    )


def _time(said: Said, name: str, given: Json, otherwise: int) -> int:
    if given is None:
        return otherwise
    time_ms = parse_time(given)
    if time_ms is None:
        raise InputError(f"{said.file}: {name}: expected UNIX seconds or ISO 8601")
    return time_ms


def renamed(block: Block, job: Job, said: Said) -> Block:
    """`job:<anything>` is this job's share of the node; origins as the JSON gives them."""
    origins = _object(_object(said.job.get("origins")).get(block.source.device))
    known = {name: str(origin) for name, origin in origins.items() if name in block.columns}
    source = block.source
    if source.scope == "job":
        source = Source(source.node, f"{JOB_PREFIX}{job.key}")
    return replace(block, source=source, origins=known)


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def devices_of(said: Said, job: Job, measured: Iterable[Source]) -> tuple[Device, ...]:
    """Attributes of the devices that the JSON describes."""
    found = []
    for entry in said.job.get("devices", ()):
        attributes = {name: entry[name] for name in _DEVICE_FIELDS if entry.get(name) is not None}
        if not attributes and "since" not in entry:  # a device that nobody described
            continue
        since_ms = _time(said, "devices.since", entry.get("since"), job.start_ms)
        found.append(Device(_source(said, entry, measured), since_ms, **attributes))
    return tuple(found)


def _source(said: Said, entry: Mapping[str, Json], measured: Iterable[Source]) -> Source:
    device = str(entry["device"])
    if entry.get("node"):
        return Source(str(entry["node"]), device)
    nodes = [source.node for source in measured if source.device == device]
    nodes += [str(node) for node in said.job.get("nodes", ())] + [source.node for source in measured]
    return Source(nodes[0], device)


def allocations_of(said: Said, job: Job, measured: Sequence[Source]) -> tuple[Allocation, ...]:
    """The devices listed in the JSON, else every GPU of the trace; a node without a GPU belongs as a node."""
    entries = said.job.get("devices") or [
        {"device": source.device, "node": source.node} for source in measured if source.scope == "gpu"
    ]
    found = [
        Allocation(
            job.key,
            _source(said, entry, measured),
            _time(said, "devices.start", entry.get("start"), job.start_ms),
            _end(said, entry, job.end_ms),
            str(entry.get("known_from") or "import"),
            1.0 if entry.get("confidence") is None else float(entry["confidence"]),
        )
        for entry in entries
    ]
    for allocation in found:
        if allocation.end_ms is not None and allocation.end_ms < allocation.start_ms:
            raise InputError(f"{said.file}: job.devices: {allocation.source.device} ends before it starts")
    nodes = {source.node for source in measured} - {allocation.source.node for allocation in found}
    found += [
        Allocation(job.key, Source(node, NODE), job.start_ms, job.end_ms, "import") for node in sorted(nodes)
    ]
    return tuple(found)


def _end(said: Said, entry: Mapping[str, Json], otherwise: int | None) -> int | None:
    """An allocation's own end, which is null while it is open, else the job's."""
    if entry.get("end") is None:
        return None if "end" in entry else otherwise
    return _time(said, "devices.end", entry["end"], 0)


def events_of(said: Said, job: Job) -> tuple[Event, ...]:
    """The events listed in the JSON; in what gpudiag wrote, those of other jobs on the node stay theirs."""
    own = f"{JOB_PREFIX}{said.job.get('id')}" if said.job.get("key") else ""
    found = []
    for number, entry in enumerate(said.events):
        time_ms = _time(said, f"events[{number}].time", entry.get("time"), job.start_ms)
        source = Source(str(entry["node"]), str(entry.get("device") or NODE))
        if source.scope == "job" and own in ("", source.device):
            source = Source(source.node, f"{JOB_PREFIX}{job.key}")
        code, ordinal = int(entry.get("code") or 0), int(entry.get("ordinal") or 0)
        found.append(Event(source, time_ms, str(entry["kind"]), code, ordinal, _object(entry.get("detail"))))
    return tuple(found)


def sources(job: Job, allocations: Sequence[Allocation], measured: Sequence[Source]) -> list[Source]:
    """What belongs into the job's trace: its devices, its nodes, and its own share of them."""
    nodes = {allocation.source.node for allocation in allocations}
    devices = {allocation.source for allocation in allocations}
    own = {Source(node, device) for node in nodes for device in (NODE, f"{JOB_PREFIX}{job.key}")}
    return sorted((devices | own) & set(measured))


def write(
    path: Path,
    reader: Reader,
    job: Job,
    allocations: Sequence[Allocation],
    measured: Sequence[Source],
    end_ms: int,
) -> None:
    """NAME.json: everything that `read` needs to give the same job back."""
    nodes = {source.node for source in measured} | {allocation.source.node for allocation in allocations}
    events = [e for e in reader.events(job.start_ms, end_ms) if e.source.node in nodes]
    document = {
        "schema_version": 1,
        "job": {
            **{name: value for name, value in vars(job).items() if not name.endswith("_ms")},
            "tags": list(job.tags),
            "meta": dict(job.meta),
            "start": job.start_ms / 1000,
            "end": None if job.end_ms is None else job.end_ms / 1000,
            "nodes": sorted(nodes),
            "devices": _device_entries(reader, allocations),
            "origins": _origins(reader, job, measured, end_ms),
        },
        "events": [_event_entry(event, job) for event in events],
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _device_entries(reader: Reader, allocations: Sequence[Allocation]) -> list[dict[str, Any]]:
    known = reader.devices({allocation.source for allocation in allocations})
    entries = []
    for allocation in allocations:
        source = allocation.source
        entry: dict[str, Any] = {
            "device": source.device,
            "node": source.node,
            "start": allocation.start_ms / 1000,
            "end": None if allocation.end_ms is None else allocation.end_ms / 1000,
            "known_from": allocation.known_from,
            "confidence": allocation.confidence,
        }
        if source in known:
            attributes = asdict(known[source])
            entry["since"] = known[source].since_ms / 1000
            entry.update(
                {name: attributes[name] for name in _DEVICE_FIELDS if attributes[name] not in (None, "")}
            )
        entries.append(entry)
    return entries


def _origins(reader: Reader, job: Job, measured: Sequence[Source], end_ms: int) -> dict[str, dict[str, str]]:
    found = {}
    for source in measured:
        origins = dict(reader.read(source, job.start_ms, end_ms).origins)
        if origins:
            device = f"{JOB_PREFIX}{job.id}" if source.scope == "job" else source.device
            found[device] = origins
    return found


def _event_entry(event: Event, job: Job) -> dict[str, Any]:
    device = (
        f"{JOB_PREFIX}{job.id}" if event.source.device == f"{JOB_PREFIX}{job.key}" else event.source.device
    )
    return {
        "time": event.time_ms / 1000,
        "node": event.source.node,
        "device": device,
        "kind": event.kind,
        "code": event.code,
        "ordinal": event.ordinal,
        "detail": dict(event.detail),
    }
