"""The agent's HTTP: /metrics, /healthz and /readyz, by GET only; nothing here changes anything.

At most `max_requests` are served at the same time, further ones are answered 503 at once, and a client that
dawdles is cut off, as is one that stopped waiting: Prometheus says how long in X-Prometheus-Scrape-Timeout-Seconds. TLS and basic auth are optional; /healthz and /readyz answer without a password.
"""

from __future__ import annotations

import logging
import math
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from gpudiag.agent.passwords import Users
from gpudiag.agent.values import Address
from gpudiag.errors import GpudiagError, InputError

log = logging.getLogger(__name__)
_CLIENT_TIMEOUT = 10.0
_GRACE = 0.05
_SCRAPE_TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"
_PLAIN = "text/plain; charset=utf-8"
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)


@dataclass(frozen=True)
class Health:
    """Whether something is well, and one line about it."""

    ok: bool
    text: str


@dataclass(frozen=True)
class Endpoints:
    """What the server answers with."""

    registry: CollectorRegistry
    alive: Callable[[], Health]
    ready: Callable[[], Health]


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """A server context for TLS 1.2 and newer. Raises `InputError` when the files do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(Path(cert), Path(key))
    except OSError as error:
        raise InputError(f"metrics.tls_cert {cert}, metrics.tls_key {key}: {error}") from None
    return context


def _patience(header: str) -> float:
    """Seconds that the client waits for an answer; without a usable header for ever."""
    try:
        seconds = float(header)
    except ValueError:
        return math.inf
    return seconds if seconds > 0 else math.inf  # NaN is not, either


class Server:
    """Serves in threads of its own until `close`."""

    def __init__(
        self,
        address: Address,
        endpoints: Endpoints,
        max_requests: int = 8,
        tls: ssl.SSLContext | None = None,
        users: Users | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            self._server = _BoundedServer(address, endpoints, max_requests, tls, users, monotonic)
        except OSError as error:
            raise GpudiagError(f"cannot listen on {address}: {error.strerror or error}") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="http", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _BoundedServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: Address,
        endpoints: Endpoints,
        max_requests: int,
        tls: ssl.SSLContext | None,
        users: Users | None,
        monotonic: Callable[[], float],
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.endpoints = endpoints
        self.users = users
        self.monotonic = monotonic
        self._tls = tls
        self._slots = threading.BoundedSemaphore(max_requests)
        super().__init__((address.host, address.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        # a client that has its answer may come again before the thread that gave it has let go
        if not self._slots.acquire(timeout=_GRACE):
            self._refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_CLIENT_TIMEOUT)
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)
        finally:
            self._slots.release()
            if self._tls is not None:
                request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("request from %s failed: %s", client_address, sys.exc_info()[1])

    def _refuse(self, request: Any) -> None:
        try:
            if self._tls is None:
                request.settimeout(1.0)
                request.sendall(_BUSY)
        except OSError:
            pass  # it is gone already
        self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    server: _BoundedServer
    server_version = "gpudiag"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._health(self.server.endpoints.alive())
        elif path == "/readyz":
            self._health(self.server.endpoints.ready())
        else:
            self._answer(404, "Not here. Try /metrics, /healthz or /readyz.\n")

    def _metrics(self) -> None:
        users = self.server.users
        if users is not None and not users.admits(self.headers.get("Authorization", "")):
            self._answer(401, "Name and password, please.\n", {"WWW-Authenticate": 'Basic realm="gpudiag"'})
            return
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        started, patience = self.server.monotonic(), _patience(self.headers.get(_SCRAPE_TIMEOUT, ""))
        body = encode(self.server.endpoints.registry)
        seconds = self.server.monotonic() - started
        if seconds > patience:
            log.warning("a scrape took %.1f s, its client waits %g s", seconds, patience)
            self._answer(503, f"Took {seconds:.1f} s, more than the {patience:g} s of {_SCRAPE_TIMEOUT}.\n")
            return
        self.connection.settimeout(min(_CLIENT_TIMEOUT, patience - seconds + _GRACE))
        self._send(200, body, {"Content-Type": content_type})

    def _health(self, health: Health) -> None:
        self._answer(200 if health.ok else 503, health.text + "\n")

    def _answer(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, text.encode(), {"Content-Type": _PLAIN, **(headers or {})})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
