"""`gpudiag top`: rows, keys, one frame off a terminal, and a session on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from command_line import Gpudiag
from fake_nvml.control import FakeNvml

from gpudiag.cli import top
from gpudiag.cli.node_view import Gpu, JobOnGpu, NodeView, OpenFinding
from gpudiag.cli.render.style import Style
from gpudiag.cli.top_table import HISTORY, History, Screen, cells, document, frame, plain, rows
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import NODE, Frame, Source
from gpudiag.storage.store import StoredFinding

GIB = 2.0**30
BUSY = Gpu(
    "GPU-b", 1, "NVIDIA H200",
    {
        "sm_active_ratio": 0.9, "gpu_util_ratio": 1.0, "tensor_active_ratio": 0.5, "memory_used_bytes": 60 * GIB,
        "memory_total_bytes": 141 * GIB, "pcie_rx_bytes_per_second": 3e9, "pcie_tx_bytes_per_second": 1e9,
        "nvlink_rx_bytes_per_second": 20e9, "nvlink_tx_bytes_per_second": 20e9, "power_watts": 600.0,
        "power_limit_watts": 700.0, "temperature_celsius": 61.0,
    },
    JobOnGpu("42", "ada", "train"), (OpenFinding("util/low-sm-activity", "info"), OpenFinding("health/ecc", "critical")),
)  # fmt: skip
PLAIN = Gpu("GPU-a", 0, "Tesla V100", {"gpu_util_ratio": 0.25, "memory_used_bytes": 10 * GIB})
DARK = Gpu("GPU-c", 2, "NVIDIA H200")
VIEW = NodeView(
    1, "agent", (PLAIN, BUSY, DARK), {"cpu_busy_ratio": 0.125}, (OpenFinding("memory/host-swap", "warning"),)
)


def test_a_row_holds_what_was_measured_and_the_worst_finding() -> None:
    assert cells(BUSY) == (
        "1", "42", "ada", "90", "50", "60/141", "3.0/1.0", "20.0/20.0", "600/700", "61", "!! health/ecc",
    )  # fmt: skip


def test_utilisation_instead_of_sm_activity_has_a_star_and_what_is_missing_a_dash() -> None:
    assert cells(PLAIN)[3:] == ("25*", "-", "10/-", "-", "-", "-", "-", "")
    assert set(cells(DARK)[3:-1]) == {"-"}


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("index", "abc"),
        ("sm", "bac"),
        ("memory", "bac"),
        ("power", "bac"),
        ("job", "bac"),
        ("finding", "bac"),
    ],
)
def test_rows_are_sorted(sort: str, order: str) -> None:
    assert [gpu.uuid[-1] for gpu in rows(VIEW.gpus, Screen(sort))] == list(order)
    assert [gpu.uuid[-1] for gpu in rows(VIEW.gpus, Screen(sort, reverse=True))] == list(reversed(order))


@pytest.mark.parametrize(
    ("text", "found"),
    [("ADA", "b"), ("42", "b"), ("v100", "a"), ("health/", "b"), ("gpu 2", "c"), ("", "abc"), ("nobody", "")],
)
def test_rows_are_filtered(text: str, found: str) -> None:
    assert [gpu.uuid[-1] for gpu in rows(VIEW.gpus, Screen(filter=text))] == list(found)


def _after(keys: str) -> Screen:
    screen = Screen()
    for key in keys:
        screen = screen.key(key)
    return screen


def test_keys() -> None:
    assert _after("s").sort == "sm"
    assert _after("ssssss").sort == "index"
    assert _after("r").reverse
    assert _after("p").paused
    assert not _after("pp").paused
    assert _after("h").help
    assert _after("q").quit
    assert _after("x") == Screen()


def test_a_filter_is_typed_and_q_in_it_is_a_letter() -> None:
    assert _after("/sqx\x7f\n") == Screen(filter="sq")
    assert _after("/ada\x1b") == Screen()
    assert _after("/a").typing


def test_history_is_bounded_and_keeps_gaps() -> None:
    history = History()
    for _ in range(3 * HISTORY):
        history.add(VIEW)
    assert len(history.values["GPU-b"]) == HISTORY
    assert all(math.isnan(value) for value in history.values["GPU-c"])


@pytest.mark.parametrize(("width", "unicode"), [(80, True), (160, True), (160, False)])
def test_a_frame_shows_every_device_host_and_finding(width: int, unicode: bool) -> None:
    history = History()
    history.add(VIEW)
    style = Style(width=width, unicode=unicode)
    text = style.print([frame(VIEW, history, Screen(help=True), style)])
    assert max(map(len, text.splitlines())) <= width
    assert "3 of 3 GPUs" in text
    assert "node: ! memory/host-swap" in text
    assert "CPU 12 %" in text or "CPU 13 %" in text
    assert text.isascii() or unicode
    assert "…" not in text
    assert "..." not in text
    assert "!! health/ecc" in text
    assert ("NVLINK" in text.splitlines()[1]) == (width > 100)
    assert "600/700" in text


def test_a_long_name_does_not_push_the_numbers_out() -> None:
    job = JobOnGpu("4242_[1-999%16]+0", "a-user-with-a-very-long-name", "train")
    view = replace(VIEW, gpus=(replace(BUSY, job=job),))
    style = Style(width=100)
    assert "600/700" in style.print([frame(view, History(), Screen(), style)])


def test_names_cannot_play_tricks_on_the_terminal() -> None:
    hostile = Gpu("GPU-x", 0, "", {}, JobOnGpu("\x1b[2J", "a\nb\t\u202e"))
    assert "\x1b" not in plain(NodeView(1, "agent", (hostile,)), Screen())
    assert len(plain(NodeView(1, "agent", (hostile,)), Screen()).splitlines()) == 2


def test_json_holds_numbers_not_texts() -> None:
    found = json.loads(json.dumps(document(VIEW, Screen("sm"))))
    assert found["gpus"][0]["values"]["power_watts"] == 600
    assert found["gpus"][0]["job"] == "42"
    assert found["gpus"][0]["findings"][1]["severity"] == "critical"


class _Script:
    """Keys at set times on a clock of its own."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.now = 0.0

    def wait(self, seconds: float) -> str:
        self.now += max(seconds, 0.0)
        if not self.keys:
            raise EOFError
        return self.keys.pop(0)


class _Views:
    def __init__(self) -> None:
        self.asked = 0

    def view(self) -> NodeView:
        self.asked += 1
        return VIEW


def _played(*keys: str) -> tuple[int, list[Screen]]:
    script, views, shown = _Script(list(keys)), _Views(), []
    top.loop(views, Screen(), 1.0, script, lambda _, s: shown.append(s), lambda _: None, lambda: script.now)  # type: ignore[arg-type]
    return views.asked, shown


def test_nothing_is_read_while_paused() -> None:
    assert _played("", "", "")[0] == 4
    assert _played("p", "", "")[0] == 1


def test_q_ends_at_once_and_so_does_a_closed_terminal() -> None:
    asked, shown = _played("s", "q", "", "")
    assert (asked, [screen.sort for screen in shown]) == (2, ["index", "sm"])
    assert _played()[0] == 1


METRICS = """\
gpudiag_last_tick_timestamp_seconds 1.7725284e+09
gpudiag_gpu_info{driver="580",index="0",mig_profile="",model="NVIDIA H200",parent_uuid="",pci_bus_id="1",uuid="GPU-a"} 1.0
gpudiag_gpu_sm_active_ratio{uuid="GPU-a"} 0.9
gpudiag_job_info{cluster="local",job_id="42",job_key="local/42/1",job_name="train",user="ada",uuid="GPU-a"} 1.0
gpudiag_finding_active{rule="util/low-sm-activity",severity="warning",uuid="GPU-a"} 1.0
"""


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), _Metrics)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("GPUDIAG_METRICS__LISTEN", f"127.0.0.1:{server.server_port}")
    # a driver that must not be asked: whoever loads it fails
    monkeypatch.setenv("GPUDIAG_SOURCES__NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("agent")
def test_one_frame_from_the_agent_when_this_is_no_terminal(gpudiag: Gpudiag) -> None:
    outcome = gpudiag("top")
    assert outcome.out.splitlines()[1].split("\t")[:4] == ["0", "42", "ada", "90"]
    assert "no terminal" in outcome.err
    assert gpudiag("top", "--once").err == ""


def test_one_frame_from_fresh_samples_of_the_store(gpudiag: Gpudiag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDIAG_METRICS__LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("GPUDIAG_AGENT__NODE", "node01")
    now = time.time_ns() // 1_000_000
    source = Source("node01", "GPU-a")
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    store.append(
        [
            Frame(source, now - 2000, {"sm_active_ratio": 0.5}),
            Frame(Source("node01", NODE), now - 2000, {"cpu_busy_ratio": 0.5}),
        ]
    )
    store.put_devices([Device(source, now - 2000, index=3, model="NVIDIA H200")])
    job = Job("local/42/1", "42", now - 60_000, state="running", user="ada")
    store.put_allocations([Allocation(job.key, source, job.start_ms, None, "hook")])
    store.put_job(job)
    store.put_findings([StoredFinding("util/low-sm-activity", source, now - 9000, None, "warning")])
    store.close()
    document = json.loads(gpudiag("top", "--json").out)
    assert document["seen_by"] == "store"
    (gpu,) = document["gpus"]
    assert (gpu["index"], gpu["job"], gpu["user"], gpu["values"]) == (
        3,
        "42",
        "ada",
        {"sm_active_ratio": 0.5},
    )
    assert gpu["findings"] == [{"rule": "util/low-sm-activity", "severity": "warning"}]


def test_one_frame_from_the_driver_with_rates(
    gpudiag: Gpudiag, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_nvml.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUDIAG_METRICS__LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("GPUDIAG_SOURCES__NVML_LIBRARY", str(fake_nvml.library))
    document = json.loads(gpudiag("top", "--json", "--interval", "0.3").out)
    assert document["seen_by"] == "driver"
    assert len(document["gpus"]) == 8
    assert document["gpus"][0]["values"]["sm_active_ratio"] == pytest.approx(0.8)
    assert document["gpus"][0]["values"]["nvlink_rx_bytes_per_second"] > 0


def test_a_driver_in_trouble_exits_with_5(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.fail(None, "nvmlInitWithFlags", "driver_not_loaded")
    version = tmp_path / "root" / "proc" / "driver" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: 580.105.08\n")
    environ = {
        **os.environ,
        **fake_nvml.environ,
        "GPUDIAG_DB": f"sqlite:///{tmp_path}/none.db",
        "GPUDIAG_AGENT__ROOT": str(tmp_path / "root"),
        "GPUDIAG_METRICS__LISTEN": "127.0.0.1:1",
        "GPUDIAG_SOURCES__NVML_LIBRARY": str(fake_nvml.library),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "gpudiag", "top", "--once"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (5, "")
    assert "driver not loaded" in ran.stderr


def _read_until(descriptor: int, wanted: str, seconds: float = 20.0) -> str:
    text, deadline = "", time.monotonic() + seconds
    while time.monotonic() < deadline:
        ready, _, _ = select.select([descriptor], [], [], 0.1)
        if ready:
            text += os.read(descriptor, 65536).decode("utf-8", "replace")
        if re.search(wanted, text):
            return text
    raise AssertionError(f"{wanted} was not shown in {text[-2000:]!r}")


@pytest.mark.usefixtures("agent")
def test_a_session_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    before = termios.tcgetattr(theirs)
    environ = {**os.environ, "TERM": "xterm-256color", "GPUDIAG_DB": f"sqlite:///{tmp_path}/none.db"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpudiag", "top", "--interval", "0.2"],
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environ, start_new_session=True,
    )  # fmt: skip
    try:
        assert "low-sm-activity" in _read_until(ours, "low-sm-activity")
        os.write(ours, b"\x1b[A")  # an arrow key is no Esc
        os.write(ours, b"s")
        _read_until(ours, "by sm")
        os.write(ours, b"p")
        _read_until(ours, "PAUSED")
        os.write(ours, b"/nobody\n")
        _read_until(ours, "0 of 1 GPUs")
        os.write(ours, b"q")
        assert process.wait(20) == 0
        assert termios.tcgetattr(theirs)[3] == before[3]
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        os.close(ours)
        os.close(theirs)
