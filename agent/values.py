"""Kinds of configuration values: each turns a TOML value, or text from the environment or a flag, into Python.

Every parser raises `ValueError` whose text says what was expected.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?B?)")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Address:
    """Where to listen: an IP address and a port (0 lets the system choose)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _expected(what: str) -> ValueError:
    return ValueError(f"expected {what}")


def text(value: object) -> str:
    if not isinstance(value, str):
        raise _expected("text")
    return value


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    raise _expected("true or false")


def number(value: object) -> float:
    """A number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _expected("a number")
    try:
        parsed = float(value)
    except ValueError:
        raise _expected("a number") from None
    if not 0 <= parsed < float("inf"):
        raise _expected("a number of at least 0")
    return parsed


def count(value: object) -> int:
    """A whole number of at least 1."""
    parsed = number(value)
    if parsed != int(parsed) or parsed < 1:
        raise _expected("a whole number of at least 1")
    return int(parsed)


def duration(value: object) -> float:
    """Seconds, from text such as `250ms`, `1s`, `10m`, `14d`; `0` is allowed."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match:
            return float(match[1]) * _UNITS[match[2]]
    if value in ("0", 0) and not isinstance(value, bool):
        return 0.0
    raise _expected('a duration with a unit, such as "250ms", "1s", "10m" or "14d"')


def positive_duration(value: object) -> float:
    """Like `duration`, but longer than zero."""
    seconds = duration(value)
    if seconds <= 0:
        raise _expected("a duration longer than 0")
    return seconds


def size(value: object) -> int:
    """Bytes, from a whole number or text such as `512MiB`; 0 is allowed."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in _SIZES:
        raise _expected('a size in bytes or with a unit, such as "512MiB" or "8GiB"')
    return int(float(match[1]) * _SIZES[match[2]])


def texts(value: object) -> tuple[str, ...]:
    """A list of texts; from the environment or a flag, separated by commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise _expected("a list of texts")


def address(value: object) -> Address:
    """`host:port`, `[v6]:port` or `:port` (all addresses); the host is an IP address or `localhost`."""
    host, found, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    host = host.strip("[]") or "0.0.0.0"
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = ""
    if not found or not port.isdigit() or int(port) > 65535:
        raise _expected('an address and a port, such as "127.0.0.1:9836"')
    return Address(host, int(port))


def http_url(value: object) -> str:
    """An http or https URL, or nothing."""
    url = text(value)
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
        raise _expected('a URL, such as "http://127.0.0.1:9400/metrics"')
    return url


def database_url(value: object) -> str:
    """A database URL as SQLAlchemy writes it, or nothing."""
    url = text(value)
    if url and not re.match(r"[a-z+]+://", url):
        raise _expected('a database URL, such as "sqlite:////var/lib/gpudiag/gpudiag.db"')
    return url


class OneOf:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, value: object) -> str:
        if value not in self.words or not isinstance(value, str):
            raise _expected(" or ".join(f'"{word}"' for word in self.words))
        return value
