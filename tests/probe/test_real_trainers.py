"""With the real PyTorch Lightning and Hugging Face Trainer on the CPU: what their callbacks add to what torch tells."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from probe_listener import ROOT, Launch, Listener
from programs import missing

pytestmark = pytest.mark.integration
SOURCE = ROOT / "src"

DATA = """
import time, torch
from torch.utils.data import Dataset
class Slow(Dataset):
    def __len__(self): return 80
    def __getitem__(self, index):
        time.sleep(0.01)
        return dict(x=torch.ones(4), labels=torch.zeros(1))
"""
LIGHTNING = (
    DATA
    + """
import pytorch_lightning as pl
from torch.utils.data import DataLoader
from gpudiag.probe.lightning import GpudiagCallback
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index): return self.layer(batch["x"]).square().mean()
    def validation_step(self, batch, index): self.log("loss", self.layer(batch["x"]).mean())
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", val_check_interval=20, num_sanity_val_steps=0, logger=False,
    default_root_dir={folder!r}, enable_progress_bar=False, callbacks=[
        GpudiagCallback(), pl.callbacks.ModelCheckpoint(dirpath={folder!r}, every_n_train_steps=30),
    ],
)
trainer.fit(Module(), DataLoader(Slow(), batch_size=2), DataLoader(Slow(), batch_size=16))
time.sleep(2)
"""
)
TRANSFORMERS = (
    DATA
    + """
from transformers import Trainer, TrainingArguments
from gpudiag.probe.transformers import GpudiagCallback
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x=None, labels=None):
        y = self.layer(x)
        return dict(loss=(y - labels).square().mean(), logits=y)
arguments = TrainingArguments(
    output_dir={folder!r}, use_cpu=True, per_device_train_batch_size=2, per_device_eval_batch_size=16, max_steps=40,
    eval_strategy="steps", eval_steps=20, save_strategy="steps", save_steps=30, report_to=[], disable_tqdm=True,
)
Trainer(Model(), arguments, train_dataset=Slow(), eval_dataset=Slow(), callbacks=[GpudiagCallback()]).train()
time.sleep(2)
"""
)


def until_the_end(process: subprocess.Popen[str], listener: Listener) -> Iterator[dict[str, Any]]:
    while True:
        message = listener.poll(0.2)
        if message is not None:
            yield message
        elif process.poll() is not None:
            return


def require_module(python: str, module: str) -> None:
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        missing(f"{python} has no {module}")


@pytest.mark.parametrize(
    ("module", "program"), [("pytorch_lightning", LIGHTNING), ("transformers", TRANSFORMERS)]
)
def test_a_real_trainer_tells_steps_waits_evaluations_and_checkpoints(
    launch: Launch, listener: Listener, torch_python: str, tmp_path: Path, module: str, program: str
) -> None:
    require_module(torch_python, module)
    process = launch(torch_python, program.format(folder=str(tmp_path / "out")), listener.path, SOURCE)
    messages = list(until_the_end(process, listener))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert sum(message["steps"] for message in messages) == 40
    waited, lasted = (sum(one[name] for one in messages) for name in ("wait_seconds", "step_seconds"))
    assert 0.5 < waited / lasted <= 1.0
    assert messages[-1]["loader"]["workers"] == 0
    times = {name: [at for one in messages for mark, at in one["marks"] if mark == name] for name in MARKS}
    assert len(times["eval_start"]) == len(times["eval_end"]) == 2
    assert all(end - start > 0.7 for start, end in zip(times["eval_start"], times["eval_end"], strict=True))
    assert times["checkpoint_start"]
    order = [mark for one in messages for mark, _ in one["marks"] if mark.startswith("checkpoint")]
    assert all(first != second for first, second in itertools.pairwise(order))


MARKS = ("eval_start", "eval_end", "checkpoint_start", "checkpoint_end")
