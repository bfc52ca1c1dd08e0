"""What lines of the kernel log mean: Xid and SXid, GPUs off the bus, GSP and start failures, OOM kills. Pure text.

Shapes of the lines: NVIDIA's Xid documentation, and logs of drivers 470 to 590; OOM lines of kernels 3.10 to 6.x.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpudiag.rules.kernel_kill import KernelKill, read_kill

_BDF = r"(?:PCI:)?(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(rf"NVRM: Xid \({_BDF}\): (?P<code>\d+)(?:,\s*|\s+|$)(?P<rest>.*)")
_PID = re.compile(r"pid='?(?P<pid>\d+|<unknown>)'?,?\s*")
_NAME = re.compile(r"name='?(?P<name>[^,']*)'?,?\s*")
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9]*_[A-Z0-9_]+),?\s+(?P<severity>Fatal|Non-?fatal),?\s+XC(?P<xc>\d),?\s+i(?P<instance>\d+),?\s+"
    r"Link\s+(?P<link>-?\d+)(?:,?\s*\((?P<words>[^)]*)\))?"
)
_PREVIOUS = re.compile(r"previous Xid:?\s*(?P<code>\d+)", re.IGNORECASE)
_RECOVERY = re.compile(
    r"recovery action changed from 0x\w+ \((?P<before>[^)]*)\) to 0x\w+ \((?P<after>[^)]*)\)"
)
_PLACE = re.compile(r"GPC (?P<gpc>\d+), TPC (?P<tpc>\d+)")
_SXID = re.compile(
    rf"nvidia-nvswitch(?P<switch>\d+): SXid \({_BDF}\): (?P<code>\d+), "
    r"(?:(?P<severity>Fatal|Non-fatal), )?(?:Link (?P<link>\d+) )?(?P<text>.*)"
)
_SXID_MORE = re.compile(r"Severity \d|Data \{")  # further lines of the event before
_UUID_LINE = re.compile(rf"NVRM: GPU at {_BDF}: (?P<uuid>GPU-[0-9a-f-]+)")
_LOST_HEAD = re.compile(rf"The NVIDIA GPU {_BDF}")
_LOST = re.compile(rf"NVRM: GPU (?:at )?{_BDF}: GPU has fallen off the bus")
_LOST_TAIL = re.compile(r"fallen off the bus and is not responding")
_NEEDS_RESET = re.compile(rf"NVRM: .*GSP.*(?:{_BDF}).*likely needs to be reset")
_GSP = re.compile(
    r"NVRM: (?!Xid)(?:GPU(?P<index>\d+) )?.*(?:GSP|gsp).*(?:[Hh]eartbeat timed out|boot.*failed|[Tt]imed out|timeout)"
)
_INIT = re.compile(rf"NVRM: GPU (?:at )?{_BDF}: RmInitAdapter failed!\s*(?P<text>.*)")
_MISMATCH = re.compile(r"NVRM: API mismatch: (?P<text>.*)")
_GPU_LIBRARY = re.compile(
    r"^(?P<process>.+)\[(?P<pid>\d+)\]: segfault at .* in (?P<library>lib(?:nccl|cuda|cudart|cudnn|cublas|nvidia)[^\[]*)"
)
_ECHO_MS = 60_000  # within this time a second report of the same loss is the same loss
_OOM_PAIR_MS = 10_000


@dataclass(frozen=True)
class KernelFact:
    """One thing that happened, where a PCI address names the device, or the node when it is empty."""

    kind: str
    time_ms: int
    code: int = 0
    bdf: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def normal_bdf(text: str) -> str:
    """`00000000:9B:00.0`, `PCI:0000:9b:00` and `0000:9b:00.0` as `0000:9b:00`: the log leaves out the function."""
    parts = text.removeprefix("PCI:").lower().split(".")[0].split(":")
    if len(parts) != 3:
        return text.lower()
    try:
        return f"{int(parts[0], 16):04x}:{parts[1]}:{parts[2]}"
    except ValueError:
        return text.lower()


class KernelLines:
    """Reads lines in their order; some facts take several. `learned` maps PCI addresses to UUIDs seen in passing."""

    def __init__(self) -> None:
        self.learned: dict[str, str] = {}
        self._falling = ""
        self._lost: dict[str, int] = {}
        self._oom: dict[int, KernelFact] = {}
        self._told: dict[int, int] = {}

    def feed(self, text: str, time_ms: int) -> list[KernelFact]:
        """Facts that this record completes; a record may hold several lines."""
        return [fact for line in text.splitlines() for fact in self._line(line.strip(), time_ms)]

    def settle(self, now_ms: int) -> list[KernelFact]:
        """Kills whose second line never came."""
        late = [pid for pid, fact in self._oom.items() if now_ms - fact.time_ms > _OOM_PAIR_MS]
        self._told = {pid: at for pid, at in self._told.items() if now_ms - at <= _OOM_PAIR_MS}
        return [self._oom.pop(pid) for pid in late]

    def _line(self, line: str, time_ms: int) -> Iterator[KernelFact]:
        if "NVRM" in line or "fallen off" in line or "NVIDIA GPU" in line:
            yield from self._driver(line, time_ms)
        elif "SXid" in line:
            yield from _sxid(line, time_ms)
        elif "segfault at" in line:
            yield from _segfault(line, time_ms)
        elif "oom-kill:" in line or "ill process" in line or "illed process" in line:
            yield from self._kill(line, time_ms)

    def _driver(self, line: str, time_ms: int) -> Iterator[KernelFact]:
        if match := _XID.search(line):
            yield from self._xid(match, time_ms)
        elif match := _UUID_LINE.search(line):
            self.learned[normal_bdf(match["bdf"])] = match["uuid"]
        elif match := _LOST.search(line):
            yield from self._fell(normal_bdf(match["bdf"]), time_ms)
        elif match := _LOST_HEAD.search(line):
            self._falling = normal_bdf(match["bdf"])
            if _LOST_TAIL.search(line):
                yield from self._fell(self._falling, time_ms)
        elif _LOST_TAIL.search(line):
            yield from self._fell(self._falling, time_ms)
        elif match := _INIT.search(line):
            yield KernelFact("gpu_init_failed", time_ms, 0, normal_bdf(match["bdf"]), {"text": match["text"]})
        elif match := _NEEDS_RESET.search(line):
            yield KernelFact("gsp_error", time_ms, 0, normal_bdf(match["bdf"]), {"text": "needs a reset"})
        elif match := _MISMATCH.search(line):
            yield KernelFact("driver_mismatch", time_ms, 0, "", {"text": match["text"]})
        elif match := _GSP.search(line):
            yield KernelFact("gsp_error", time_ms, 0, "", {"text": line.partition("NVRM: ")[2][:200]})

    def _xid(self, match: re.Match[str], time_ms: int) -> Iterator[KernelFact]:
        bdf, code = normal_bdf(match["bdf"]), int(match["code"])
        if code == 79:
            if self._is_echo(bdf, time_ms):
                return
            self._lost[bdf] = time_ms
        yield KernelFact("xid", time_ms, code, bdf, xid_detail(match["rest"]))

    def _fell(self, bdf: str, time_ms: int) -> Iterator[KernelFact]:
        if not self._is_echo(bdf, time_ms):
            self._lost[bdf] = time_ms
            yield KernelFact("fallen_off_bus", time_ms, 0, bdf)
        self._falling = ""

    def _is_echo(self, bdf: str, time_ms: int) -> bool:
        return bdf in self._lost and time_ms - self._lost[bdf] < _ECHO_MS

    def _kill(self, line: str, time_ms: int) -> Iterator[KernelFact]:
        kill = read_kill(line)
        if kill is None:
            return
        if kill.pid is None:
            yield KernelFact("oom_kill", time_ms, detail=_kill_detail(kill))
            return
        announced = self._oom.pop(kill.pid, None)
        detail = {**(announced.detail if announced else {}), **_kill_detail(kill)}
        fact = KernelFact("oom_kill", announced.time_ms if announced else time_ms, detail=detail)
        if kill.phase != "done":
            self._oom[kill.pid] = fact
        elif time_ms - self._told.get(kill.pid, -_ECHO_MS) > _OOM_PAIR_MS:
            self._told[kill.pid] = time_ms
            yield fact


def xid_detail(rest: str) -> dict[str, Any]:
    """What the text after an Xid's number tells: process, NVLink 5 unit and link, cause, recovery, place on the chip."""
    detail: dict[str, Any] = {}
    if (match := _PID.match(rest)) is not None:
        if match["pid"].isdigit():
            detail["pid"] = int(match["pid"])
        rest = rest[match.end() :]
    if (match := _NAME.match(rest)) is not None:
        if match["name"] and match["name"] != "<unknown>":
            detail["process"] = match["name"]
        rest = rest[match.end() :]
    detail["text"] = rest.strip()
    if (match := _NVLINK5.search(rest)) is not None:
        detail.update(unit=match["unit"], fatal=match["severity"] == "Fatal", link=int(match["link"]))
    if (match := _PREVIOUS.search(rest)) is not None:
        detail["caused_by"] = int(match["code"])
    if (match := _RECOVERY.search(rest)) is not None:
        detail["recovery_action"] = match["after"]
    if (match := _PLACE.search(rest)) is not None:
        detail.update(gpc=int(match["gpc"]), tpc=int(match["tpc"]))
    return detail


def _sxid(line: str, time_ms: int) -> Iterator[KernelFact]:
    match = _SXID.search(line)
    if match is None or _SXID_MORE.match(match["text"]):
        return
    detail: dict[str, Any] = {"switch": int(match["switch"]), "text": match["text"].strip()}
    if match["severity"]:
        detail["fatal"] = match["severity"] == "Fatal"
    if match["link"]:
        detail["link"] = int(match["link"])
    yield KernelFact("sxid", time_ms, int(match["code"]), normal_bdf(match["bdf"]), detail)


def _segfault(line: str, time_ms: int) -> Iterator[KernelFact]:
    if match := _GPU_LIBRARY.search(line):
        detail = {"pid": int(match["pid"]), "process": match["process"], "library": match["library"].strip()}
        yield KernelFact("gpu_library_crash", time_ms, detail=detail)


def _kill_detail(kill: KernelKill) -> dict[str, Any]:
    detail: dict[str, Any] = {**kill.cgroups}
    if kill.process:
        detail["process"] = kill.process
    if kill.pid is not None:
        detail["pid"] = kill.pid
    if kill.phase != "why" and kill.scope:
        detail["constraint"] = kill.scope
    return {**detail, **{f"{name}_bytes": size for name, size in kill.sizes_bytes.items()}}
