"""Lossless columnar chunks: one frame per column, so that a reader decodes only the columns it wants.

Layout (little endian): `u32 rows, u16 frames, u32 length of each frame`, then the frames; frame 0 holds the
times, in milliseconds since the first. A frame is one byte of form, where values are missing either the presence
bitmap (`u32 length`, zlib) or, when they are few, their positions (`u16 count, u16 each`), and the values present: nothing, one constant, or a pcodec stream of
integers, of decimal fractions as integers, or of doubles. Forms are never reused: decoders stay for ever.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pcodec import ChunkConfig, standalone

from gpudiag.storage.sample import Floats, Millis

CODEC = 1
_CONFIG = ChunkConfig(compression_level=6)
_EMPTY, _CONSTANT, _INTEGERS, _DOUBLES, _DECIMALS = range(5)
_FORMS = 0x0F
_HAS_PRESENCE = 0x80
_HAS_POSITIONS = 0x40
_MOST_POSITIONS = 10
_EXACT_INTEGERS = 2.0**53
_FACTORS = 10.0 ** np.arange(7)[:, None]
_FEW = 16  # values looked at before all are
_HEADER = struct.Struct("<IH")

Integers = npt.NDArray[np.int64]


class DamagedChunk(Exception):  # noqa: N818 - becomes a gap that the reader reports, not an error
    """The bytes are not what was written."""


def checksum(data: bytes) -> int:
    """CRC-32, as stored beside the chunk."""
    return zlib.crc32(data)


def encode(times_ms: Millis, columns: Floats) -> bytes:
    """One chunk of sorted `times_ms` [n] and `columns` [metrics, n]; NaN is missing."""
    origin = int(times_ms[0]) if len(times_ms) else 0
    frames = [struct.pack("<q", origin) + _compress(times_ms - origin)]
    frames += [_encode_column(column) for column in columns]
    lengths = struct.pack(f"<{len(frames)}I", *map(len, frames))
    return _HEADER.pack(len(times_ms), len(frames)) + lengths + b"".join(frames)


def decode(data: bytes, wanted: Sequence[int]) -> tuple[Millis, Floats]:
    """Times [n] and the columns with the given positions [wanted, n]; raises `DamagedChunk`."""
    try:
        rows, frames = _split(data)
        times = _decompress(frames[0][8:], rows).astype(np.int64) + struct.unpack("<q", frames[0][:8])[0]
        columns = np.empty((len(wanted), rows))
        for row, position in enumerate(wanted):
            columns[row] = _decode_column(frames[position + 1], rows)
        return times, columns
    except (struct.error, zlib.error, IndexError, ValueError, RuntimeError, TypeError) as error:
        raise DamagedChunk(str(error)) from error


def _split(data: bytes) -> tuple[int, list[bytes]]:
    rows, count = _HEADER.unpack_from(data)
    lengths = struct.unpack_from(f"<{count}I", data, _HEADER.size)
    ends = np.cumsum((_HEADER.size + 4 * count, *lengths)).tolist()
    return rows, [data[start:end] for start, end in pairwise(ends)]


def _compress(values: npt.NDArray[np.generic]) -> bytes:
    return bytes(standalone.simple_compress(np.ascontiguousarray(values), _CONFIG))


def _decompress(data: bytes, rows: int) -> npt.NDArray[np.generic]:
    values: npt.NDArray[np.generic] | None = (
        standalone.simple_decompress(data) if rows else np.empty(0, np.int64)
    )
    if values is None or len(values) != rows:
        raise ValueError(f"{0 if values is None else len(values)} values instead of {rows}")
    return values


def _encode_column(column: Floats) -> bytes:
    missing = np.isnan(column)
    if not missing.any():
        return _encode_values(column, 0, b"")
    positions = np.flatnonzero(missing)
    if len(positions) <= _MOST_POSITIONS and len(column) <= 1 << 16:
        listed = struct.pack("<H", len(positions)) + positions.astype("<u2").tobytes()
        return _encode_values(column[~missing], _HAS_POSITIONS, listed)
    bitmap = zlib.compress(np.packbits(~missing).tobytes(), 9)
    return _encode_values(column[~missing], _HAS_PRESENCE, struct.pack("<I", len(bitmap)) + bitmap)


def _encode_values(values: Floats, flags: int, presence: bytes) -> bytes:
    form, payload = _encode_present(values)
    if form == _EMPTY:
        return bytes([_EMPTY])
    return bytes([form | flags]) + presence + payload


def _encode_present(values: Floats) -> tuple[int, bytes]:
    if not len(values):
        return _EMPTY, b""
    bits = values.view(np.int64)
    if (bits == bits[0]).all():
        return _CONSTANT, bytes(values[:1].tobytes())
    for decimals in _candidates(values):
        integers = _scaled(values, decimals)
        if integers is not None and decimals == 0:
            return _INTEGERS, _compress(integers)
        if integers is not None:
            return _DECIMALS, bytes([decimals]) + _compress(integers)
    return _DOUBLES, _compress(values)


def _candidates(values: Floats) -> list[int]:
    """Numbers of decimals that are exact for the first few values."""
    few = values[:_FEW]
    with np.errstate(over="ignore"):
        again = np.rint(few * _FACTORS) / _FACTORS
    exact: list[int] = np.flatnonzero((again.view(np.int64) == few.view(np.int64)).all(axis=1)).tolist()
    return exact


def _scaled(values: Floats, decimals: int) -> Integers | None:
    """`values * 10^decimals` as integers when dividing again gives back every bit, else None."""
    factor = 10.0**decimals
    with np.errstate(over="ignore"):
        scaled = np.rint(values * factor)
    if not (np.abs(scaled) < _EXACT_INTEGERS).all():
        return None
    integers = scaled.astype(np.int64)
    same = (integers / factor).view(np.int64) == values.view(np.int64)
    return integers if same.all() else None


def _decode_column(frame: bytes, rows: int) -> Floats:
    form, body = frame[0] & _FORMS, frame[1:]
    if form == _EMPTY:
        return np.full(rows, np.nan)
    if not frame[0] & (_HAS_PRESENCE | _HAS_POSITIONS):
        return _decode_values(form, body, rows)
    if frame[0] & _HAS_POSITIONS:
        return _decode_with_few_missing(form, body, rows)
    present, payload = _decode_presence(body, rows)
    column = np.full(rows, np.nan)
    column[present] = _decode_values(form, payload, int(np.count_nonzero(present)))
    return column


def _decode_with_few_missing(form: int, body: bytes, rows: int) -> Floats:
    """Moves the values between the missing rows as wholes."""
    count = int.from_bytes(body[:2], "little")
    gone = struct.unpack_from(f"<{count}H", body, 2)
    values = _decode_values(form, body[2 + 2 * count :], rows - count)
    column = np.empty(rows)
    start = 0
    for before, position in enumerate(gone):
        column[start:position] = values[start - before : position - before]
        column[position] = np.nan
        start = position + 1
    column[start:] = values[start - count :]
    return column


def _decode_presence(body: bytes, rows: int) -> tuple[npt.NDArray[np.bool_], bytes]:
    """Which rows have a value, and the bytes that follow."""
    length = struct.unpack_from("<I", body)[0]
    packed = np.frombuffer(zlib.decompress(body[4 : 4 + length]), np.uint8)
    return np.unpackbits(packed, count=rows).astype(np.bool_), body[4 + length :]


def _decode_values(form: int, payload: bytes, rows: int) -> Floats:
    if form == _CONSTANT:
        return np.full(rows, struct.unpack("<d", payload)[0])
    if form == _DECIMALS:
        return _decompress(payload[1:], rows).astype(np.float64) / 10.0 ** payload[0]
    if form in (_INTEGERS, _DOUBLES):
        return _decompress(payload, rows).astype(np.float64, copy=False)
    raise ValueError(f"unknown form {form}")
