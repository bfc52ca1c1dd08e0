"""promtool's notation for series: `0.9x120`, `0.9+0.01x60`, `_` for missing; with units, noise and repeats."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpudiag.rules.units import quantity
from gpudiag.storage.sample import Floats

MAX_SAMPLES = 400_000
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[A-WYZa-wyz%]*(?:/s)?"
_TERM = re.compile(rf"(?P<value>_|{_NUMBER})(?:(?P<sign>[+\-~])(?P<step>{_NUMBER}))?(?:x(?P<times>\d+))?")
_TOKEN = re.compile(r"\(|\)\*\d+|[^\s()]+|\)")


class NotationError(ValueError):
    """The text is no series; `offset` is the character it goes wrong at."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def series(text: str) -> Floats:
    """The samples that `text` stands for, NaN where missing; raises `NotationError`.

    As promtool has it, `axn` is a and n more of it, `a+bxn` n further steps of b, `_xn` n missing ones. `a~bxn` adds
    noise of at most b, always the same; `( ... )*n` repeats; numbers may carry a unit, such as `40GiB`.
    """
    parts: list[list[Floats]] = [[]]
    noise = np.random.default_rng(0)
    for token, offset in _tokens(text):
        if token == "(":
            parts.append([])
        elif token.startswith(")"):
            _close(parts, token, offset)
        else:
            parts[-1].append(_term(token, offset, noise))
        if sum(len(part) for group in parts for part in group) > MAX_SAMPLES:
            raise NotationError(f"more than {MAX_SAMPLES} samples", offset)
    if len(parts) > 1:
        raise NotationError("'(' without ')*n'", len(text))
    return np.concatenate(parts[0]) if parts[0] else np.empty(0)


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    for match in _TOKEN.finditer(text):
        yield match.group(), match.start()


def _close(parts: list[list[Floats]], token: str, offset: int) -> None:
    if len(parts) < 2 or "*" not in token:
        raise NotationError("')' must close a '(' and be followed by *n", offset)
    group = parts.pop()
    times = int(token.split("*")[1])
    body = np.concatenate(group) if group else np.empty(0)
    if len(body) * times > MAX_SAMPLES:
        raise NotationError(f"more than {MAX_SAMPLES} samples", offset)
    parts[-1].append(np.tile(body, times))


def _term(token: str, offset: int, noise: np.random.Generator) -> Floats:
    matched = _TERM.fullmatch(token)
    if not matched:
        raise NotationError(
            f"'{token}' is no sample: expected 0.9, 0.9x120, 0.9+0.01x60, 0.9~0.05x60 or _x30", offset
        )
    times = int(matched["times"] or 0)
    if times > MAX_SAMPLES:
        raise NotationError(f"more than {MAX_SAMPLES} samples", offset)
    if matched["value"] == "_":
        return np.full(max(1, times), np.nan)
    value = _value(matched["value"], offset)
    if not matched["sign"]:
        return np.full(times + 1, value)
    step = _value(matched["step"], offset)
    if matched["sign"] == "~":
        return np.asarray(value + step * noise.uniform(-1, 1, times + 1), dtype=np.float64)
    signed = step if matched["sign"] == "+" else -step
    return np.asarray(value + signed * np.arange(times + 1), dtype=np.float64)


def _value(text: str, offset: int) -> float:
    parsed = quantity(text)
    if parsed is None:
        raise NotationError(f"'{text}' is no number", offset)
    return parsed[0]
