"""Bad input across the commands: one clear message and its exit code, never a traceback, nothing stored is touched."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Gpudiag, Outcome
from programs import require

from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Frame, Source

START = 1_749_772_800_000
LOG = "timestamp, index, utilization.gpu [%]\n2025/06/13 00:27:52, 0, 5 %\n"

READERS = (
    ("report", "--job", "42"),
    ("report", "--job", "42", "--json"),
    ("jobs",),
    ("compare", "42", "42"),
    ("doctor", "--job", "42"),
    ("export", "--job", "42", "--output", "{dir}/out.csv"),
    ("estimate", "cost", "--job", "42"),
    ("db", "status"),
)
WRITERS = (
    ("import", "{dir}/log.csv", "--job", "7"),
    ("db", "prune", "--raw-days", "1"),
    ("db", "vacuum"),
    ("db", "vacuum", "--full"),
)


@pytest.fixture
def database(gpudiag: Gpudiag, tmp_path: Path) -> Path:
    """A good database with job 42 in it, and a log to import."""
    path = Path(os.environ["GPUDIAG_DB"].removeprefix("sqlite:///"))
    source = Source("node01", "GPU-0000000a-0000-0000-0000-000000000000")
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    values = {"sm_active_ratio": 0.5, "power_watts": 300.0}
    store.append([Frame(source, START + second * 1000, values) for second in range(1200)])
    job = Job("local/42/1", "42", START, START + 1_200_000, state="completed")
    store.put_allocations([Allocation(job.key, source, job.start_ms, job.end_ms, "hook")])
    store.put_job(job)
    store.close()
    (tmp_path / "log.csv").write_text(LOG)
    return path


def _run(gpudiag: Gpudiag, arguments: tuple[str, ...], folder: Path) -> Outcome:
    return gpudiag(*(argument.format(dir=folder) for argument in arguments))


def _refused(outcome: Outcome, code: int, *words: str) -> None:
    assert outcome.code == code, (outcome.code, outcome.out[-500:], outcome.err)
    assert "Traceback" not in outcome.err
    assert outcome.err.strip(), "no message"
    for word in words:
        assert word in outcome.err


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_matrix_starts_from_commands_that_work(gpudiag: Gpudiag, database: Path, tmp_path: Path) -> None:
    for arguments in (*READERS, WRITERS[0]):
        outcome = _run(gpudiag, arguments, tmp_path)
        assert outcome.code == 0, (arguments, outcome.err)


@pytest.mark.parametrize("arguments", [*READERS, *WRITERS], ids=" ".join)
def test_a_file_that_is_no_database(
    gpudiag: Gpudiag, database: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    database.write_text("time,node,device\n" * 500)
    before = _digest(database)
    _refused(_run(gpudiag, arguments, tmp_path), 5, str(database))
    assert _digest(database) == before


@pytest.mark.parametrize("arguments", [*READERS, *WRITERS], ids=" ".join)
def test_a_database_of_another_program(
    gpudiag: Gpudiag, database: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    database.unlink()
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
        connection.execute("INSERT INTO songs VALUES ('Kashmir')")
    connection.close()
    before = _digest(database)
    _refused(_run(gpudiag, arguments, tmp_path), 5, str(database))
    assert _digest(database) == before


@pytest.mark.parametrize("arguments", [*READERS, *WRITERS], ids=" ".join)
def test_a_schema_newer_than_this_program(
    gpudiag: Gpudiag, database: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    _newer(database)
    before = _digest(database)
    _refused(_run(gpudiag, arguments, tmp_path), 5, "newer")
    assert _digest(database) == before


def _newer(database: Path) -> None:
    connection = sqlite3.connect(database)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    assert version > 0
    connection.execute(f"PRAGMA user_version = {version + 97}")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_a_database_that_is_not_there(gpudiag: Gpudiag, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _refused(_run(gpudiag, arguments, tmp_path), 5, "gpudiag.db")
    assert not list(tmp_path.glob("gpudiag.db*"))


@pytest.mark.parametrize("arguments", [*READERS, *WRITERS], ids=" ".join)
def test_a_damaged_database(
    gpudiag: Gpudiag, database: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    data = bytearray(database.read_bytes())
    data[100:] = b"\xa5" * (len(data) - 100)  # the header alone is whole
    database.write_bytes(data)
    before = _digest(database)
    _refused(_run(gpudiag, arguments, tmp_path), 5, str(database))
    assert _digest(database) == before


def test_a_database_that_another_process_has_locked(
    gpudiag: Gpudiag, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudiag.storage.engine.BUSY_SECONDS", 0.2)
    holder = sqlite3.connect(database)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("CREATE TABLE held (a)")
    for arguments in (*READERS, *WRITERS):
        _refused(_run(gpudiag, arguments, tmp_path), 5, "lock")
    holder.rollback()
    holder.close()
    assert _run(gpudiag, READERS[0], tmp_path).code == 0


def _without_privilege(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command so that file permissions count, for root too."""
    command = [sys.executable, "-m", "gpudiag", *(argument.format(dir=folder) for argument in arguments)]
    if os.geteuid() == 0:
        dropped = "-dac_override,-dac_read_search,-fowner"
        command = [require("setpriv"), f"--bounding-set={dropped}", f"--inh-caps={dropped}", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_database_that_can_only_be_read(gpudiag: Gpudiag, database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    shutil.copy(database, folder / "gpudiag.db")
    os.environ["GPUDIAG_DB"] = f"sqlite:///{folder}/gpudiag.db"
    (folder / "gpudiag.db").chmod(0o444)
    folder.chmod(0o555)
    try:
        ran = _without_privilege(("report", "--job", "42"), tmp_path)
        assert (ran.returncode, ran.stderr) == (0, "")
        ran = _without_privilege(WRITERS[0], tmp_path)
        assert ran.returncode == 5
        assert "Traceback" not in ran.stderr
        assert "gpudiag.db" in ran.stderr
    finally:
        folder.chmod(0o755)
    assert _digest(folder / "gpudiag.db") == _digest(database)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("nonsense", 2),
        ("mysql://localhost/gpudiag", 2),
        ("postgresql://127.0.0.1:1/gpudiag", 5),
        ("sqlite:////proc/self/gpudiag.db", 5),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [("report", "--job", "42"), ("jobs",), ("import", "{dir}/log.csv", "--job", "7")],
    ids=" ".join,
)
def test_a_database_url_that_leads_nowhere(
    gpudiag: Gpudiag, tmp_path: Path, arguments: tuple[str, ...], url: str, code: int
) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    _refused(_run(gpudiag, (*arguments, "--db", url), tmp_path), code)


_UNKNOWN_METRIC = """\
gpudiag: 1
rules:
  - id: mine/rule
    summary: Mine.
    severity: info
    scope: gpu
    window: 5m
    when: mean(sm_actve_ratio) < 0.3
"""
RULES = {
    "no YAML": ("gpudiag: 1\nrules:\n  - id: [\n", 4),
    "unknown key": ("gpudiag: 1\nrules:\n  - id: mine/rule\n    sevrity: info\n", 4),
    "unknown metric": (_UNKNOWN_METRIC, 8),
    "no list": ("gpudiag: 1\nrules: all\n", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "arguments",
    [
        ("rules", "check", "{dir}/mine.yaml"),
        ("report", "--job", "42", "--rules", "{dir}/mine.yaml"),
        ("agent", "--check-config", "--set", "rules.paths={dir}/mine.yaml"),
    ],
    ids=" ".join,
)
def test_a_broken_rule_file(
    gpudiag: Gpudiag, database: Path, tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    text, line = RULES[name]
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    before = _digest(database)
    _refused(_run(gpudiag, arguments, tmp_path), 2, f"{path}:{line}:")
    assert _digest(database) == before


CONFIGS = {
    "no TOML": ("[agent\n", 1),
    "unknown section": ("[agnet]\ninterval = '1s'\n", 1),
    "unknown key": ("[agent]\ninterval = '1s'\nintreval = '2s'\n", 3),
    "wrong type": ("[metrics]\nlisten = 7\n", 2),
    "wrong value": ("[agent]\ninterval = 'soon'\n", 2),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("agent", "--config", "{dir}/gpudiag.toml"),
        ("agent", "--config", "{dir}/gpudiag.toml", "--check-config"),
        ("agent", "--config", "{dir}/gpudiag.toml", "--print-config"),
        ("check", "--config", "{dir}/gpudiag.toml"),
        ("doctor", "--config", "{dir}/gpudiag.toml"),
        ("top", "--config", "{dir}/gpudiag.toml"),
    ],
    ids=" ".join,
)
def test_a_broken_configuration(
    gpudiag: Gpudiag, tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    text, line = CONFIGS[name]
    path = tmp_path / "gpudiag.toml"
    path.write_text(text)
    _refused(_run(gpudiag, arguments, tmp_path), 2, f"{path}:{line}")
    assert not list(tmp_path.glob("gpudiag.db*"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (bytes(range(256)) * 20, "expected a CSV log"),
        (b"timestamp, utilization.gpu [%]\n2025/06/13 00:27:52, 5 parsecs\n", ":2:22:"),
        (b"time,node,device,sm_active_ratio\nsoon,n,GPU-a,0.5\n", ":2:1:"),
        (b"time,node,device,sm_active_ratio\n", "no samples"),
    ],
    ids=["empty", "binary", "unit", "trace time", "trace without rows"],
)
def test_a_broken_log_leaves_the_database_alone(
    gpudiag: Gpudiag, database: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    before = _digest(database)
    _refused(gpudiag("import", path, "--job", "7"), 2, str(path), words)
    assert _digest(database) == before


@pytest.mark.parametrize(
    "arguments", [("import", "{dir}", "--job", "7"), ("import", "{dir}/none.csv", "--job", "7")]
)
def test_a_log_that_cannot_be_read(gpudiag: Gpudiag, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _refused(_run(gpudiag, arguments, tmp_path), 2)


def test_an_export_into_nowhere(gpudiag: Gpudiag, database: Path) -> None:
    _refused(gpudiag("export", "--job", "42", "--output", "/nonexistent/out.csv"), 2, "/nonexistent/out.csv")


@pytest.mark.parametrize("job", ["43", "", "42/../..", "'; DROP TABLE job; --", "\x1b[2J"])
def test_jobs_that_do_not_exist(gpudiag: Gpudiag, database: Path, job: str) -> None:
    before = _digest(database)
    for command in (("report",), ("doctor",), ("export",)):
        outcome = gpudiag(*command, "--job", job)
        _refused(outcome, 4)
        assert "\x1b" not in outcome.err
    assert _digest(database) == before
