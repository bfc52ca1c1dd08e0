"""Fetches a URL in a thread of its own, so that a server that does not answer delays no tick."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from dataclasses import dataclass

TIMEOUT = 5.0  # seconds for each wait on the socket
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Fetched:
    """The outcome of one fetch: its text, or what went wrong."""

    text: str = ""
    error: str = ""


class Fetcher:
    """At most one fetch at a time."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self._url = url
        self._timeout = timeout
        self._lock = threading.Lock()
        self._busy = False
        self._outcome: Fetched | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Begin a fetch unless one is under way."""
        with self._lock:
            if self._busy:
                return False
            self._busy = True
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()
        return True

    def take(self) -> Fetched | None:
        """The outcome of a fetch that ended since the last call."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
        return outcome

    def wait(self, seconds: float) -> None:
        """Give a fetch under way this long to end."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        outcome = self._fetch()
        with self._lock:
            self._outcome, self._busy = outcome, False

    def _fetch(self) -> Fetched:
        request = urllib.request.Request(self._url, headers={"Accept": "text/plain;version=0.0.4"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                body: bytes = response.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                return Fetched(error=f"{self._url}: HTTP status {error.code}")
        except (OSError, ValueError) as error:
            return Fetched(error=f"{self._url}: {getattr(error, 'reason', error)}")
        if len(body) > MAX_BYTES:
            return Fetched(error=f"{self._url}: more than {MAX_BYTES >> 20} MiB")
        return Fetched(body.decode("utf-8", errors="replace"))
