"""The trainers' callbacks mark what only the trainer knows (with the trainers' base classes made believe)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import pytest

from gpudiag import probe


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    marks: list[str] = []
    monkeypatch.setattr(probe, "mark", marks.append)
    monkeypatch.setattr(probe, "start", lambda: marks.append("start"))
    yield marks
    for name in ("gpudiag.probe.lightning", "gpudiag.probe.transformers"):
        sys.modules.pop(name, None)


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, base: str) -> None:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:length]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    setattr(sys.modules[name], base, type(base, (), {}))


def test_lightning(monkeypatch: pytest.MonkeyPatch, marks: list[str]) -> None:
    pretend(monkeypatch, "lightning.pytorch.callbacks", "Callback")
    callback = importlib.import_module("gpudiag.probe.lightning").GpudiagCallback()
    callback.setup(None, None, "fit")
    callback.on_validation_start(None, None)
    callback.on_validation_end(None, None)
    callback.on_save_checkpoint(None, None, {})
    assert marks == ["start", "eval_start", "eval_end", "checkpoint_start"]


@dataclass
class Control:
    should_evaluate: bool = False
    should_save: bool = False


def test_transformers_evaluates_before_it_saves(monkeypatch: pytest.MonkeyPatch, marks: list[str]) -> None:
    pretend(monkeypatch, "transformers", "TrainerCallback")
    callback = importlib.import_module("gpudiag.probe.transformers").GpudiagCallback()
    callback.on_train_begin(None, None, Control())
    callback.on_step_end(None, None, Control())
    assert marks == ["start"]
    both = Control(should_evaluate=True, should_save=True)
    callback.on_step_end(None, None, both)
    callback.on_evaluate(None, None, both)
    callback.on_save(None, None, both)
    assert marks[1:] == ["eval_start", "eval_end", "checkpoint_start", "checkpoint_end"]


def test_transformers_saves_without_evaluating_and_evaluates_when_asked(
    monkeypatch: pytest.MonkeyPatch, marks: list[str]
) -> None:
    pretend(monkeypatch, "transformers", "TrainerCallback")
    callback = importlib.import_module("gpudiag.probe.transformers").GpudiagCallback()
    callback.on_epoch_end(None, None, Control(should_save=True))
    callback.on_save(None, None, Control(should_save=True))
    callback.on_prediction_step(None, None, Control())
    callback.on_evaluate(None, None, Control())
    assert marks == ["checkpoint_start", "checkpoint_end", "eval_start", "eval_end"]
