"""The child's loop: one request, one reply, and small chores in between; it ends with its parent's end of the socket."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Protocol

from gpudiag.agent.probe import framing
from gpudiag.agent.probe.failures import DriverError
from gpudiag.agent.probe.framing import Decoder, Message


class Session(Protocol):
    """Something opened that can be sampled; every method may raise `DriverError`."""

    def sample(self, interval: float) -> Message: ...
    def between(self) -> float | None: ...
    def close(self) -> None: ...


class Server:
    """Serves one socket; the first request opens the session. `library` says what was loaded, once something was."""

    def __init__(
        self, connection: socket.socket, start: Callable[[], Session], library: Callable[[], str]
    ) -> None:
        self._connection = connection
        self._start = start
        self._library = library
        self._decoder = Decoder()
        self._session: Session | None = None

    def run(self) -> None:
        """Until the parent closes, says so, or nothing can be read any more."""
        goes_on = True
        while goes_on:
            request = self._receive()
            if request is None or request["op"] == "close":
                break
            reply = self._answer(request)
            self._connection.sendall(framing.encode(reply))
            goes_on = "fatal" not in reply
        if self._session is not None:
            with contextlib.suppress(DriverError):
                self._session.close()

    def _answer(self, request: Message) -> Message:
        try:
            if self._session is None:
                self._session = self._start()
            return self._session.sample(request["interval"])
        except DriverError as error:
            return {"fatal": error.told(), "library": self._library()}

    def _receive(self) -> Message | None:
        while (message := self._decoder.next()) is None:
            self._until_readable()
            data = self._connection.recv(65536)
            if not data:
                return None
            self._decoder.feed(data)
        return message

    def _until_readable(self) -> None:
        """Do the session's chores until something can be received."""
        while self._session is not None:
            try:
                wait = self._session.between()
            except DriverError:
                return  # the next cycle will meet it too, and answer for it
            if wait is None or select.select([self._connection], [], [], wait)[0]:
                return
