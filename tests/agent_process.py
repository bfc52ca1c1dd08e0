"""A real agent process for tests: started on a free port with its own folder, read through /metrics, stopped by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from programs import require
from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


class AgentProcess:
    """`gpudiag agent` with its database, sockets and log below `folder`; extra `settings` are `section.key` to text."""

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/agent.db"
        self.runtime_dir = folder / "run"
        self.log = folder / "agent.log"
        self._address = ""
        given = {
            "storage.url": self.url,
            "agent.runtime_dir": str(self.runtime_dir),
            "agent.node": "node-a",
            "metrics.listen": "127.0.0.1:0",
            **(settings or {}),
        }
        flags = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GPUDIAG_")},
            "GPUDIAG_DB": self.url,
            "GPUDIAG_AGENT__RUNTIME_DIR": str(self.runtime_dir),
            **(environ or {}),
        }
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpudiag", "agent", *flags], env=self.environ, stderr=sink
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        """`http://127.0.0.1:PORT`, told by the agent's log."""
        if not self._address:
            self.wait_for(lambda: "serving http" in self.log.read_text())
            line = next(line for line in self.log.read_text().splitlines() if "serving http" in line)
            self._address = line.split("serving ")[1].split("/metrics")[0]
        return self._address

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.address + path, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> str:
        return self.get("/metrics")[1]

    def values(self, name: str) -> dict[Labels, float]:
        """Series of one metric name: sorted label pairs to value."""
        return series(self.metrics(), name)

    def value(self, name: str) -> float:
        """The only series of this name; 0 when there is none."""
        return next(iter(self.values(name).values()), 0.0)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Poll until it holds; fails with the log when it does not or when the agent ends."""
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"agent {self.process.poll()}: {self.log.read_text()[-4000:]}")
            time.sleep(0.1)

    def wait_for_ticks(self, ticks: int) -> None:
        """Until so many more cycles are done."""
        wanted = self.value("gpudiag_ticks_total") + ticks
        self.wait_for(lambda: self.value("gpudiag_ticks_total") >= wanted)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another gpudiag command in the agent's surroundings."""
        command = [sys.executable, "-m", "gpudiag", *arguments]
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=120, check=False
        )

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=60)


def series(text: str, name: str) -> dict[Labels, float]:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start an agent; all of them are stopped at the end."""
    started: list[AgentProcess] = []

    def start(environ: Mapping[str, str] | None = None, name: str = "agent", **settings: str) -> AgentProcess:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        given = {key.replace("__", "."): value for key, value in settings.items()}
        started.append(AgentProcess(folder, environ, given))
        return started[-1]

    yield start
    for agent in started:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait(timeout=60)


@pytest.fixture
def promtool() -> str:
    return require("promtool")
