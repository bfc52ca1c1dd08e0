"""Files of the hook directory are dealt with once, and never lose what was written meanwhile."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.agent.attribution.hook_source import HookSource
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.hook_files import FOLDER, Hook, write_hook

HOOK = Hook("slurm", "42", 1000)
ENDED = replace(HOOK, end_ms=2000, exit_code=3, state="failed")


@pytest.fixture
def source(tmp_path: Path) -> HookSource:
    return HookSource(tmp_path, HostRoot(tmp_path), (os.getuid(),))


def test_a_file_that_was_taken_is_gone(source: HookSource, tmp_path: Path) -> None:
    path = write_hook(tmp_path / FOLDER, HOOK)
    [found] = source.read()
    source.take(found)
    assert not path.exists()
    assert source.read() == []


def test_the_end_written_after_the_reading_is_not_removed_with_the_start(
    source: HookSource, tmp_path: Path
) -> None:
    write_hook(tmp_path / FOLDER, HOOK)
    [found] = source.read()
    write_hook(tmp_path / FOLDER, ENDED)
    source.take(found)
    assert [one.hook for one in source.read()] == [ENDED]


def test_the_end_written_after_the_start_was_taken_is_read(source: HookSource, tmp_path: Path) -> None:
    write_hook(tmp_path / FOLDER, HOOK)
    source.take(source.read()[0])
    write_hook(tmp_path / FOLDER, ENDED)
    assert [one.hook for one in source.read()] == [ENDED]


def test_a_file_that_cannot_be_removed_is_given_once_until_it_changes(
    source: HookSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", refuse)
    write_hook(tmp_path / FOLDER, HOOK)
    source.take(source.read()[0])
    assert source.read() == []
    write_hook(tmp_path / FOLDER, ENDED)
    assert [one.hook for one in source.read()] == [ENDED]
