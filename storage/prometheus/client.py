"""The two read calls of the Prometheus HTTP API that a report needs, kept within the server's limits.

Beside Prometheus: VictoriaMetrics, Thanos (`partial_response`, warnings) and Mimir or Cortex (`X-Scope-OrgID`, limits
on the length of a query). What a server does not know of these it ignores.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpudiag.errors import InputError, StoreError
from gpudiag.storage.sample import Floats, Millis

# Prometheus refuses a range query of more than 11,000 points per series (web/api/v1, maximum resolution).
MAXIMUM_POINTS = 10_000
_SLICE_MS = 6 * 3_600_000
_SMALLEST_SLICE_MS = 60_000
_TIMEOUT_SECONDS = 120
_PATIENCE = 5  # times a server that is busy is asked again
_LONGEST_WAIT_SECONDS = 30.0
_BUSY = (429, 502, 503)
# what Prometheus, VictoriaMetrics, Thanos, Mimir and gateways before them say of a query that is too big or too long
_TOO_MUCH = (
    "too many samples",
    "too many points",
    "exceed",
    "maximum resolution",
    "-search.max",
    "timed out",
    "limit",
)


@dataclass(frozen=True)
class Series:
    """One series of an answer: its labels, sample times [n] in milliseconds and values [n]."""

    labels: Mapping[str, str]
    times_ms: Millis
    values: Floats


@dataclass(frozen=True)
class Access:
    """What a server wants beside a query: a tenant, a bearer token from a file, and whether part of it will do."""

    org: str = ""
    token_file: str = ""
    partial: bool = False


class TooMuchError(Exception):
    """The server would have to load more than it allows; a smaller slice may pass."""


class Client:
    """Reads from `base`, an http(s) URL; user and password of the URL are sent as basic authentication."""

    def __init__(
        self, base: str, access: Access | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        parts = urllib.parse.urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"not a Prometheus URL: expected prometheus+http://host:port, got {parts.scheme}:"
            )
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        host = name if parts.port is None else f"{name}:{parts.port}"
        self.place = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._access, self._sleep = access or Access(), sleep
        self._headers = {"Accept": "application/json", **_identity(self._access)}
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()

    def sampled(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> list[Series]:
        """A range query, in as many parts as the server's limits ask for."""

        def part(begin: int, until: int) -> list[Series]:
            last = begin + (until - 1 - begin) // step_ms * step_ms
            times = {"start": begin / 1000, "end": last / 1000, "step": step_ms / 1000}
            return self._ask("query_range", {"query": query, **times})

        return list(self._in_slices(part, start_ms, end_ms + 1, step_ms * MAXIMUM_POINTS, step_ms))

    def raw(self, selector: str, start_ms: int, end_ms: int) -> Iterator[Series]:
        """The stored samples themselves, `start_ms <= time < end_ms`, in slices that halve when refused."""

        def part(begin: int, until: int) -> list[Series]:
            return self._slice(selector, begin, until)

        return self._in_slices(part, start_ms, end_ms, _SLICE_MS, 1)

    def _in_slices(
        self, ask: Callable[[int, int], list[Series]], start_ms: int, end_ms: int, length: int, step_ms: int
    ) -> Iterator[Series]:
        """`ask(begin, until)` over the interval, `until` excluded, in whole steps; half as long when refused."""
        begin = start_ms
        while begin < end_ms:
            until = min(end_ms, begin + length)
            try:
                yield from ask(begin, until)
            except TooMuchError as error:
                if length <= max(_SMALLEST_SLICE_MS, step_ms):
                    raise StoreError(f"{self.place}: {error}") from None
                length = max(min(length, until - begin) // 2 // step_ms, 1) * step_ms
                continue
            begin = until

    def _slice(self, selector: str, start_ms: int, end_ms: int) -> list[Series]:
        # A range selector evaluated as an instant query answers with raw samples: no interpolation, no look-back.
        # One millisecond more, because servers differ on whether the left edge belongs to it.
        query = f"{selector}[{end_ms - start_ms + 1}ms]"
        kept = []
        for series in self._ask("query", {"query": query, "time": end_ms / 1000}):
            inside = (series.times_ms >= start_ms) & (series.times_ms < end_ms)
            if inside.any():
                kept.append(Series(series.labels, series.times_ms[inside], series.values[inside]))
        return kept

    def _ask(self, call: str, parameters: Mapping[str, object]) -> list[Series]:
        wanted = {**parameters, "partial_response": str(self._access.partial).lower()}
        request = urllib.request.Request(
            f"{self.place}/api/v1/{call}", urllib.parse.urlencode(wanted).encode(), self._headers
        )
        content = self._answer(request)
        try:
            if not self._access.partial:
                self._refuse_part(content)
            return [_series(result) for result in content["data"]["result"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{self.place} does not answer as Prometheus does: {error!r}") from None

    def _answer(self, request: urllib.request.Request) -> Any:
        for attempt in range(_PATIENCE + 1):
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                refusal = self._refusal(error)
                if error.code not in _BUSY or isinstance(refusal, TooMuchError) or attempt == _PATIENCE:
                    raise refusal from None
                self._sleep(_wait_seconds(error.headers.get("Retry-After"), attempt))
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                raise StoreError(f"{self.place} does not answer as Prometheus does: {reason}") from None
        raise AssertionError  # the last attempt returns or raises

    def _refuse_part(self, content: Mapping[str, Any]) -> None:
        """Samples that a server could not reach must not look like samples that never were."""
        # what PromQL remarks about a query starts so; anything else is about the data
        missing = [text for text in content.get("warnings") or () if not str(text).startswith("PromQL ")]
        if missing or content.get("isPartial"):
            reason = "; ".join(map(str, missing)) or "some of its storage did not answer"
            raise StoreError(
                f"{self.place} has only part of the data: {reason} (partial=yes in the URL takes what there is)"
            )

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        try:
            reason = str(json.load(error)["error"])
        except (OSError, ValueError, KeyError, TypeError):
            reason = error.reason or "no reason given"
        if error.code in (413, 504) or (error.code != 429 and any(word in reason for word in _TOO_MUCH)):
            return TooMuchError(reason)
        return StoreError(f"{self.place} refused (HTTP {error.code}): {reason}{_hint(error.code, reason)}")


def _identity(access: Access) -> dict[str, str]:
    headers = {"X-Scope-OrgID": access.org, "THANOS-TENANT": access.org} if access.org else {}
    if access.token_file:
        try:
            token = Path(access.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"token_file={access.token_file} in the Prometheus URL: {error}") from None
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _wait_seconds(asked: str | None, attempt: int) -> float:
    """What the server asks for, else 1, 2, 4, ... seconds; never longer than half a minute."""
    seconds = float(asked) if asked and asked.isdigit() else 2.0**attempt
    return min(seconds, _LONGEST_WAIT_SECONDS)


def _hint(code: int, reason: str) -> str:
    if code == 401 and "org" in reason:
        return "; name the tenant with ?org=NAME"
    return "; Mimir and Cortex have this API under the path /prometheus" if code == 404 else ""


def _series(result: Mapping[str, Any]) -> Series:
    pairs = np.array([(float(at), float(value)) for at, value in result.get("values", [])]).reshape(-1, 2)
    labels = dict(result["metric"])
    return Series(labels, np.round(pairs[:, 0] * 1000).astype(np.int64), pairs[:, 1])
