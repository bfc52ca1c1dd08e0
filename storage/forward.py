"""Store-and-forward: the local SQLite file is the buffer, a Postgres gets everything at least once, in order.

Runs in a thread of the agent, on connections of its own, and never raises for an outage: `state` says how it does.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy import func, select

from gpudiag.errors import StoreError
from gpudiag.storage import engine as engines
from gpudiag.storage.database import Database
from gpudiag.storage.job import Event
from gpudiag.storage.rows import Row
from gpudiag.storage.sample import NODE, Source
from gpudiag.storage.schema import NATURAL_KEYS
from gpudiag.storage.shipment import STREAMS, Shipment
from gpudiag.storage.sqlstore import SqlStore
from gpudiag.storage.storable import storable

log = logging.getLogger(__name__)
_FIRST_WAIT = 5.0
_LONGEST_WAIT = 300.0


class Clock(Protocol):
    """What the forwarder needs of a clock."""

    def now_ms(self) -> int:
        """UNIX milliseconds, UTC."""


@dataclass(frozen=True)
class ForwardState:
    """How forwarding does. `error` is empty while the sink takes what it is given; counts are since the start.

    `lag_seconds` is the age of the oldest sample that the sink has not acknowledged, 0 when it has them all.
    """

    error: str = ""
    lag_seconds: float = 0.0
    backlog_rows: int = 0
    backlog_chunks: int = 0
    sent_rows: int = 0
    rejected_rows: int = 0
    failures: int = 0
    last_success_ms: int | None = None


class Forwarder:
    """Sends one local store to one sink. `sink_url` holds the password; it reaches no log and no error text.

    A callable is asked at every connection, so that a password that was changed in its file counts at once.
    """

    def __init__(
        self,
        store_url: str,
        sink_url: str | Callable[[], str],
        node: str,
        clock: Clock,
        *,
        interval: float = 10.0,
        rng: random.Random | None = None,
    ) -> None:
        self._sink_url = sink_url if callable(sink_url) else lambda: sink_url
        if engines.is_sqlite(engines.parse_url(self._sink_url())):
            raise StoreError("[forward] url: expected postgresql://...")
        self._store_url = engines.parse_url(store_url)
        self._node = node
        self._open_local()
        self._source = Source(node, NODE)
        self._clock = clock
        self._interval = interval
        self._rng = rng or random.Random()
        self._sink: Database | None = None
        self._shipment: Shipment | None = None
        self._failing = 0
        self._rejected: list[tuple[str, Row, str]] = []
        self.sink_name = sink_name(self._sink_url())
        self.state = ForwardState()

    def run(self, stop: threading.Event) -> None:
        """Rounds until `stop` is set, each after the wait that the last one asks for."""
        stop.wait(self._rng.uniform(0, self._interval))  # nodes that start together do not send together
        while not stop.is_set():
            self.round()
            stop.wait(self.next_wait())
        self.close()

    def round(self) -> ForwardState:
        """Send everything that waits; an outage ends up in `state.error`."""
        try:
            self._follow_replaced_file()
            shipment = self._connected()
            try:
                sent = shipment.send_all()
            finally:
                self._rejected, shipment.rejected = shipment.rejected, []
            self._succeeded(sent)
        except StoreError as error:
            self._failed(str(error))
        self._tell_rejected()
        try:
            self._measure()
        except StoreError as error:
            self.state = replace(self.state, error=self.state.error or str(error))
        return self.state

    def next_wait(self) -> float:
        """Seconds to the next round: the interval, or a back-off that doubles from 5 s to 5 min, each +-50 %."""
        if not self._failing:
            return self._interval * self._rng.uniform(0.9, 1.1)
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self._failing - 1, 10))
        return wait * self._rng.uniform(0.5, 1.5)

    def close(self) -> None:
        """Let go of both databases."""
        self._disconnect()
        self._store.close()

    def _open_local(self) -> None:
        self._local = Database(self._store_url, writing=True)
        self._store = SqlStore(self._local, self._node)
        self._file = self._identity()

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._local.place)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _follow_replaced_file(self) -> None:
        """The agent puts a damaged file aside and starts a new one under the same name: send that one then."""
        if self._identity() not in (None, self._file):
            self._disconnect()
            self._store.close()
            self._open_local()

    def _tell_rejected(self) -> None:
        """Rows that the sink can never hold stay here, and that is an event."""
        rejected, self._rejected = self._rejected, []
        if not rejected:
            return
        now_ms = self._clock.now_ms()
        events = []
        for number, (stream, row, reason) in enumerate(rejected):
            log.error(
                "not forwarded, because the central database cannot hold it: a row of %s: %s", stream, reason
            )
            key = {name: row[name] for name in NATURAL_KEYS[stream]}
            detail = {"table": stream, "row": storable(key), "reason": reason}
            events.append(Event(self._source, now_ms, "forward_rejected", 0, number, detail))
        self.state = replace(self.state, rejected_rows=self.state.rejected_rows + len(rejected))
        try:
            self._store.put_events(events)
        except StoreError as error:
            log.debug("the events could not be stored: %s", error)

    def _connected(self) -> Shipment:
        if self._shipment is None:
            self._sink = Database(engines.parse_url(self._sink_url()), writing=True)
            self._sink.check_version()
            self._shipment = Shipment(self._local, self._sink, self.sink_name)
        return self._shipment

    def _disconnect(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._sink = self._shipment = None

    def _succeeded(self, sent: int) -> None:
        now_ms = self._clock.now_ms()
        state = self.state
        self.state = replace(state, error="", sent_rows=state.sent_rows + sent, last_success_ms=now_ms)
        if self._failing:
            log.warning("forwarding works again after %d failed rounds", self._failing)
            self._failing = 0
            self._store.put_events([Event(self._source, now_ms, "forward_recovered")])

    def _failed(self, reason: str) -> None:
        self._disconnect()
        self._failing += 1
        self.state = replace(self.state, error=reason, failures=self.state.failures + 1)
        if self._failing == 1:
            log.error("forwarding fails, samples are kept here: %s", reason)
            event = Event(self._source, self._clock.now_ms(), "forward_failed", detail={"reason": reason})
            try:
                self._store.put_events([event])
            except StoreError as error:
                log.debug("the event could not be stored: %s", error)

    def _measure(self) -> None:
        """Lag and backlog, from the local store alone: known while the sink is away."""
        tables = self._local.tables
        shipment = Shipment(self._local, self._local, self.sink_name)
        oldest: list[int] = []
        counts: dict[str, int] = {}
        with self._local.reading() as connection:
            for stream in (*STREAMS, "chunk", "head"):
                table = getattr(tables, stream)
                waits = table.c.seq > shipment.cursor(connection, stream)
                counts[stream] = int(connection.execute(select(func.count()).where(waits)).scalar_one())
                if stream in ("chunk", "head") and counts[stream]:
                    first = table.c.first_ms if stream == "chunk" else table.c.t0
                    oldest.append(int(connection.execute(select(func.min(first)).where(waits)).scalar_one()))
        lag = max(0, self._clock.now_ms() - min(oldest)) / 1000 if oldest else 0.0
        self.state = replace(
            self.state, lag_seconds=lag, backlog_rows=sum(counts.values()), backlog_chunks=counts["chunk"]
        )


def sink_name(url: str) -> str:
    """The sink as the cursor table knows it: the URL without password and options."""
    parsed = engines.parse_url(url)
    return (
        f"{parsed.username or ''}@{parsed.host or 'localhost'}:{parsed.port or 5432}/{parsed.database or ''}"
    )
