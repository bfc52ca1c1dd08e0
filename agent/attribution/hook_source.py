"""Hook files that may be believed. Anybody can write into the directory; not everybody may speak for a scheduler."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.hook_files import FOLDER, HookFile, HookFolder, make_folder, read_hook

log = logging.getLogger(__name__)
_REFUSALS_KEPT = 1000


class HookSource:
    """Reads the directory each tick; a file that was dealt with is removed, or at least not given again."""

    def __init__(self, runtime_dir: Path, root: HostRoot, trusted_uids: Collection[int]) -> None:
        with suppress(OSError):  # without one there are simply no hooks
            make_folder(runtime_dir)
        self._folder = HookFolder(runtime_dir / FOLDER)
        self._root, self._trusted = root, frozenset(trusted_uids)
        self._taken: dict[str, HookFile] = {}
        self._refused: set[str] = set()

    def read(self) -> list[HookFile]:
        """Hooks to believe, by start."""
        hooks, problems = self._folder.read()
        for problem in problems:
            self._refuse(problem)
        present = {one.path for one in hooks}
        self._taken = {path: taken for path, taken in self._taken.items() if path in present}
        return [one for one in hooks if self._taken.get(one.path) != one and self._is_trusted(one)]

    def take(self, found: HookFile) -> None:
        """This file has said all it had to say; one that was replaced since it was read has not."""
        try:
            if read_hook(found.path) == found:
                os.unlink(found.path)
        except FileNotFoundError:
            return
        except (OSError, ValueError):  # not ours to remove: then it is only remembered
            self._taken[found.path] = found

    def _is_trusted(self, found: HookFile) -> bool:
        """Root and we may say anything; others may record a process of their own with `gpudiag run`."""
        if found.owner in self._trusted:
            return True
        if found.hook.kind == "run" and found.hook.pid is not None:
            try:
                owner = os.stat(self._root.path(f"proc/{found.hook.pid}")).st_uid
            except FileNotFoundError:
                owner = found.owner  # over already
            except OSError:
                owner = -1
            if owner == found.owner:
                return True
        self._refuse(f"{found.path}: written by user {found.owner}, who may not speak for this job")
        return False

    def _refuse(self, problem: str) -> None:
        if problem not in self._refused:
            if len(self._refused) < _REFUSALS_KEPT:
                self._refused.add(problem)
            log.warning("hook file ignored: %s", problem)
