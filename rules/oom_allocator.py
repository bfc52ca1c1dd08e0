"""The numbers in the out-of-memory messages of PyTorch's caching allocators, on CUDA, HIP, XPU, NPU and Metal."""

from __future__ import annotations

import re

from gpudiag.rules.oom_message import (
    CONTEXT_BYTES,
    SIZE,
    Kind,
    OomMessage,
    kind_of,
    size_bytes,
    unless_untold,
)

_NUMBERS = {
    name: re.compile(pattern.replace("SIZE", f"({SIZE})"))
    for name, pattern in {
        "requested": "Tried to allocate SIZE|Requested ?: SIZE",
        "capacity": "SIZE total capacity|total capaci?ty of SIZE|Device limit ?: SIZE",
        "free": r"SIZE free\b|of which SIZE is free|Free \(according to CUDA\) ?: SIZE",
        "allocated": "SIZE already allocated|SIZE is allocated by PyTorch|Currently allocated ?: SIZE|MPS allocated: SIZE",
        "reserved": "SIZE reserved in total",
        "cached": "SIZE cached|SIZE is reserved by PyTorch but unallocated",
        "pools": "SIZE allocated in private pools",
        "process": "this process has SIZE memory in use",
        "limit": r"SIZE allowed\b|max allowed: SIZE|user-supplied memory fraction\) ?: SIZE",
        "others": "other allocations: SIZE",
    }.items()
}
_OTHER = re.compile(rf"Process \d+ has ({SIZE}) memory in use")
_DEVICE = re.compile(r"\b(?:GPU|NPU|XPU|MLU|GCU|on device) (\d+)")
# What a line that goes on with such a message has in it, and what the message ends with.
MORE = re.compile(
    r"Tried to|^allocate \d|total capac|of which|is free|memory in use|already allocated|allocated by PyTorch|"
    r"reserved (?:by|in)|private pools|unallocated|Currently allocated|^Requested ?:|Device limit|according to CUDA|"
    r"memory fraction|^: \d|\b(?:GPU|NPU|XPU) \d+[; ]|max allowed"
)
DONE = re.compile(
    r"reserved in total|cached\)|but unallocated|memory fraction\) ?: \d|(?:private|shared) pool\b"
)


def allocator_message(match: re.Match[str], text: str) -> OomMessage:
    """The message with whatever numbers its version of PyTorch states."""
    numbers = _numbers(text)
    device = _DEVICE.search(text)
    others = numbers.get("others", _others(text, numbers))
    kind: Kind = kind_of(numbers, others)
    if "allocate more than 1EB" in text:
        kind = "absurd_request"
    elif kind == "unknown" and "limit" in numbers and "requested" in numbers:
        kind = "process_limit"
    return OomMessage(
        kind,
        0,
        device=int(device.group(1)) if device else None,
        requested_bytes=numbers.get("requested"),
        capacity_bytes=numbers.get("capacity"),
        free_bytes=numbers.get("free"),
        allocated_bytes=numbers.get("allocated"),
        reserved_bytes=numbers.get("reserved"),
        process_bytes=numbers.get("process", _own_listed_process(text, numbers)),
        limit_bytes=numbers.get("limit"),
        private_pool_bytes=numbers.get("pools"),
        others_bytes=others,
    )


def _numbers(text: str) -> dict[str, int]:
    found = {}
    for name, pattern in _NUMBERS.items():
        match = pattern.search(text)
        size = size_bytes(next(group for group in match.groups() if group)) if match else None
        if name in ("process", "limit"):
            size = unless_untold(size)
        if size is not None:
            found[name] = size
    if "reserved" not in found and "cached" in found and "allocated" in found:
        found["reserved"] = found["allocated"] + found["cached"]
    return found


def _own_listed_process(text: str, numbers: dict[str, int]) -> int | None:
    """In a container the message lists this very process under its host pid: what it holds fits our own."""
    reserved = numbers.get("reserved")
    if reserved is None:
        return None
    held = [size_bytes(size) for size in _OTHER.findall(text)]
    return next((size for size in held if reserved * 0.99 <= size <= reserved + CONTEXT_BYTES), None)


def _others(text: str, numbers: dict[str, int]) -> int | None:
    if not {"capacity", "free"} <= numbers.keys():
        return None
    own = numbers.get("process", _own_listed_process(text, numbers) or numbers.get("reserved"))
    return None if own is None else max(0, numbers["capacity"] - numbers["free"] - own)
