"""From the driver to somebody's pager: agent, real Prometheus, real Alertmanager, a webhook.

The built-in rule for a full GPU looks at ten minutes of a job that is twenty minutes old. Here a site's rule of the
same id looks at twenty seconds, so that the test need not run for half an hour; everything behind it is as shipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent_process import AgentProcess
from fake_nvml.control import GIB, FakeNvml
from programs import free_port, require
from prometheus import running

from gpudiag.storage.open import open_reader
from gpudiag.storage.store import StoredFinding

pytestmark = pytest.mark.integration
RULE, ALERT = "memory/gpu-oom-imminent", "GpudiagMemoryGpuOomImminent"
FULL = 141 * GIB
SITE_RULE = f"""
gpudiag: 1
rules:
  - id: {RULE}
    summary: "GPU memory grows steadily and will soon be full."
    why: "The lowest value of the last ten seconds lies above the highest of the ten before."
    severity: critical
    maturity: stable
    scope: gpu
    window: 20s
    min_age: 10s
    let:
      rises: min(memory_used_bytes, over=10) > max(earlier(memory_used_bytes, 10 * second), over=10)
      growth: delta(memory_used_bytes) / (20 * second)
      left: (memory_total - max(memory_used_bytes)) / growth
    when: rises and left < 10 * minute
    for: 0s
    evidence: [growth, left]
    lost: 0.5
"""


class Pager:
    """A webhook that keeps what Alertmanager sends."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        pager = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                pager.alerts += body["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def heard(self, status: str) -> list[dict[str, Any]]:
        return [alert for alert in self.alerts if alert["status"] == status]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Memory:
    """Moves the fake driver's memory: GPU 0 leaks, GPU 1 breathes as a healthy job's does."""

    def __init__(self, driver: FakeNvml, seconds_to_full: float) -> None:
        self._driver, self._speed = driver, (FULL - 60 * GIB) / seconds_to_full
        self._begin, self._stop = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._move)
        self._thread.start()

    def leaked(self) -> float:
        return min(60 * GIB + self._speed * (time.monotonic() - self._begin), FULL)

    def _move(self) -> None:
        while not self._stop.wait(0.2):
            self._driver.set(0, "memory_used", int(self.leaked()))
            swing = 8 * GIB * ((time.monotonic() - self._begin) % 6 < 3)
            self._driver.set(1, "memory_used", int(60 * GIB + swing))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def pager() -> Iterator[Pager]:
    pager = Pager()
    yield pager
    pager.close()


@pytest.fixture
def watched(
    start_agent: Callable[..., AgentProcess], fake_nvml: FakeNvml, pager: Pager, tmp_path: Path
) -> Iterator[AgentProcess]:
    """An agent that a Prometheus scrapes every second, with the shipped alerts and an Alertmanager behind it."""
    site = tmp_path / "site.yaml"
    site.write_text(SITE_RULE)
    fake_nvml.set(None, "gpu_count", 2)
    agent = start_agent(fake_nvml.environ, rules__paths=str(site))
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 2)
    made = agent.command("alerts", "--rules", str(site))
    assert made.returncode == 0, made.stderr
    (tmp_path / "alerts.yaml").write_text(made.stdout)
    with ExitStack() as stack:
        manager = stack.enter_context(_alertmanager(tmp_path, pager.url))
        stack.enter_context(_prometheus(tmp_path, agent.address, manager))
        yield agent


@contextmanager
def _alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    config = folder / "alertmanager.yaml"
    config.write_text(f"""
route: {{receiver: pager, group_by: [...], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers: [{{name: pager, webhook_configs: [{{url: "{webhook}", send_resolved: true}}]}}]
""")
    address = f"127.0.0.1:{free_port()}"
    program = [
        require("prometheus-alertmanager"), f"--config.file={config}", f"--storage.path={folder / 'am'}",
        f"--web.listen-address={address}", "--cluster.listen-address=",
    ]  # fmt: skip
    with running(program, f"http://{address}/-/ready", folder / "alertmanager.log"):
        yield address


@contextmanager
def _prometheus(folder: Path, target: str, manager: str) -> Iterator[str]:
    config = folder / "prometheus.yaml"
    config.write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yaml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{manager}"]}}]}}]}}
scrape_configs: [{{job_name: gpudiag, static_configs: [{{targets: ["{target.removeprefix("http://")}"]}}]}}]
""")
    address = f"127.0.0.1:{free_port()}"
    program = [
        require("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with running(program, f"http://{address}/-/ready", folder / "prometheus.log"):
        yield address


@pytest.fixture
def start_job() -> Iterator[Callable[[AgentProcess, str, str], subprocess.Popen[bytes]]]:
    """Run a job that waits to be told to end, on the GPUs given."""
    jobs: list[subprocess.Popen[bytes]] = []

    def start(agent: AgentProcess, job: str, gpus: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gpudiag", "run", "--job", job, "--quiet", "--", "cat"]
        environ = {**agent.environ, "CUDA_VISIBLE_DEVICES": gpus, "USER": "ann"}
        jobs.append(subprocess.Popen(command, env=environ, stdin=subprocess.PIPE))
        return jobs[-1]

    yield start
    for job in jobs:
        job.communicate(timeout=60)


@pytest.fixture
def memory(watched: AgentProcess, fake_nvml: FakeNvml) -> Iterator[Memory]:
    memory = Memory(fake_nvml, seconds_to_full=240)
    yield memory
    memory.close()


def findings(agent: AgentProcess) -> list[StoredFinding]:
    reader = open_reader(agent.url)
    try:
        return reader.findings(0, 1 << 50)
    finally:
        reader.close()


def test_a_leak_pages_before_memory_is_full_names_the_job_and_resolves_and_a_healthy_job_pages_nobody(
    watched: AgentProcess, memory: Memory, pager: Pager, fake_nvml: FakeNvml, start_job: Callable[..., Any]
) -> None:
    agent = watched
    start_job(agent, "41", "1")
    leaking = start_job(agent, "42", "0")

    agent.wait_for(lambda: bool(pager.heard("firing")), 200)
    assert memory.leaked() < 0.97 * FULL
    (page,) = pager.heard("firing")
    uuid = fake_nvml.uuid(0)
    assert page["labels"]["alertname"] == ALERT
    assert (
        page["labels"].items() >= {"rule": RULE, "uuid": uuid, "job_id": "42", "severity": "critical"}.items()
    )
    assert page["annotations"]["summary"] == "GPU memory grows steadily and will soon be full."
    assert page["annotations"]["description"].startswith("Job 42 of ")
    assert "gpudiag report --job 42" in page["annotations"]["description"]

    # it is the agent's own finding that fired, on the record with its evidence
    assert {dict(labels)["uuid"] for labels in agent.values("gpudiag_finding_active")} == {uuid}
    agent.wait_for(lambda: bool(findings(agent)))
    (found,) = findings(agent)
    assert (found.rule, found.source.device, found.job_key.split("/")[1]) == (RULE, uuid, "42")
    growth = next(one["value"] for one in found.body["evidence"] if one["name"] == "growth")
    assert growth == pytest.approx((FULL - 60 * GIB) / 240, rel=0.3)
    agent.wait_for(lambda: agent.value("gpudiag_finding_lost_gpu_seconds_total") > 1)
    [[labels, _]] = agent.values("gpudiag_finding_lost_gpu_seconds_total").items()
    assert dict(labels) == {"rule": RULE, "uuid": uuid}

    leaking.communicate(timeout=60)
    agent.wait_for(lambda: bool(pager.heard("resolved")), 120)
    (over,) = pager.heard("resolved")
    assert over["labels"] == page["labels"]
    assert {alert["labels"]["job_id"] for alert in pager.alerts} == {"42"}
    assert not agent.values("gpudiag_finding_active")
    agent.wait_for(lambda: all(one.end_ms for one in findings(agent)))
    assert len(findings(agent)) == 1
    assert len(agent.values("gpudiag_job_info")) == 1  # the healthy job still runs, watched all the while
