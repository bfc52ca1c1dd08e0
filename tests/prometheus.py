"""Real Prometheus and VictoriaMetrics on loopback, holding series that a test has made."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import free_port, require


@contextmanager
def running(arguments: list[str], ready: str, log: Path, seconds: float = 60) -> Iterator[None]:
    """The program, once `ready` (a URL) answers; ended by its own process id afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                urllib.request.urlopen(ready, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, f"{arguments[0]} is not ready: {log.read_text()[-2000:]}"
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


Serve = Callable[[str], str]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Serve]:
    """`prometheus(openmetrics_text) -> base URL` of a server whose database holds exactly that."""
    promtool, server = require("promtool"), require("prometheus")
    contexts = []

    def serve(text: str) -> str:
        data, source, config = tmp_path / "tsdb", tmp_path / "series.om", tmp_path / "prometheus.yml"
        source.write_text(text)
        config.write_text("global: {}\n")
        subprocess.run(
            [promtool, "tsdb", "create-blocks-from", "openmetrics", "-q", str(source), str(data)],
            check=True, capture_output=True,
        )  # fmt: skip
        url = f"http://127.0.0.1:{free_port()}"
        context = running(
            [server, f"--config.file={config}", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=100y",
             f"--web.listen-address={url.removeprefix('http://')}"],
            f"{url}/-/ready", tmp_path / "prometheus.log",
        )  # fmt: skip
        context.__enter__()
        contexts.append(context)
        return url

    yield serve
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture
def victoria_metrics(tmp_path: Path) -> Iterator[Serve]:
    """The same with VictoriaMetrics."""
    server = require("victoria-metrics")
    contexts = []

    def serve(text: str) -> str:
        url = f"http://127.0.0.1:{free_port()}"
        context = running(
            [server, f"-storageDataPath={tmp_path / 'vm'}", f"-httpListenAddr={url.removeprefix('http://')}",
             "-retentionPeriod=100y", "-search.latencyOffset=0s"],
            f"{url}/health", tmp_path / "victoria-metrics.log",
        )  # fmt: skip
        context.__enter__()
        contexts.append(context)
        lines = [_milliseconds(line) for line in text.splitlines() if line and not line.startswith("#")]
        body = "\n".join(lines).encode()
        urllib.request.urlopen(
            urllib.request.Request(f"{url}/api/v1/import/prometheus", body), timeout=60
        ).close()
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=60).close()
        return url

    yield serve
    for context in contexts:
        context.__exit__(None, None, None)


def _milliseconds(line: str) -> str:
    """OpenMetrics stamps seconds, the Prometheus text format milliseconds."""
    head, _, stamp = line.rpartition(" ")
    return f"{head} {round(float(stamp) * 1000)}"
