"""How many processes a large report may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.cli.processes import allowed_processes

GIB = 2**30


def host(path: Path, cpu_max: str = "max 100000", memory_max: str = "max") -> HostRoot:
    """A shell in a user's slice that bounds CPUs and memory, on a machine of 16 CPUs."""
    files = {
        "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope\n",
        "sys/devices/system/cpu/online": "0-15\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": f"{cpu_max}\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/memory.max": f"{memory_max}\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope/cgroup.procs": "1\n",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return HostRoot.at(path)


@pytest.mark.parametrize(
    ("limits", "cpus", "expected"),
    [
        ({}, 16, 16),
        ({}, 1, 1),
        ({"cpu_max": "250000 100000"}, 16, 2),
        ({"cpu_max": "50000 100000"}, 16, 1),
        ({"memory_max": str(GIB)}, 16, 2),
        ({"memory_max": str(GIB // 8)}, 16, 1),
    ],
)
def test_cpus_and_memory_bound_them(tmp_path: Path, limits: dict[str, str], cpus: int, expected: int) -> None:
    assert allowed_processes(host(tmp_path, **limits), cpus) == expected


def test_a_machine_without_control_groups_is_bound_by_its_cpus(tmp_path: Path) -> None:
    assert allowed_processes(HostRoot.at(tmp_path), 3) == 3
