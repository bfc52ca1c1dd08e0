"""`gpudiag run` with real child processes: exit codes, signals, and the job that is in the database afterwards."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gpudiag.agent.attribution.devices import visible_references
from gpudiag.storage.job import Job
from gpudiag.storage.open import open_reader
from gpudiag.storage.sample import Floats
from gpudiag.storage.store import JobFilter

GPUDIAG = [sys.executable, "-m", "gpudiag"]
PYTHON = sys.executable


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A user's environment without an agent, without GPUs, with a home of its own."""
    (tmp_path / "run").mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "GPUDIAG_AGENT__RUNTIME_DIR": str(tmp_path / "agent-run"),
        "GPUDIAG_AGENT__INTERVAL": "0.2s",
        "GPUDIAG_AGENT__NODE": "here",
        "GPUDIAG_RULES__ENABLED": "false",
        "GPUDIAG_SOURCES__NVML": "false",
    }


def record(
    environ: Mapping[str, str], arguments: Sequence[str], timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GPUDIAG, "run", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/data/gpudiag/gpudiag.db"


def jobs(url: str) -> list[Job]:
    reader = open_reader(url)
    try:
        return reader.jobs(JobFilter())
    finally:
        reader.close()


def series(url: str, job: Job, metric: str) -> Floats:
    reader = open_reader(url)
    try:
        [allocation] = reader.allocations(job.key)
        source = type(allocation.source)("here", f"job:{job.key}")
        return reader.read(source, 0, 1 << 62).columns[metric]
    finally:
        reader.close()


# works for so many seconds of CPU: on a loaded machine it takes longer, and the samplers get their turns meanwhile
BUSY = "import sys,time\nwhile time.process_time() < float(sys.argv[1]): pass\nsys.exit(int(sys.argv[2]))"


def test_a_command_is_recorded_with_its_exit_code_and_processes(
    environ: dict[str, str], tmp_path: Path
) -> None:
    done = record(environ, ["--job", "42", "--", PYTHON, "-c", BUSY, "2", "7"])
    assert done.returncode == 7, done.stderr
    [job] = jobs(database(tmp_path))
    assert (job.id, job.state, job.exit_code) == ("42", "failed", 7)
    assert job.key == f"local/42/{job.start_ms // 1000}"
    assert job.end_ms is not None
    assert job.end_ms - job.start_ms > 1900
    main = series(database(tmp_path), job, "main_cpu_ratio")
    assert np.nanmax(main) > 0.05
    assert "gpudiag report --job 42" in done.stderr


def test_the_commands_own_output_and_input_are_untouched(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [*GPUDIAG, "run", "-q", "--", "cat"],
        env=environ, input="through\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "through\n", "")


def test_options_after_the_command_are_the_commands(environ: dict[str, str]) -> None:
    done = record(environ, ["-q", PYTHON, "-c", "import sys; print(sys.argv[1:])", "--job", "9", "-q"])
    assert done.stdout == "['--job', '9', '-q']\n"


def test_a_command_that_dies_of_a_signal_ends_us_by_the_same(environ: dict[str, str], tmp_path: Path) -> None:
    done = record(environ, ["--job", "42", "--", PYTHON, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert done.returncode == -signal.SIGKILL
    [job] = jobs(database(tmp_path))
    assert (job.state, job.exit_code) == ("failed", 137)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_passed_on_to_the_command(
    environ: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    program = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen(
        [*GPUDIAG, "run", "-q", "--job", "42", "--", PYTHON, "-c", program],
        env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(30) == 5
    process.stdout.close()
    assert jobs(database(tmp_path))[0].exit_code == 5


def test_a_command_under_nohup_ignores_the_hang_up(environ: dict[str, str]) -> None:
    program = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    done = subprocess.run(
        ["nohup", *GPUDIAG, "run", "-q", "--", PYTHON, "-c", program],
        env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_a_command_ended_by_a_request_is_cancelled(environ: dict[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*GPUDIAG, "run", "-q", "--job", "42", "--", PYTHON, "-c", "print('ready', flush=True); input()"],
        env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    assert jobs(database(tmp_path))[0].state == "cancelled"


@pytest.mark.parametrize(("program", "code"), [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_what_cannot_be_run_is_named_as_a_shell_would(
    environ: dict[str, str], program: str, code: int
) -> None:
    done = record(environ, ["--", program])
    assert done.returncode == code
    assert done.stderr.startswith(f"gpudiag: {program}: ")
    assert "Traceback" not in done.stderr


def test_a_database_that_cannot_be_written_does_not_stop_the_command(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("where a directory should be")
    url = f"sqlite:///{tmp_path}/file/gpudiag.db"
    done = record(environ, ["--db", url, "--", PYTHON, "-c", "import time; time.sleep(1); print('done')"])
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr
    assert "recorded as" not in done.stderr


def test_two_recordings_at_once_share_the_sampling(environ: dict[str, str], tmp_path: Path) -> None:
    def start(job: str, seconds: str) -> subprocess.Popen[bytes]:
        command = [*GPUDIAG, "run", "-q", "--job", job, "--", PYTHON, "-c", BUSY, seconds, "0"]
        return subprocess.Popen(command, env=environ)

    first = start("1", "2")
    time.sleep(0.8)
    second = start("2", "5")
    assert (first.wait(60), second.wait(60)) == (0, 0)
    found = {job.id: job for job in jobs(database(tmp_path))}
    assert {(job.id, job.state) for job in found.values()} == {("1", "completed"), ("2", "completed")}
    assert len(series(database(tmp_path), found["2"], "main_cpu_ratio")) > 3


@contextmanager
def running_agent(environ: Mapping[str, str], tmp_path: Path) -> Iterator[str]:
    """A real agent with a database of its own; its URL."""
    url = f"sqlite:///{tmp_path}/agent.db"
    command = [*GPUDIAG, "agent", "--db", url, "--set", "metrics.enabled=false"]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE)
    socket = tmp_path / "agent-run" / "control.sock"
    try:
        for _ in range(300):
            if socket.exists():
                break
            assert process.poll() is None
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_running_agent_records_the_command(environ: dict[str, str], tmp_path: Path) -> None:
    with running_agent(environ, tmp_path) as url:
        done = record(environ, ["--job", "42", "--", PYTHON, "-c", BUSY, "2", "3"])
        assert done.returncode == 3
        assert not list((tmp_path / "agent-run" / "jobs.d").iterdir())
        [job] = jobs(url)
        assert (job.id, job.state, job.exit_code) == ("42", "failed", 3)
    assert len(series(url, job, "main_cpu_ratio")) > 2
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("value", "references"),
    [
        (None, ("all",)),
        ("0,2", ("index:0", "index:2")),
        ("GPU-8932f937,GPU-1", ("GPU-8932f937", "GPU-1")),
        ("MIG-4f0d", ("MIG-4f0d",)),
        ("MIG-GPU-8932f937/1/0", ("MIG-GPU-8932f937/1/0",)),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("index:0",)),
        ("NoDevFiles", ()),
    ],
)
def test_what_cuda_visible_devices_lets_a_command_see(value: str | None, references: tuple[str, ...]) -> None:
    assert visible_references(value) == references


OOM = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 6.00 GiB total capacity; 1.00 GiB already allocated; 3.00 GiB free; 1.50 GiB reserved in total by PyTorch)"


def test_out_of_memory_messages_of_the_command_become_part_of_the_job(
    environ: dict[str, str], tmp_path: Path
) -> None:
    code = f"import sys, time; time.sleep(0.5); sys.stderr.write('step 1\\n{OOM}\\nno newline'); sys.exit(1)"
    done = record(environ, ["--job", "42", "-q", "--", PYTHON, "-c", code])
    assert done.stderr == f"step 1\n{OOM}\nno newline"
    [job] = jobs(database(tmp_path))
    [message] = job.meta["oom_messages"]
    assert (message["kind"], message["text_line"], message["requested_bytes"]) == (
        "fragmentation",
        2,
        2 * 2**30,
    )


def test_a_grandchild_that_keeps_the_error_output_open_does_not_hold_us(environ: dict[str, str]) -> None:
    began = time.monotonic()
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
    done = subprocess.run(
        [*GPUDIAG, "run", "-q", "--", PYTHON, "-c", code],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.kill(int(done.stdout), signal.SIGKILL)
    assert time.monotonic() - began < 30


def test_with_probe_the_commands_python_finds_the_hook_and_the_socket(environ: dict[str, str]) -> None:
    code = "import os, sys; print(hasattr(sys, '_gpudiag_probe'), os.path.basename(os.environ['GPUDIAG_PROBE_SOCKET']))"
    done = record(environ, ["-q", "--probe", "--", PYTHON, "-c", code])
    assert done.stdout == "True probe.sock\n", done.stderr
    assert (
        record(
            environ, ["-q", "--", PYTHON, "-c", "import sys; print(hasattr(sys, '_gpudiag_probe'))"]
        ).stdout
        == "False\n"
    )


FAKE_TORCH_TRAINING = """
import sys, time, types
import gpudiag.probe as probe
for _ in range(40):
    for batch in probe.timed(iter([0])):
        time.sleep(0.05)
    probe.step(samples=8)
"""


def test_steps_of_a_probed_program_are_stored_as_series_of_the_job(
    environ: dict[str, str], tmp_path: Path
) -> None:
    done = record(environ, ["--job", "42", "-q", "--probe", "--", PYTHON, "-c", FAKE_TORCH_TRAINING])
    assert done.returncode == 0, done.stderr
    [job] = jobs(database(tmp_path))
    seconds = series(database(tmp_path), job, "step_seconds")
    seconds = seconds[np.isfinite(seconds)]
    assert len(seconds) >= 1
    assert 0.045 < seconds.mean() < 0.2


def test_a_job_has_a_user_though_the_environment_names_none(environ: dict[str, str], tmp_path: Path) -> None:
    assert not {"USER", "LOGNAME"} & set(environ)
    assert record(environ, ["--", "true"]).returncode == 0
    [job] = jobs(database(tmp_path))
    assert job.user == pwd.getpwuid(os.getuid()).pw_name
