from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gpudiag.agent import logs
from gpudiag.agent.clock import ManualClock


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """Other tests want the log as it was."""
    yield
    logger = logging.getLogger("gpudiag")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def configured(clock: ManualClock) -> logging.Logger:
    logs.configure("info", 3, clock.monotonic, journal=True)
    return logging.getLogger("gpudiag.test")


def test_equal_lines_are_limited_and_counted(clock: ManualClock, capsys: pytest.CaptureFixture[str]) -> None:
    logger = configured(clock)
    for number in range(100):
        logger.warning("field %d not supported", number)
    logger.warning("something else")
    clock.sleep(61)
    logger.warning("field %d not supported", 7)
    assert capsys.readouterr().err.splitlines() == [
        "<4>field 0 not supported",
        "<4>field 1 not supported",
        "<4>field 2 not supported",
        "<4>something else",
        "<4>field 7 not supported (97 similar lines left out)",
    ]


def test_a_year_of_different_messages_does_not_grow(clock: ManualClock) -> None:
    limit = logs.RateLimit(1, clock.monotonic)
    for number in range(5000):
        limit.filter(logging.LogRecord("x", logging.INFO, "x", 1, f"message {number}", (), None))
    assert len(limit._seen) <= 1000


def test_every_line_of_a_traceback_has_its_priority(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = configured(clock)
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed")
    assert {line[:3] for line in capsys.readouterr().err.splitlines()} == {"<3>"}


def test_level_and_burst_can_be_changed_later(clock: ManualClock, capsys: pytest.CaptureFixture[str]) -> None:
    limit = logs.configure("info", 3, clock.monotonic, journal=False)
    logs.adjust("error", 1, limit)
    logger = logging.getLogger("gpudiag.test")
    for _ in range(3):
        logger.warning("quiet")
        logger.error("loud")
    assert capsys.readouterr().err.count("loud") == 1
