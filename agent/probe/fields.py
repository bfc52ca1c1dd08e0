"""Batched field values of one GPU (nvmlDeviceGetFieldValues), each with its own return code."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pynvml

from gpudiag.agent.probe.driver import failure
from gpudiag.agent.probe.entries import Entries
from gpudiag.agent.probe.failures import DriverGoneError, GpuLostError

ALL_LINKS = 0xFFFFFFFF  # scope of a sum over links; scope 0 would be link 0 alone
CALL = "nvmlDeviceGetFieldValues"
_ENTRY = struct.Struct("=IIqqII8s")  # nvmlFieldValue_t: id, scope, timestamp, latency, type, return, value
_VALUE = {0: struct.Struct("=d"), 1: struct.Struct("=I"), 2: struct.Struct("=Q"), 3: struct.Struct("=Q"),
          4: struct.Struct("=q"), 5: struct.Struct("=i"), 6: struct.Struct("=H")}  # fmt: skip
_UINT = 1

Field = tuple[int, int]  # id, scope


class Fields:
    """Reads the fields that this GPU has; the others are named in the entries' `absent` as `field <id>`."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self.narrow: set[Field] = set()  # 32 bits wide: a counter of this kind wraps early

    def read(self, wanted: Iterable[Field]) -> dict[Field, float]:
        """Values of those that answered."""
        fields = [field for field in wanted if self._entries.may(_name(field))]
        if not fields:
            return {}
        answer = self._ask(fields)
        if answer is None and len(fields) > 1 and self._entries.refused(CALL):
            return self._one_by_one(fields)
        return {} if answer is None else dict(self._good(answer))

    def _ask(self, fields: list[Field]) -> object | None:
        return self._entries.read(CALL, pynvml.nvmlDeviceGetFieldValues, fields)

    def _one_by_one(self, fields: list[Field]) -> dict[Field, float]:
        """A driver that knows fewer fields may refuse them all because of one: find out which."""
        values: dict[Field, float] = {}
        reason = self._entries.absent[CALL]
        for field in fields:
            self._entries.worked(CALL)
            answer = self._ask([field])
            if answer is None:
                self._entries.cannot(_name(field), reason)
            else:
                values.update(self._good(answer))
        if values:
            self._entries.worked(CALL)
        return values

    def _good(self, answer: object) -> Iterable[tuple[Field, float]]:
        for number, scope, _, _, kind, code, raw in _ENTRY.iter_unpack(memoryview(answer).cast("B")):  # type: ignore[arg-type]
            field = (number, scope)
            if code == pynvml.NVML_SUCCESS:
                if self._entries.absent:
                    self._entries.worked(_name(field))
                if kind == _UINT:
                    self.narrow.add(field)
                layout = _VALUE[kind]
                yield field, layout.unpack_from(raw)[0]
            else:
                self._refused(field, code)

    def _refused(self, field: Field, code: int) -> None:
        error = failure(code, f"{CALL}({field[0]})")
        if isinstance(error, (DriverGoneError, GpuLostError)):
            raise error
        self._entries.failed(_name(field), error)


def _name(field: Field) -> str:
    return f"field {field[0]}" if field[1] in (0, ALL_LINKS) else f"field {field[0]} link {field[1]}"
