"""Labels of pods from an API server over TLS: made up here, with a real certificate and a token."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from programs import require

from gpudiag.agent.attribution.pod_labels import ASK_SECONDS, PodLabels
from gpudiag.errors import InputError


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": name, "labels": {"pod-template-hash": "x", **labels}}}


@dataclass
class ApiServer:
    """Answers who has the token, with the pods of the node that was asked for."""

    account: Path
    port: int = 0
    pods: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        self.paths.append(path)
        token = (self.account / "token").read_text().strip()
        if authorization != f"Bearer {token}":
            return 401, {"kind": "Status", "message": "Unauthorized"}
        return 200, {"kind": "PartialObjectMetadataList", "items": self.pods}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    cert, key = tmp_path / "ca.crt", tmp_path / "key.pem"
    subprocess.run(
        [require("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-days", "1", "-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (tmp_path / "token").write_text("first\n")
    made = ApiServer(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, content = made.answer(self.path, self.headers["Authorization"])
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    made.port = listening.server_port
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield made
    listening.shutdown()
    thread.join()
    listening.server_close()


class Asking:
    """The source, with a clock that the test turns."""

    def __init__(self, server: ApiServer, *wanted: str) -> None:
        self.now = 0.0
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        self.source = PodLabels(wanted, "node-1", environ, lambda: self.now, server.account)

    def again(self) -> None:
        self.now += ASK_SECONDS
        self.source.poll()

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline, self.source.labels
            time.sleep(0.01)


@pytest.mark.integration
def test_only_labels_that_are_named_are_kept_of_this_nodes_pods(server: ApiServer) -> None:
    server.pods = [
        pod("train-0", team="vision", secret="x"),
        pod("other"),
        {"metadata": {"namespace": "ml", "name": "b"}},
    ]
    asking = Asking(server, "team", "app.kubernetes.io/name")
    asking.again()
    asking.until(lambda: bool(asking.source.labels))
    assert asking.source.labels == {("ml", "train-0"): {"team": "vision"}}
    assert parse_qs(urlsplit(server.paths[0]).query)["fieldSelector"] == ["spec.nodeName=node-1"]


@pytest.mark.integration
def test_the_server_is_asked_once_a_minute_with_the_token_of_the_moment(server: ApiServer) -> None:
    server.pods = [pod("train-0", team="a")]
    asking = Asking(server, "team")
    for _ in range(3):
        asking.source.poll()
    asking.until(lambda: bool(asking.source.labels))
    asking.source.poll()
    assert len(server.paths) == 1
    (server.account / "token").write_text("renewed")
    server.pods = [pod("train-0", team="b")]
    asking.again()
    asking.until(lambda: asking.source.labels == {("ml", "train-0"): {"team": "b"}})
    assert len(server.paths) == 2


@pytest.mark.integration
def test_the_last_answer_counts_while_the_server_refuses(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.pods = [pod("train-0", team="a")]
    asking = Asking(server, "team")
    asking.again()
    asking.until(lambda: bool(asking.source.labels))
    server.pods = [{"nonsense": 1}]
    for count in (1, 2):
        asking.again()
        asking.until(lambda count=count: len(server.paths) > count)  # type: ignore[misc]
        assert asking.source._thread is not None
        asking.source._thread.join(30)
    assert asking.source.labels == {("ml", "train-0"): {"team": "a"}}
    assert caplog.text.count("does not tell labels") == 1


@pytest.mark.integration
def test_a_server_with_another_certificate_gets_no_token(server: ApiServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "token").write_text("first")
    subprocess.run(
        [require("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-days", "1", "-subj", "/CN=x", "-keyout", str(other / "k"), "-out", str(other / "ca.crt")],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    asking = Asking(server, "team")
    asking.source._account = other
    asking.again()
    assert asking.source._thread is not None
    asking.source._thread.join(30)
    assert (server.paths, asking.source.labels) == ([], {})


def test_outside_a_pod_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="service account"):
        PodLabels(("team",), "n", {}, lambda: 0.0, tmp_path)
