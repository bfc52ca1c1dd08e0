"""A listening agent socket, a make-believe torch for CUDA, and an interpreter with the real one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from probe_listener import HOOK, ROOT, Launch, Listener
from programs import missing

FAKE_TORCH = """
class _Stats(dict): pass
class memory:
    peaks = {"allocated_bytes.all.peak": 700, "reserved_bytes.all.peak": 900}
    resets = 0
    @staticmethod
    def memory_stats(device=None):
        return {**memory.peaks, "inactive_split_bytes.all.current": 50, "num_alloc_retries": 2, "num_ooms": 0}
    @staticmethod
    def reset_peak_memory_stats(device=None):
        memory.resets += 1
        memory.peaks = {"allocated_bytes.all.peak": 300, "reserved_bytes.all.peak": 900}
class cuda:
    memory = memory
    memory_stats = memory.memory_stats
    reset_peak_memory_stats = memory.reset_peak_memory_stats
    initialized = True
    @staticmethod
    def is_initialized(): return cuda.initialized
    @staticmethod
    def device_count(): return 1
    @staticmethod
    def current_device(): return 0
    @staticmethod
    def get_device_properties(index):
        class properties: uuid = "1111-22"
        return properties
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path / "probe.sock")
    yield listener
    listener.channel.close()


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH that holds the make-believe torch."""
    package = tmp_path / "packages"
    package.mkdir()
    (package / "torch.py").write_text(FAKE_TORCH)
    return package


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter that has the real PyTorch; it need not have gpudiag."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    for candidate in (os.environ.get("GPUDIAG_TORCH_PYTHON", ""), str(ROOT / ".venvs/torch/bin/python")):
        if candidate and Path(candidate).exists():
            return candidate
    return missing("no interpreter with PyTorch: set GPUDIAG_TORCH_PYTHON")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a program under the start-up hook: `launch(python, code, socket, *more PYTHONPATH)`."""
    started: list[subprocess.Popen[str]] = []

    def start(python: str, code: str, path: Path, *more: Path, hook: bool = True) -> subprocess.Popen[str]:
        program = tmp_path / f"train{len(started)}.py"
        program.write_text(code)
        folders = [*([str(HOOK)] if hook else []), *(str(folder) for folder in more)]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(folders), "GPUDIAG_PROBE_SOCKET": str(path),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        process = subprocess.Popen(
            [python, str(program)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
