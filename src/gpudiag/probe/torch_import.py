"""Waits for the program to import torch, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .recorder import Recorder
from .sender import Sender
from .torch_hooks import attach


def when_torch_is_imported(recorder: Recorder, sender: Sender) -> None:
    """Attach to torch now if it is there, else right after its import has finished."""
    torch = sys.modules.get("torch")
    if torch is not None:
        attach(torch, recorder, sender)
    else:
        sys.meta_path.insert(0, _Finder(recorder, sender))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the real finders find torch and wraps the loader they give."""

    def __init__(self, recorder: Recorder, sender: Sender) -> None:
        self._recorder, self._sender = recorder, sender

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._recorder, self._sender)
        return spec


class _Loader(importlib.abc.Loader):
    """The real loader, with `attach` after it; everything else is passed on."""

    def __init__(self, real: Any, recorder: Recorder, sender: Sender) -> None:
        self._real, self._recorder, self._sender = real, recorder, sender

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._real.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        attach(module, self._recorder, self._sender)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
