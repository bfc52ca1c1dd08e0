"""Log lines of the agent: to stderr with the priority prefix that journald reads, equal lines limited in rate."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
_PERIOD = 60.0
_MANY = 1000  # different messages remembered at most


class RateLimit(logging.Filter):
    """Lets `burst` lines of one message (before its arguments are filled in) pass per minute and counts the rest.

    The first line after a pause says how many were left out.
    """

    def __init__(self, burst: int, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self.burst = burst
        self._monotonic = monotonic
        self._seen: dict[str, tuple[float, int]] = {}
        self.suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._monotonic()
        since, lines = self._seen.get(str(record.msg), (now, 0))
        if now - since >= _PERIOD:
            self._admit_again(record, lines - self.burst)
            since, lines = now, 0
        if len(self._seen) >= _MANY:
            self._seen.clear()
        self._seen[str(record.msg)] = (since, lines + 1)
        if lines >= self.burst:
            self.suppressed += 1
            return False
        return True

    def _admit_again(self, record: logging.LogRecord, left_out: int) -> None:
        if left_out > 0:
            record.msg, record.args = f"{record.getMessage()} ({left_out} similar lines left out)", ()


class _JournalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITIES.get(record.levelname, 6)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


def configure(level: str, burst: int, monotonic: Callable[[], float], journal: bool) -> RateLimit:
    """Send gpudiag's log to stderr; `journal`: prefix priorities instead of writing times. Returns the limiter."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JournalFormatter("%(message)s") if journal else plain)
    limit = RateLimit(burst, monotonic)
    handler.addFilter(limit)
    logger = logging.getLogger("gpudiag")
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return limit


def adjust(level: str, burst: int, limit: RateLimit) -> None:
    """Change level and limit of a log that is already configured."""
    limit.burst = burst
    logging.getLogger("gpudiag").setLevel(level.upper())
