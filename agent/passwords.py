"""Names and passwords for /metrics: lines `name:pbkdf2_sha256$iterations$salt$hash` in a file."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from gpudiag.errors import InputError, LocatedError, Problem

_SCHEME = "pbkdf2_sha256"
_ITERATIONS = 200_000
_REMEMBERED = 64


def line_for(name: str, password: str) -> str:
    """The line of the users file for this name and password."""
    salt = secrets.token_hex(16)
    return f"{name}:{_SCHEME}${_ITERATIONS}${salt}${_derive(password, salt, _ITERATIONS)}"


class Users:
    """Who may read /metrics. The slow derivation runs once per password; admitted headers are remembered hashed."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = dict(entries)
        self._admitted: set[bytes] = set()

    @classmethod
    def read(cls, path: Path) -> Users:
        """Raises `InputError` when the file cannot be read, `LocatedError` for lines of another form."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot read the users file: {error}") from None
        entries, problems = {}, []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, stored = line.partition(":")
            if not name or not _well_formed(stored):
                expected = "expected name:hash as `gpudiag agent password` prints it"
                problems.append(Problem(str(path), number, 1, expected))
            entries[name] = stored
        if problems:
            raise LocatedError(problems)
        return cls(entries)

    def admits(self, header: str) -> bool:
        """Whether an Authorization header names a user and the right password."""
        digest = hashlib.sha256(header.encode()).digest()
        if digest in self._admitted:
            return True
        if not self._verify(header):
            return False
        if len(self._admitted) >= _REMEMBERED:
            self._admitted.clear()
        self._admitted.add(digest)
        return True

    def _verify(self, header: str) -> bool:
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        stored = self._entries.get(name)
        if stored is None:
            return False
        _, iterations, salt, expected = stored.strip().split("$")
        return hmac.compare_digest(_derive(password, salt, int(iterations)), expected)


def _derive(password: str, salt: str, iterations: int) -> str:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), bytes.fromhex(salt), iterations).hex()


def _well_formed(stored: str) -> bool:
    parts = stored.strip().split("$")
    if len(parts) != 4 or parts[0] != _SCHEME or not parts[1].isdigit():
        return False
    try:
        return len(bytes.fromhex(parts[2])) > 0 and len(bytes.fromhex(parts[3])) == 32
    except ValueError:
        return False
