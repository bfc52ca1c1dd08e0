"""Messages between the agent and its probe: four bytes of length, then JSON."""

from __future__ import annotations

import json
import struct
from typing import Any

Message = dict[str, Any]
MAX_BYTES = 16 << 20
_LENGTH = struct.Struct("!I")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class FramingError(Exception):
    """The other end does not speak this protocol."""


def encode(message: Message) -> bytes:
    """One message on the wire; `ValueError` for NaN or infinity, which must never travel."""
    body = _encode(message).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Collects bytes as they come and gives whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        self._buffer += data

    def next(self) -> Message | None:
        """The next complete message, or None; `FramingError` when it is too long or no JSON object."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_BYTES:
            raise FramingError(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise FramingError(f"no JSON: {error}") from None
        if not isinstance(message, dict):
            raise FramingError(f"{type(message).__name__} instead of an object")
        return message
