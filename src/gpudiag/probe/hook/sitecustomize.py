"""Start-up hook: Python imports this file from PYTHONPATH, before the program, in every interpreter.

It works without gpudiag being installed where the program runs, and lets a sitecustomize that was there
before run as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str, **more: Any) -> Any:
    spec = importlib.util.spec_from_file_location(name, path, **more)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _start() -> None:
    package = os.path.dirname(_HERE)
    path = os.path.join(package, "__init__.py")
    _load("gpudiag_probe", path, submodule_search_locations=[package]).start()


def _run_the_one_before() -> None:
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder) != _HERE and os.path.exists(path):
            _load("sitecustomize", path)
            return


with contextlib.suppress(Exception):  # nothing here may reach the user's program
    _start()
_run_the_one_before()
