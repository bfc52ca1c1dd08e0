"""A real single-node Slurm on loopback: munged, slurmctld and slurmd, with two make-believe GPUs."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import free_port, missing, require
from slurm_accounting import Accounting, start_accounting

CONFIGURATION = """
ClusterName=gpudiagtest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=20
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType={accounting}
ReturnToService=2
JobRequeue=1
MinJobAge=300
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
SlurmctldPort={controller}
SlurmdPort={daemon}
Prolog={folder}/prolog.sh
Epilog={folder}/epilog.sh
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
GRES = "NodeName={host} Name=gpu File={folder}/dev/nvidia[0-1] Flags=nvidia_gpu_env\n"
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\nConstrainDevices=no\n"


@dataclass(frozen=True)
class Slurm:
    """A cluster that accepts jobs; `environ` makes Slurm's commands talk to it."""

    folder: Path
    host: str
    environ: dict[str, str]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            arguments,
            check=False,
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout.strip()

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a shell script; returns the job id."""
        path = self.folder / f"job{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        return self("sbatch", "--parsable", "-o", f"{self.folder}/log/%A_%a.out", *options, str(path))

    def states(self, job: str) -> list[str]:
        """State of each element of the job, by index; empty once Slurm has forgotten it."""
        return self("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%T", "-j", job).split()

    def wait(self, job: str, *wanted: str, seconds: float = 120) -> None:
        """Until every element of the job is in one of the wanted states."""
        deadline = time.monotonic() + seconds
        while not ((states := self.states(job)) and set(states) <= set(wanted)):
            assert time.monotonic() < deadline, f"job {job} is {states}, not {wanted}: {self.log()}"
            time.sleep(0.2)

    def forget_jobs(self) -> None:
        """What MinJobAge does after some minutes, at once: the controller starts again with nothing."""
        _stop(self.folder / "slurmctld.pid")
        subprocess.run(["slurmctld", "-c"], env=self.environ, check=True, capture_output=True)
        _until(lambda: "UP" in self("scontrol", "ping"), "slurmctld", self)

    def log(self) -> str:
        return (self.folder / "log/slurmd.log").read_text()[-2000:]


@pytest.fixture
def accounting(tmp_path: Path) -> Iterator[Accounting]:
    """A real slurmdbd over a real MariaDB, to be given to `slurm`."""
    if os.getuid() != 0:
        missing("Slurm's daemons start jobs for users: needs root")
    _open_to_all(tmp_path)
    munge = tmp_path / "munge"
    munge.mkdir()
    _munge({name: require(name) for name in ("munged", "mungekey", "munge")}, munge)
    try:
        with start_accounting(tmp_path / "slurm") as started:
            yield started
    finally:
        _stop(munge / "munged.pid")


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Callable[..., Slurm]]:
    """`slurm(prolog, epilog)`: start the cluster with these shell lines as hooks; `accounting` makes it keep books."""
    if os.getuid() != 0:
        missing("Slurm's daemons start jobs for users: needs root")
    programs = {
        name: require(name)
        for name in ("munged", "mungekey", "munge", "slurmctld", "slurmd", "scontrol", "sbatch")
    }
    folder = tmp_path / "slurm"
    clusters: list[Slurm] = []

    def start(prolog: str, epilog: str, accounting: Accounting | None = None) -> Slurm:
        cluster = _configure(folder, prolog, epilog, accounting)
        clusters.append(cluster)
        _munge(programs, folder)
        subprocess.run([programs["slurmctld"], "-c"], env=cluster.environ, check=True, capture_output=True)
        _until(lambda: "UP" in cluster("scontrol", "ping"), "slurmctld", cluster)
        subprocess.run(
            [programs["slurmd"], "-N", cluster.host], env=cluster.environ, check=True, capture_output=True
        )
        _until(lambda: cluster("sinfo", "-h", "-o", "%T") == "idle", "slurmd", cluster)
        return cluster

    yield start
    for cluster in clusters:
        for job in cluster("squeue", "-h", "-o", "%A").split():
            subprocess.run([shutil.which("scancel") or "scancel", job], env=cluster.environ, check=False)
    for name in ("slurmd", "slurmctld", "munged"):
        _stop(folder / f"{name}.pid")


def _open_to_all(folder: Path) -> None:
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o755)


def _configure(folder: Path, prolog: str, epilog: str, accounting: Accounting | None) -> Slurm:
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool", "log", "dev"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _open_to_all(folder)
    (folder / "log").chmod(0o777)
    for index in range(2):
        os.mknod(folder / f"dev/nvidia{index}", 0o666 | 0o020000, os.makedev(1, 3))
    for name, lines in (("prolog", prolog), ("epilog", epilog)):
        script = folder / f"{name}.sh"
        script.write_text(f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)
    values = {
        "folder": folder, "host": host, "cpus": os.cpu_count(), "controller": free_port(), "daemon": free_port(),
        "accounting": accounting.settings if accounting else "accounting_storage/none",
    }  # fmt: skip
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
    (folder / "gres.conf").write_text(GRES.format(**values))
    (folder / "cgroup.conf").write_text(CGROUP)
    return Slurm(folder, host, {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")})


def _munge(programs: dict[str, str], folder: Path) -> None:
    """Authentication for this test only: own key, own socket would need a rebuilt Slurm, so the system's path."""
    user = pwd.getpwnam("munge")
    for path, mode in (("/run/munge", 0o755), ("/var/log/munge", 0o700), ("/var/lib/munge", 0o700)):
        Path(path).mkdir(parents=True, exist_ok=True)
        os.chown(path, user.pw_uid, user.pw_gid)
        Path(path).chmod(mode)
    if not Path("/etc/munge/munge.key").exists():
        subprocess.run(["runuser", "-u", "munge", "--", programs["mungekey"], "-c"], check=True)
    if subprocess.run([programs["munge"], "-n"], capture_output=True, check=False).returncode:
        subprocess.run(["runuser", "-u", "munge", "--", programs["munged"]], check=True, capture_output=True)
        (folder / "munged.pid").write_text(Path("/run/munge/munged.pid").read_text())


def _until(ready: Callable[[], bool], what: str, cluster: Slurm) -> None:
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(AssertionError):
            if ready():
                return
        assert time.monotonic() < deadline, f"{what} is not ready"
        time.sleep(0.1)


def _stop(pid_file: Path) -> None:
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
