"""Real faults of the machine: no space, no right to write, damage, clocks. Nothing acknowledged is lost."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from gpudiag.errors import CorruptStoreError, StoreError
from gpudiag.storage.open import open_reader, open_store
from gpudiag.storage.sample import Source
from gpudiag.storage.schema import WINDOW_MS
from gpudiag.storage.sqlstore import SqlStore

from .conftest import NODE, START_MS, Feed, seconds  # isort: skip

GPU = Source(NODE, "GPU-0")
END_MS = 2**42


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def fill_until_error(store: SqlStore, feed: Feed, limit: int = 4000) -> tuple[list[int], StoreError]:
    """Seconds whose flush was acknowledged, and what ended it."""
    acknowledged: list[int] = []
    for second in range(0, limit, 10):
        try:
            store.append(feed.frames(second, 10))
        except StoreError as error:
            return acknowledged, error
        acknowledged += range(second, second + 10)
    raise AssertionError("no error came")


FULL = """
import resource, signal, sys
sys.path.insert(0, "tests/storage")
from conftest import Feed
from gpudiag.errors import StoreError
from gpudiag.storage.open import open_store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
store, feed = open_store(sys.argv[1], node="node1", agent=True), Feed()
second = 0
while True:
    try:
        store.append(feed.frames(second, 10))
    except StoreError as error:
        print("error", error, flush=True)
        break
    print(second, flush=True)
    second += 10
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.close()
store = open_store(sys.argv[1], node="node1", agent=True)  # as the agent does after a failure
store.append(feed.frames(second, 10))
print("again", second, flush=True)
store.close()
"""


@pytest.mark.integration
@pytest.mark.parametrize("limit", [300_000, 600_000, 1_500_000])
def test_a_full_disk_loses_nothing_acknowledged_and_is_over_when_there_is_space(
    url: str, feed: Feed, limit: int
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FULL, url, str(limit)],
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stdout.splitlines()
    flushes = [int(line) for line in lines if line.isdigit()]
    assert lines[-2].startswith("error")
    assert str(path_of(url)) in lines[-2]
    assert lines[-1] == f"again {flushes[-1] + 10}"
    reader = open_reader(url)
    found = seconds(reader.read(GPU, START_MS, END_MS).times_ms)
    assert found == list(range(flushes[-1] + 20))
    reader.close()
    with sqlite3.connect(path_of(url)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_full_file_system_is_named(url: str, store: SqlStore, feed: Feed) -> None:
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=60")
    acknowledged, error = fill_until_error(store, feed)
    assert str(error) == f"no space left for {path_of(url)}"
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=100000")
    store.append(feed.frames(len(acknowledged), 10))
    assert seconds(store.read(GPU, START_MS, END_MS).times_ms) == list(range(len(acknowledged) + 10))


@pytest.mark.integration
def test_a_database_in_a_closed_folder_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to read as somebody else")
    tmp_path.chmod(0o700)
    become = f"import os; os.setuid({pwd.getpwnam('nobody').pw_uid})\n"
    result = subprocess.run(
        [sys.executable, "-c", copied_imports() + become + READ_ONLY, f"sqlite:///{tmp_path}/gpudiag.db"],
        env={**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr.splitlines()[-1].endswith(f"{tmp_path}/gpudiag.db may not be read by this user")


READ_ONLY = """
import sys
sys.path.insert(0, "tests/storage")
from conftest import Feed
from gpudiag.errors import StoreError
from gpudiag.storage.open import open_reader, open_store

reader = open_reader(sys.argv[1])
print(len(reader.read(Feed().sources[0], 0, 2**42)))
try:
    store = open_store(sys.argv[1], node="node1")
    store.append(Feed().frames(0, 1))
except StoreError as error:
    print(error)
"""


@pytest.mark.integration
@pytest.mark.parametrize("agent_runs", [False, True])
def test_somebody_without_write_permission_reads_and_is_told_when_writing(
    feed: Feed, agent_runs: bool, request: pytest.FixtureRequest
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to read as somebody else")
    folder = Path(tempfile.mkdtemp())  # pytest's own closes itself to others now and then
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    path = folder / "gpudiag.db"
    url = f"sqlite:///{path}"
    store = open_store(url, node=NODE, agent=True)
    store.append(feed.frames(0, 10))
    if not agent_runs:
        store.close()
    become = f"import os; os.setuid({pwd.getpwnam('nobody').pw_uid})\n"
    result = subprocess.run(
        [sys.executable, "-c", copied_imports() + become + READ_ONLY, url],
        env={**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if agent_runs:
        store.close()
    assert result.stdout.splitlines() == ["10", f"{path} may not be written by this user"], result.stderr


def copied_imports() -> str:
    """Import while still allowed to: the checkout may be closed to the other user."""
    return (
        "import sys; sys.path.insert(0, 'tests/storage'); import conftest, sqlalchemy.dialects.sqlite; "
        "import gpudiag.storage.open, gpudiag.errors\n"
    )


def damage(path: Path, offset: int, length: int = 4096) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(length))


def filled(url: str, feed: Feed) -> None:
    store = open_store(url, node=NODE, agent=True)
    for second in range(0, 2000, 50):
        store.append(feed.frames(second, 50))
    store.close()


def test_a_file_that_is_no_database_any_more_is_put_aside_and_reported(url: str, feed: Feed) -> None:
    filled(url, feed)
    damage(path_of(url), 0)
    damaged = path_of(url).read_bytes()
    store = open_store(url, node=NODE, agent=True)
    store.append(feed.frames(0, 10))
    event = store.events(0, END_MS)[0]
    assert event.kind == "store_quarantined"
    aside = Path(event.detail["file"])
    assert aside.name.startswith("gpudiag.db.corrupt-")
    assert aside.read_bytes() == damaged
    assert "is not a" in event.detail["reason"] or "not a database" in event.detail["reason"]
    store.close()


@pytest.mark.parametrize("content", [b"x", b"a note\n", b"not a database" * 500])
def test_a_file_that_was_never_ours_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for agent in (True, False):
        with pytest.raises(StoreError, match="is not a SQLite database"):
            open_store(f"sqlite:///{path}", node=NODE, agent=agent)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert path.read_bytes() == content


def test_our_database_is_known_by_its_header_when_its_lock_file_is_gone(url: str, feed: Feed) -> None:
    filled(url, feed)
    Path(f"{path_of(url)}.lock").unlink()
    damage(path_of(url), 4096, 4096 * 20)
    Path(f"{path_of(url)}.suspect").touch()
    store = open_store(url, node=NODE, agent=True)
    assert [event.kind for event in store.events(0, END_MS)] == ["store_quarantined"]
    store.close()


@pytest.mark.parametrize("leave", ["nothing", "another"])
def test_a_file_taken_away_while_in_use_is_an_error_and_not_a_silent_loss(
    store: SqlStore, url: str, feed: Feed, leave: str
) -> None:
    store.append(feed.frames(0, 10))
    path_of(url).unlink()
    if leave == "another":
        path_of(url).touch()
    with pytest.raises(StoreError, match=r"is gone|was replaced"):
        store.append(feed.frames(10, 10))


def test_damage_found_while_writing_is_put_aside_when_the_store_is_opened_again(url: str, feed: Feed) -> None:
    filled(url, feed)
    size = path_of(url).stat().st_size
    store = open_store(url, node=NODE, agent=True)
    for offset in range(4096, size - 4096, 4096):
        damage(path_of(url), offset)
    later = Feed(start_ms=START_MS + 2_000_000)
    error = fill_until_error(store, later)[1]
    assert isinstance(error, CorruptStoreError)
    store.close()
    store = open_store(url, node=NODE, agent=True)
    assert [event.kind for event in store.events(0, END_MS)] == ["store_quarantined"]
    store.append(feed.frames(0, 10))
    assert len(store.read(GPU, START_MS, END_MS)) == 10
    store.close()


def read_all(url: str) -> None:
    with closing(open_reader(url)) as reader:
        reader.read(GPU, START_MS, END_MS)


def test_a_person_reading_a_damaged_file_gets_one_line_and_the_file_stays(url: str, feed: Feed) -> None:
    filled(url, feed)
    damage(path_of(url), 4096, 4096 * 20)
    before = path_of(url).read_bytes()
    with pytest.raises(StoreError, match=r"damaged|no gpudiag schema|not a SQLite") as caught:
        read_all(url)
    assert "\n" not in str(caught.value)
    assert path_of(url).read_bytes() == before


def test_a_file_closed_properly_is_not_checked_and_a_whole_one_is_never_put_aside(
    url: str, feed: Feed
) -> None:
    filled(url, feed)
    Path(f"{path_of(url)}.suspect").touch()
    store = open_store(url, node=NODE, agent=True)
    assert store.events(0, END_MS) == []
    assert len(store.read(GPU, START_MS, END_MS)) == 2000
    assert not Path(f"{path_of(url)}.suspect").exists()
    store.close()


def test_a_suspended_machine_leaves_a_gap_and_seals_what_it_had(store: SqlStore, feed: Feed) -> None:
    for second in range(0, 100, 10):
        store.append(feed.frames(second, 10))
    woken = 8 * 3600
    store.append(feed.frames(woken, 10))
    block = store.read(GPU, START_MS, END_MS)
    assert seconds(block.times_ms) == [*range(100), *range(woken, woken + 10)]
    with store.database.reading() as connection:
        windows = connection.exec_driver_sql("SELECT DISTINCT t0 FROM chunk").scalars().all()
    assert windows == [START_MS]


def test_flushes_damaged_on_disk_are_a_named_gap_and_an_event(store: SqlStore, feed: Feed) -> None:
    for second in range(0, 100, 10):
        store.append(feed.frames(second, 10))
    with store.database.transaction() as connection:
        connection.exec_driver_sql("UPDATE head SET data = zeroblob(100) WHERE seq = 3")
    block = store.read(GPU, START_MS, END_MS)
    assert block.damaged_ms == ((START_MS + 20_000, START_MS + 29_001),)
    assert len(block) == 90
    store.seal(START_MS + WINDOW_MS)
    assert len(store.read(GPU, START_MS, END_MS)) == 90
    event = store.events(0, END_MS)[0]
    assert (event.kind, event.time_ms) == ("flush_damaged", START_MS + 20_000)


def test_memory_stays_bounded_over_a_day_of_flushes(store: SqlStore, feed: Feed) -> None:
    def run(first: int) -> None:
        for second in range(first, first + 4 * 3600, 300):
            store.append(feed.frames(second, 300))

    run(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(4 * 3600)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB
