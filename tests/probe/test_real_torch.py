"""With the real PyTorch on the CPU: steps, data waits, loader settings, marks, fork, torchrun."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from probe_listener import HOOK, Launch, Listener

pytestmark = pytest.mark.integration

TRAIN = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return {length}
    def __getitem__(self, index):
        time.sleep({wait})
        return torch.ones(4)

def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Slow(), batch_size=2, num_workers={workers}):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep({compute})
"""


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def stepping(message: dict[str, object]) -> bool:
    return bool(message["timed_steps"])


def test_waiting_for_a_slow_data_set_is_seen(launch: Launch, listener: Listener, torch_python: str) -> None:
    code = TRAIN.format(length=400, wait=0.015, workers=0, compute=0.01) + "train()\n"
    process = launch(torch_python, code, listener.path)
    message = listener.receive(lambda m: m["timed_steps"] >= 10)
    process.kill()
    assert message["wait_seconds"] / message["step_seconds"] == pytest.approx(0.75, abs=0.15)
    assert message["step_seconds"] / message["timed_steps"] == pytest.approx(0.04, rel=0.5)
    assert message["loader"] == {
        "workers": 0, "batch_size": 2, "pin_memory": False, "prefetch_factor": None, "persistent_workers": False,
    }  # fmt: skip
    assert message["samples"] == pytest.approx(2 * message["steps"], abs=2)


def test_a_fast_data_set_is_not_called_slow(launch: Launch, listener: Listener, torch_python: str) -> None:
    code = TRAIN.format(length=4000, wait=0, workers=0, compute=0.03) + "train()\n"
    process = launch(torch_python, code, listener.path)
    message = listener.receive(lambda m: m["timed_steps"] >= 10)
    process.kill()
    assert message["wait_seconds"] / message["step_seconds"] < 0.1


def test_evaluation_and_checkpoints_are_marked(
    launch: Launch, listener: Listener, torch_python: str, tmp_path: Path
) -> None:
    code = TRAIN.format(length=4, wait=0, workers=0, compute=0.01) + (
        f"train()\nmodel = torch.nn.Linear(4, 1)\ntorch.save(model.state_dict(), {str(tmp_path / 'model.pt')!r})\n"
        "model.eval()\ntrain()\ntime.sleep(2)\n"
    )
    process = launch(torch_python, code, listener.path)
    marks: list[str] = []
    while "eval_end" not in marks:
        marks += [name for name, _ in listener.receive(lambda m: bool(m["marks"]))["marks"]]
    assert marks == ["checkpoint_start", "checkpoint_end", "eval_start", "eval_end"]
    finish(process)
    assert (tmp_path / "model.pt").exists()


def test_workers_and_a_training_child_survive_fork(
    launch: Launch, listener: Listener, torch_python: str
) -> None:
    code = TRAIN.format(length=300, wait=0.005, workers=2, compute=0.01) + (
        "import os\npid = os.fork()\nif pid == 0:\n    train()\n    os._exit(0)\nos.waitpid(pid, 0)\n"
    )
    process = launch(torch_python, code, listener.path)
    message = listener.receive(stepping)
    assert message["pid"] != process.pid
    assert message["loader"]["workers"] == 2
    finish(process)


def test_both_ranks_of_torchrun_report(listener: Listener, torch_python: str, tmp_path: Path) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(
        TRAIN.format(length=300, wait=0.0, workers=0, compute=0.02)
        + "import torch.distributed as dist\ndist.init_process_group('gloo')\ntrain()\ndist.barrier()\n"
    )
    process = subprocess.Popen(
        [torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)],
        env={
            **os.environ,
            "PYTHONPATH": str(HOOK),
            "GPUDIAG_PROBE_SOCKET": str(listener.path),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = listener.receive(stepping)["rank"]
        second = listener.receive(lambda m: stepping(m) and m["rank"] != first)["rank"]
        assert {first, second} == {"0", "1"}
        finish(process)
    finally:
        process.kill()
        process.communicate()


COST = """
import json, time, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for parameter in model.parameters(): parameter.grad = torch.zeros_like(parameter)
def measure():
    best = 1e9
    for _ in range(7):
        loader = iter(DataLoader(torch.zeros(400, 8), batch_size=1))
        began = time.perf_counter()
        for batch in loader: optimizer.step()
        best = min(best, (time.perf_counter() - began) / 400)
    return best
print(json.dumps(measure()))
"""


def test_the_hooks_take_microseconds_of_a_step(launch: Launch, listener: Listener, torch_python: str) -> None:
    """The bound here only catches a blunder (a system call, a lock); the figure is in bench/RESULTS.md."""
    without = json.loads(finish(launch(torch_python, COST, listener.path, hook=False)))
    with_hook = json.loads(finish(launch(torch_python, COST, listener.path)))
    assert with_hook - without < 500e-6
