"""`python -m gpudiag.agent.probe SOCKET PAGE SOURCE [ARGUMENT ...]`: two inherited file descriptors, and what to read."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence

from gpudiag.agent.probe.progress import Progress
from gpudiag.agent.probe.server import Server


def main() -> None:
    """Serve until the parent is gone. Signals meant for the agent pass by: its closing is the signal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection, page, source, *arguments = sys.argv[1:]
    with socket.socket(fileno=int(connection)) as end:
        try:
            _server(end, Progress(int(page)), source, arguments).run()
        except (BrokenPipeError, ConnectionResetError):
            return


def _server(end: socket.socket, progress: Progress, source: str, arguments: Sequence[str]) -> Server:
    """Load only what this source needs."""
    if source == "dcgm":
        from gpudiag.agent.probe import dcgm

        address, *folders = arguments
        return Server(end, lambda: dcgm.Session(progress, address, folders), dcgm.library_path)
    from gpudiag.agent.probe import driver, session

    return Server(end, lambda: session.Session(driver.Driver(progress)), driver.library_path)


if __name__ == "__main__":
    main()
