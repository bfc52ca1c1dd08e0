"""A private Postgres cluster for tests: on a free loopback port, stopped by pid, gone with the session."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import programs
import psycopg
import pytest

_NAMES = itertools.count(1)
_PATIENCE_SECONDS = 120.0  # after a crash it recovers first, and the machine may be busy


@dataclass
class Cluster:
    """A running server: `start`, `stop` and `kill` are for tests of outages."""

    directory: Path
    bin: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres", user: str = "gpudiag", password: str = "") -> str:
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start and wait until it answers."""
        options = [
            "-D", str(self.directory / "data"), "-p", str(self.port), "-k", str(self.directory),
            "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=250", "-c", "fsync=on",
            "-c", "shared_buffers=64MB", "-c", "logging_collector=off",
        ]  # fmt: skip
        log = (self.directory / "log").open("ab")
        self.process = subprocess.Popen(
            [str(self.bin / "postgres"), *options],
            stdout=log,
            stderr=log,
            user=_unprivileged(),
            cwd=self.directory,
        )
        log.close()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.url(), connect_timeout=10).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        raise RuntimeError(f"postgres did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is its fast shutdown, SIGQUIT an immediate one, as if the power went."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=_PATIENCE_SECONDS)
            self.process = None

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """One statement as the superuser."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """URL of a fresh, empty database."""
        name = f"t{next(_NAMES)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)


def _unprivileged() -> int | None:
    """Postgres refuses to run as root."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A cluster that lives as long as the block."""
    bin = Path(programs.require("initdb")).resolve().parent
    directory = Path(tempfile.mkdtemp(prefix="gpudiag-pg-", dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(directory, pwd.getpwnam("nobody").pw_uid, -1)
    initdb = [
        str(bin / "initdb"),
        "-D",
        str(directory / "data"),
        "-U",
        "gpudiag",
        "-A",
        "trust",
        "-E",
        "UTF8",
    ]
    subprocess.run(
        [*initdb, "--locale=C"], check=True, capture_output=True, user=_unprivileged(), cwd=directory
    )
    cluster = Cluster(directory, bin, _free_port())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A cluster for the session; tests that stop it must start it again."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres: Cluster) -> str:
    """An empty database of its own for one test."""
    return postgres.new_database()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
