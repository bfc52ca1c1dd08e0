from __future__ import annotations

import threading
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest

from gpudiag.agent.config import ForwardSection
from gpudiag.agent.forwarding import Forwarding, sink_url
from gpudiag.agent.metrics import SnapshotCollector, registry
from gpudiag.agent.recorder import StoreState
from gpudiag.agent.sampler import Snapshot
from gpudiag.errors import InputError, StoreError
from gpudiag.storage.forward import ForwardState

URL = "postgresql://gpudiag:pw@db/gpudiag"


def test_nobody_named_a_central_database() -> None:
    assert sink_url(ForwardSection(), {}) == ""


def test_the_url_comes_from_the_configuration_a_file_or_a_systemd_credential(tmp_path: Path) -> None:
    (tmp_path / "forward-url").write_text(URL + "\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert sink_url(ForwardSection(url=URL), {}) == URL
    assert sink_url(ForwardSection(url_file=str(tmp_path / "forward-url")), {}) == URL
    assert sink_url(ForwardSection(), environ) == URL
    assert sink_url(ForwardSection(), {"CREDENTIALS_DIRECTORY": str(tmp_path / "other")}) == ""


def test_a_file_without_url_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="expected a database URL, found nothing"):
        sink_url(ForwardSection(url_file=str(tmp_path / "empty")), {})
    with pytest.raises(InputError, match="No such file"):
        sink_url(ForwardSection(url_file=str(tmp_path / "absent")), {})


class Scripted:
    """A forwarder that breaks off, or runs until it is told to stop."""

    def __init__(self, error: Exception | None = None) -> None:
        self.state = ForwardState(lag_seconds=12.5, backlog_rows=3, sent_rows=40, last_success_ms=2000)
        self.running = threading.Event()
        self.stopped = False
        self._error = error

    def run(self, stop: threading.Event) -> None:
        if self._error is not None:
            raise self._error
        self.running.set()
        stop.wait(60)
        self.stopped = True


def expose(forwarding: Forwarding) -> list[str]:
    collector = SnapshotCollector(
        Snapshot, StoreState, lambda: 0.0, lambda: 10.0, always=[forwarding.families]
    )
    lines = generate_latest(registry(collector)).decode().splitlines()
    return [line for line in lines if line.startswith("gpudiag_forward_")]


def test_lag_and_backlog_are_on_metrics_and_closing_ends_the_thread() -> None:
    forwarder = Scripted()
    forwarding = Forwarding(lambda: forwarder)
    assert forwarder.running.wait(30)
    assert expose(forwarding) == [
        "gpudiag_forward_up 1.0",
        "gpudiag_forward_lag_seconds 12.5",
        "gpudiag_forward_waiting_rows 3.0",
        "gpudiag_forward_sent_rows_total 40.0",
        "gpudiag_forward_rejected_rows_total 0.0",
        "gpudiag_forward_failures_total 0.0",
        "gpudiag_forward_last_success_timestamp_seconds 2.0",
    ]
    forwarding.close()
    assert forwarder.stopped


@pytest.mark.parametrize("error", [StoreError("local database is damaged"), RuntimeError("a bug")])
def test_a_forwarder_that_breaks_off_is_made_anew(error: Exception) -> None:
    second = Scripted()
    made = [Scripted(error), second]
    forwarding = Forwarding(lambda: made.pop(0), retry_seconds=0.01)
    assert second.running.wait(30)
    assert "gpudiag_forward_up 1.0" in expose(forwarding)
    forwarding.close()


def test_a_forwarder_that_cannot_be_made_shows_as_down() -> None:
    tried = threading.Event()

    def make() -> Scripted:
        tried.set()
        raise StoreError("read-only")

    forwarding = Forwarding(make, retry_seconds=60)
    assert tried.wait(30)
    assert "gpudiag_forward_up 0.0" in expose(forwarding)
    forwarding.close()
