"""A hostile snapshot ends the process that reads it, at most; the command says what is wrong in one line."""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import pytest

from gpudiag.errors import InputError
from gpudiag.rules.memory_snapshot import parse
from gpudiag.rules.snapshot_process import load

MIB = 2**20


def raw_snapshot() -> dict[str, Any]:
    blocks = [
        {"address": 4096, "size": MIB, "state": "active_allocated", "frames": [{"filename": "a.py", "line": 1, "name": "f"}]},
        {"address": 4096 + MIB, "size": MIB, "state": "inactive", "frames": []},
    ]  # fmt: skip
    return {"segments": [{"device": 1, "address": 4096, "total_size": 2 * MIB, "stream": 7, "segment_type": "small",
                          "segment_pool_id": (0, 3), "is_expandable": True, "blocks": blocks}]}  # fmt: skip


def refused(content: bytes) -> str:
    with pytest.raises(InputError, match=r"^snapshot\.pickle: ") as caught:
        load(io.BytesIO(content), "snapshot.pickle")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_the_process_reads_is_what_the_file_holds(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw_snapshot(), protocol))
    with path.open("rb") as stream:
        segments = load(stream, "snapshot.pickle")
    assert segments == parse(io.BytesIO(path.read_bytes()))
    assert segments[0].pool == "small private 0.3 expandable"


def test_what_is_wrong_with_the_data_is_told_as_it_is() -> None:
    assert "a segment lacks or garbles 'total_size'" in refused(pickle.dumps({"segments": [{"address": 1}]}))


# Each way of a pickle to get at something that is not plain data; `T` builds a tuple, `R` calls, `.` ends.
CODE = {
    "GLOBAL": b"cos\nsystem\n(S'true'\ntR.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "INST": b"(S'true'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'true'\no.",
    "NEWOBJ": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "NEWOBJ_EX": b"\x80\x04cbuiltins\nobject\n)}\x92.",
    "BUILD": b"}}S'__class__'\nNsb.",
    "REDUCE": b"S'text'\n(tR.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT2": b"\x80\x02\x83\x01\x01.",
    "EXT4": b"\x80\x02\x84\x01\x01\x01\x01.",
    "PERSID": b"P0\n.",
    "BINPERSID": b"NQ.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "READONLY_BUFFER": b"\x80\x05N\x98.",
    "builtins by another name": b"c__builtin__\neval\n(S'1'\ntR.",
    "attribute of a module": b"\x80\x04\x8c\x08builtins\x8c\x0dstr.__class__\x93.",
    "codecs, as old pickles of bytes have": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00latin1\x86R.",
    "ordered dictionary": b"ccollections\nOrderedDict\n)R.",
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_nothing_but_plain_data_is_made(name: str) -> None:
    assert refused(CODE[name])


def test_every_opcode_is_plain_data_or_refused() -> None:
    tried = {opcode.name for content in CODE.values() for opcode, *_ in _opcodes(content)}
    plain = {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
        "BINBYTES8", "BYTEARRAY8", "NONE", "NEWTRUE", "NEWFALSE", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT",
        "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS",
        "EMPTY_SET", "ADDITEMS", "FROZENSET", "POP", "DUP", "MARK", "POP_MARK", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT",
        "MEMOIZE", "PROTO", "STOP", "FRAME",
    }  # fmt: skip
    assert {opcode.name for opcode in pickletools.opcodes} == plain | (tried - plain)


def _opcodes(content: bytes) -> list[tuple[Any, ...]]:
    found = []
    with contextlib.suppress(ValueError):
        found += pickletools.genops(content)
    return found


BOMBS = {
    "a place of the memo beyond all memory": b"\x80\x02Nr\xff\xff\xff\xff.",
    "the same in words": b"Np4294967295\n.",
    "a text longer than all memory": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "bytes longer than all memory": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "a byte array longer than the file": b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b"x.",
    "a frame longer than the file": b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.",
    "a number of many digits": b"L" + b"9" * 10**6 + b"L\n.",
    "a number of many bytes": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    "tuples so deep that hashing one ends the interpreter": b"\x80\x02}K\x01" + b"\x85" * 3_000_000 + b"Ns.",
    "lists in lists": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "lists that double": b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (at, at, at + 1) for at in range(200)) + b".",
    "text that is no text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "nothing": b"",
    "no end": b"\x80\x02}",
    "a protocol of the future": b"\x80\xff.",
    "pop from nothing": b"0.",
    "zip": b"PK\x03\x04" + b"\0" * 100,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_in_one_clear_error(name: str) -> None:
    assert "snapshot" in refused(BOMBS[name])


def test_segments_in_segments_are_garbled_not_followed() -> None:
    content = raw_snapshot()
    content["segments"][0]["blocks"] = content["segments"]
    assert "garbles" in refused(pickle.dumps(content))
