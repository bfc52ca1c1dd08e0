"""Slurm's accounting for tests: a real slurmdbd over a MariaDB of its own, on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from programs import free_port, require

CONFIGURATION = """
AuthType=auth/munge
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


@dataclass(frozen=True)
class Accounting:
    """A slurmdbd that answers; `settings` is what slurm.conf says after `AccountingStorageType=`."""

    port: int

    @property
    def settings(self) -> str:
        return (
            "accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={self.port}\nAccountingStorageTRES=gres/gpu"
        )


@contextlib.contextmanager
def start_accounting(folder: Path) -> Iterator[Accounting]:
    """Its files lie in `folder`, beside where slurm.conf will be."""
    programs = {name: require(name) for name in ("mariadbd", "mariadb-install-db", "slurmdbd", "sacct")}
    folder.mkdir(parents=True)
    database, port = free_port(), free_port()
    with _mariadb(programs, folder, database):
        host = socket.gethostname().split(".")[0]
        configuration = folder / "slurmdbd.conf"
        configuration.write_text(CONFIGURATION.format(host=host, port=port, database=database, folder=folder))
        configuration.chmod(0o600)
        environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        with _running([programs["slurmdbd"], "-D"], folder / "slurmdbd.out", port, environ):
            yield Accounting(port)


@contextlib.contextmanager
def _mariadb(programs: dict[str, str], folder: Path, port: int) -> Iterator[None]:
    data, socket_path = folder / "mariadb", folder / "m.sock"
    install = [programs["mariadb-install-db"], "--no-defaults", f"--datadir={data}", "--user=root"]
    # nobody without a name: that account would win over ours
    options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run([*install, *options], check=True, capture_output=True)
    accounts = folder / "accounts.sql"
    accounts.write_text("CREATE USER slurm@localhost;\nGRANT ALL ON slurm.* TO slurm@localhost;\n")
    server = [
        programs["mariadbd"], "--no-defaults", f"--datadir={data}", f"--socket={socket_path}", "--user=root",
        "--bind-address=127.0.0.1", f"--port={port}", f"--init-file={accounts}", f"--pid-file={folder}/m.pid",
    ]  # fmt: skip
    with _running(server, folder / "mariadb.out", port, dict(os.environ)):
        yield


@contextlib.contextmanager
def _running(command: list[str], log: Path, port: int, environ: dict[str, str]) -> Iterator[None]:
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ) as process,
    ):
        try:
            _wait(process, port, log)
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
