from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import require
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import CollectorRegistry

from gpudiag.agent.http import Endpoints, Health, Server, tls_context
from gpudiag.agent.passwords import Users, line_for
from gpudiag.agent.values import Address
from gpudiag.errors import GpudiagError, InputError, LocatedError

LOOPBACK = Address("127.0.0.1", 0)


class Gate:
    """A collector that answers only when let."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.entered.release()
        assert self.open.wait(30)
        yield GaugeMetricFamily("gpudiag_up", "One", 1)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def endpoints(gate: Gate) -> Endpoints:
    registry = CollectorRegistry()
    registry.register(gate)  # type: ignore[arg-type]
    gate.entered = threading.Semaphore(0)
    return Endpoints(registry, lambda: Health(True, "alive"), lambda: Health(False, "no sample yet"))


@pytest.fixture
def serve(endpoints: Endpoints) -> Iterator[Callable[..., Server]]:
    servers = []

    def start(**options: Any) -> Server:
        servers.append(Server(LOOPBACK, endpoints, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def get(
    server: Server, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_metrics_health_and_readiness(serve: Callable[..., Server]) -> None:
    server = serve()
    status, text = get(server, "/metrics")
    assert (status, "gpudiag_up 1.0" in text) == (200, True)
    assert get(server, "/healthz") == (200, "alive\n")
    assert get(server, "/readyz") == (503, "no sample yet\n")
    assert get(server, "/") == (404, "Not here. Try /metrics, /healthz or /readyz.\n")


def test_openmetrics_when_asked_for(serve: Callable[..., Server]) -> None:
    _, text = get(serve(), "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_no_method_changes_anything(serve: Callable[..., Server], method: str) -> None:
    status, _ = get(serve(), "/metrics", method)
    assert status == 501


def test_scrapes_beyond_the_bound_are_refused_at_once(serve: Callable[..., Server], gate: Gate) -> None:
    server = serve(max_requests=2)
    gate.open.clear()
    answers: list[int] = []
    scrapes = [threading.Thread(target=lambda: answers.append(get(server, "/metrics")[0])) for _ in range(2)]
    for scrape in scrapes:
        scrape.start()
        assert gate.entered.acquire(timeout=30)
    assert get(server, "/metrics")[0] == 503
    gate.open.set()
    for scrape in scrapes:
        scrape.join()
    assert answers == [200, 200]
    assert get(server, "/metrics")[0] == 200


def test_a_client_that_says_nothing_holds_only_its_own_place(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudiag.agent.http._CLIENT_TIMEOUT", 0.2)
    server = serve(max_requests=1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
        assert silent.recv(1) == b""  # cut off after the timeout
        assert get(server, "/healthz")[0] == 200


def test_metrics_need_name_and_password_when_users_are_given(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "users"
    file.write_text("# scrapers\n" + line_for("prometheus", "s3cret:with colon") + "\n")
    server = serve(users=Users.read(file))
    assert get(server, "/metrics")[0] == 401
    assert get(server, "/metrics", headers=basic("prometheus", "wrong"))[0] == 401
    assert get(server, "/metrics", headers=basic("nobody", "s3cret:with colon"))[0] == 401
    assert get(server, "/metrics", headers={"Authorization": "Basic %%%"})[0] == 401
    for _ in range(2):
        assert get(server, "/metrics", headers=basic("prometheus", "s3cret:with colon"))[0] == 200
    assert get(server, "/healthz")[0] == 200


def test_a_broken_users_file_names_the_lines(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(line_for("good", "x") + "\nbad:plain\n:no-name\n")
    with pytest.raises(LocatedError) as caught:
        Users.read(file)
    assert [problem.line for problem in caught.value.problems] == [2, 3]
    with pytest.raises(InputError, match="cannot read"):
        Users.read(tmp_path / "absent")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(
        [require("openssl"), *command, *files, *subject], check=True, capture_output=True, timeout=60
    )
    return cert, key


@pytest.mark.integration
def test_tls(serve: Callable[..., Server], certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    server = serve(tls=tls_context(str(cert), str(key)))
    trusting = ssl.create_default_context(cafile=str(cert))
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
        trusting.wrap_socket(plain, server_hostname="localhost") as channel,
    ):
        channel.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: channel.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.0 200")
    assert b"gpudiag_up 1.0" in answer
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"gpudiag_up" not in plain.recv(65536)


def test_tls_files_that_do_not_fit_are_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("nonsense")
    with pytest.raises(InputError, match=r"metrics\.tls_cert"):
        tls_context(str(tmp_path / "cert"), str(tmp_path / "key"))


def test_a_port_that_is_taken_is_one_clear_error(serve: Callable[..., Server], endpoints: Endpoints) -> None:
    port = serve().port
    with pytest.raises(GpudiagError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        Server(Address("127.0.0.1", port), endpoints)


def test_ipv6(endpoints: Endpoints) -> None:
    try:
        server = Server(Address("::1", 0), endpoints)
    except GpudiagError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with socket.create_connection(("::1", server.port), timeout=30) as channel:
        channel.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert channel.recv(65536).startswith(b"HTTP/1.0 200")
    server.close()


@pytest.mark.parametrize(
    ("header", "status"),
    [("10", 503), ("0.5", 503), ("30", 200), ("", 200), ("soon", 200), ("nan", 200), ("-1", 200), ("0", 200)],
)
def test_a_scrape_that_comes_too_late_for_its_client_says_so(
    serve: Callable[..., Server], header: str, status: int
) -> None:
    readings = iter([0.0, 20.0])
    server = serve(monotonic=lambda: next(readings))
    answer = get(server, "/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": header})
    assert answer[0] == status
    assert ("Took 20.0 s" in answer[1]) == (status == 503)
    assert ("gpudiag_up 1.0" in answer[1]) == (status == 200)
