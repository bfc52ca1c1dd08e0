"""Hook files: written whole, read back, and never trusted blindly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.hook_files import (
    Hook,
    HookFolder,
    make_folder,
    open_runs,
    parse_hook,
    prune,
    read_hooks,
    write_hook,
)

HOOK = Hook("slurm", "42", 1000, devices=("minor:0",))


def test_a_hook_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_hook(tmp_path, HOOK)
    [found], problems = read_hooks(tmp_path)
    assert (found.hook, problems) == (HOOK, [])


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    st.builds(
        Hook,
        _TEXT.filter(bool),
        _TEXT.filter(bool),
        st.integers(0, 1 << 50),
        _TEXT,
        end_ms=st.none() | st.integers(0, 1 << 50),
        exit_code=st.none() | st.integers(-1, 255),
        name=_TEXT,
        devices=st.none() | st.lists(_TEXT, max_size=3).map(tuple),
        tags=st.lists(_TEXT, max_size=3).map(tuple),
        meta=st.dictionaries(_TEXT, _TEXT, max_size=3),
    )
)
def test_every_hook_is_read_back(tmp_path_factory: pytest.TempPathFactory, hook: Hook) -> None:
    folder = tmp_path_factory.mktemp("hooks")
    path = write_hook(folder, hook)
    assert path.parent == folder
    [found], _ = read_hooks(folder)
    assert found.hook == hook


@pytest.mark.parametrize("others", [("a/b", "a_b"), (".", "..", "%2E"), ("x" * 200, "x" * 201)])
def test_two_jobs_of_one_instant_never_share_a_file(tmp_path: Path, others: tuple[str, ...]) -> None:
    for raw_id in others:
        write_hook(tmp_path, Hook("run", raw_id, 5))
    hooks, problems = read_hooks(tmp_path)
    assert (sorted(one.hook.raw_id for one in hooks), problems) == (sorted(others), [])


def test_an_id_cannot_leave_the_directory(tmp_path: Path) -> None:
    path = write_hook(tmp_path / "jobs.d", Hook("run", "../../etc/passwd", 5))
    assert path.parent == tmp_path / "jobs.d"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "3", '{"gpudiag_hook": 1}', '{"gpudiag_hook": "1", "kind": "a", "raw_id": "b", "start_ms": 1}',
        '{"gpudiag_hook": 1, "kind": "a", "raw_id": "", "start_ms": 1}',
        '{"gpudiag_hook": 1, "kind": "a", "raw_id": "b", "start_ms": true}',
        '{"gpudiag_hook": 1, "kind": "a", "raw_id": "b", "start_ms": 1, "devices": "all"}',
        '{"gpudiag_hook": 1, "kind": "a", "raw_id": "b", "start_ms": 1, "pid": "7"}',
    ],
)  # fmt: skip
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - several texts
        parse_hook(text)


def test_keys_of_later_versions_are_ignored() -> None:
    text = json.dumps({"gpudiag_hook": 9, "kind": "slurm", "raw_id": "42", "start_ms": 1, "colour": "red"})
    assert parse_hook(text) == Hook("slurm", "42", 1)


@given(st.text(max_size=200))
def test_any_text_is_a_hook_or_refused(text: str) -> None:
    try:
        parse_hook(text)
    except (ValueError, RecursionError):
        return


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = write_hook(tmp_path / "elsewhere", HOOK)
    (tmp_path / "jobs.d").mkdir()
    (tmp_path / "jobs.d" / "42.json").symlink_to(outside)
    hooks, problems = read_hooks(tmp_path / "jobs.d")
    assert hooks == []
    assert len(problems) == 1


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(" " * (2 << 20))
    hooks, [problem] = read_hooks(tmp_path)
    assert hooks == []
    assert "too large" in problem


def test_half_written_files_are_not_seen(tmp_path: Path) -> None:
    (tmp_path / ".tmpabc").write_text("{")
    (tmp_path / ".hidden.json").write_text("{")
    assert read_hooks(tmp_path) == ([], [])


def test_the_directory_is_open_to_all_but_protects_each_file(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "run").stat().st_mode & 0o7777 == 0o1777


def test_only_open_runs_of_the_job_are_listed(tmp_path: Path) -> None:
    write_hook(tmp_path, Hook("slurm", "42", 1000, end_ms=2000))
    write_hook(tmp_path, Hook("slurm", "42", 3000))
    write_hook(tmp_path, Hook("slurm", "43", 3000))
    assert [one.hook.start_ms for one in open_runs(tmp_path, "42")] == [3000]


def test_ends_that_nobody_took_are_kept_for_a_week(tmp_path: Path) -> None:
    day_ms = 86_400_000
    for day in (1, 8):
        write_hook(tmp_path, Hook("slurm", "42", day * day_ms, end_ms=day * day_ms))
    write_hook(tmp_path, Hook("slurm", "43", 1))
    prune(tmp_path, now=10 * 86_400)
    assert sorted(one.hook.start_ms for one in read_hooks(tmp_path)[0]) == [1, 8 * day_ms]


def test_the_agent_sees_every_change_of_the_directory(tmp_path: Path) -> None:
    folder = HookFolder(tmp_path)
    assert folder.read() == ([], [])
    write_hook(tmp_path, HOOK)
    assert [one.hook.raw_id for one in folder.read()[0]] == ["42"]
    write_hook(tmp_path, Hook("slurm", "42", 1000, end_ms=2000))
    assert [one.hook.end_ms for one in folder.read()[0]] == [2000]
    for path in tmp_path.iterdir():
        path.unlink()
    assert folder.read() == ([], [])


def test_an_unchanged_directory_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hook(tmp_path, HOOK)
    os.utime(tmp_path, (1, 1))
    folder = HookFolder(tmp_path)
    assert len(folder.read()[0]) == 1
    monkeypatch.setattr("gpudiag.agent.hook_files.read_hooks", lambda folder: pytest.fail("read again"))
    assert len(folder.read()[0]) == 1
