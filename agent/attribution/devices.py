"""Device references that schedulers, hooks and environments use, and which GPU each means.

`GPU-…`, `MIG-…` (prefixes allowed, as CUDA allows them), `minor:N` (number of the device file, what Slurm counts),
`index:N` (NVML's order), `all`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudiag.storage.job import Device

ALL = "all"


def is_uuid(reference: str) -> bool:
    """Whether it names a device for ever, not by a position."""
    return reference.startswith(("GPU-", "MIG-"))


def visible_references(value: str | None) -> tuple[str, ...]:
    """References of a CUDA_VISIBLE_DEVICES value; unset means all, and nothing after an invalid entry counts."""
    if value is None:
        return (ALL,)
    found: list[str] = []
    for word in (part.strip() for part in value.split(",")):
        if word.isdigit():
            found.append(f"index:{word}")
        elif is_uuid(word):
            found.append(word)
        else:
            break
    return tuple(found)


def resolve(references: Iterable[str], devices: Sequence[Device]) -> tuple[str, ...]:
    """UUIDs that the references mean among the devices known now, in order, each once; unknown ones are left out."""
    found: dict[str, None] = {}
    for reference in references:
        for device in _matching(reference, devices):
            found[device.source.device] = None
    return tuple(found)


def _matching(reference: str, devices: Sequence[Device]) -> list[Device]:
    if reference == ALL:
        return _usable(devices)
    if is_uuid(reference):
        exact = [device for device in devices if device.source.device == reference]
        return exact or [device for device in devices if device.source.device.startswith(reference)][:1]
    kind, _, number = reference.partition(":")
    if not number.isdigit():
        return []
    whole = [device for device in devices if not device.parent_uuid]
    if kind == "minor" and all(device.minor is not None for device in whole):
        return [device for device in whole if device.minor == int(number)]
    return [device for device in whole if device.index == int(number)]


def _usable(devices: Sequence[Device]) -> list[Device]:
    """What a process can compute on: a card that is cut into MIG instances is not one."""
    parents = {device.parent_uuid for device in devices if device.parent_uuid}
    return [device for device in devices if device.source.device not in parents]
