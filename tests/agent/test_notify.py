from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.agent.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The socket that systemd would hold, and its name as the service is told it."""
    abstract = f"@gpudiag-test-{os.getpid()}"
    name = str(tmp_path / "notify") if request.param == "path" else abstract
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name.startswith("@") else name)
        listener.settimeout(5)
        yield listener, name


def test_states_arrive_on_a_real_socket(manager: tuple[socket.socket, str]) -> None:
    listener, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("sampling")
    notifier.watchdog()
    notifier.reloading(12.5)
    notifier.stopping()
    assert [listener.recv(256) for _ in range(4)] == [
        b"READY=1\nSTATUS=sampling",
        b"WATCHDOG=1",
        b"RELOADING=1\nMONOTONIC_USEC=12500000",
        b"STOPPING=1",
    ]


def test_nothing_happens_without_systemd() -> None:
    notifier = Notifier({})
    notifier.ready("x")
    assert notifier.watchdog_seconds is None


def test_a_listener_that_went_away_is_no_error(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).watchdog()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_watchdog_interval_is_taken_only_when_meant_for_this_process(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert Notifier(environ).watchdog_seconds == seconds
