"""Slurm's compact lists of hosts: `gpu[01-03,7],login`."""

from __future__ import annotations

_LIMIT = 100_000


def expand_hostlist(text: str) -> list[str]:
    """Host names in order; leading zeros are kept. Raises `ValueError` for more than 100 000 hosts or bad brackets."""
    hosts: list[str] = []
    for item in _split(text):
        hosts += _expand(item)
        if len(hosts) > _LIMIT:
            raise ValueError("too many hosts in a host list")
    return hosts


def _split(text: str) -> list[str]:
    """Parts between commas that are outside brackets."""
    parts, depth, current = [], 0, ""
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += sign
    if depth:
        raise ValueError(f"unbalanced brackets in host list {text!r}")
    return [part for part in (*parts, current) if part]


def _expand(item: str) -> list[str]:
    opening = item.find("[")
    if opening < 0:
        return [item]
    closing = item.index("]", opening)
    tails = _expand(item[closing + 1 :]) if item[closing + 1 :] else [""]
    return [
        f"{item[:opening]}{number}{tail}"
        for number in expand_numbers(item[opening + 1 : closing])
        for tail in tails
    ]


def expand_numbers(text: str) -> list[str]:
    """`0-2,07` as `0 1 2 07`; raises `ValueError` for anything that is no number."""
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"not a number or range: {part!r}")
        stop = int(last) if dash else int(first)
        if stop - int(first) > _LIMIT:
            raise ValueError(f"range too long: {part!r}")
        found += [str(number).zfill(len(first)) for number in range(int(first), stop + 1)]
    return found
