"""Processes that share the nodes of a large job: the same diagnosis as in one process, in less time."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from gpudiag.errors import GpudiagError
from gpudiag.rules.node_work import NodeWork, Workers, alone
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples, Outline
from gpudiag.storage.store import Reader

LEAST_GPU_HOURS = 192  # less takes a process about two seconds; another one needs half a second to start
MOST_PROCESSES = 4  # each has a cache of its own and its own connection to the database

Open = Callable[[], Reader]
_TOLD = ("observe", "account")
_GONE = (EOFError, OSError)


@dataclass(frozen=True)
class _Job:
    """Another job, and the nodes that a process gets of it."""

    outline: Outline
    ruleset: RuleSet
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    name: str
    nodes: tuple[str, ...]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Failed:
    error: GpudiagError


class ProcessCrew:
    """A `Crew` of this process and `size` - 1 others, which begin with the first large job and end with `close`.

    `open_reader` is called in each of them, so it must be picklable. Where they cannot be had, or one dies, this
    process does their work. `told` is called twice per GPU of another process: once observed, once accounted for.
    """

    def __init__(
        self,
        open_reader: Open,
        size: int,
        told: Callable[[], None] = lambda: None,
        least_gpu_hours: float = LEAST_GPU_HOURS,
    ) -> None:
        self._open_reader = open_reader
        self._least_gpu_seconds = least_gpu_hours * 3600
        self._size = min(size, MOST_PROCESSES)
        self._told = told
        self._hands: list[_Hand] = []

    def __call__(self, samples: JobSamples, ruleset: RuleSet) -> Workers:
        """Workers for this job: its nodes in turn, each always in the same process."""
        size = min(self._size, len(samples.nodes))
        gpus = samples.sources("gpu")
        if size < 2 or len(gpus) * samples.seconds < self._least_gpu_seconds:
            return alone(samples, ruleset)
        with suppress(*_GONE):
            while len(self._hands) < size - 1:
                self._hands.append(_begin(self._open_reader))
        return self._shared(samples, ruleset, self._hands[: size - 1])

    def _shared(self, samples: JobSamples, ruleset: RuleSet, others: Sequence[_Hand]) -> Workers:
        """The first node is done here, the next by the next process, and so on: so results come as they are taken."""
        whom = {node: (None, *others)[k % (1 + len(others))] for k, node in enumerate(samples.nodes)}
        for hand in others:
            own = tuple(node for node, one in whom.items() if one is hand)
            hand.say(_Job(samples.outline(), ruleset, own))
        work = NodeWork(samples, ruleset, [node for node, hand in whom.items() if hand is None])

        def workers(step: str, nodes: Sequence[str], *arguments: Any) -> Iterator[Any]:
            for hand in others:
                hand.say(_Step(step, tuple(node for node in nodes if whom[node] is hand), arguments))
            for node in nodes:
                one = whom[node]
                answer = one.answer() if one else None
                yield getattr(work, step)(node, *arguments) if answer is None else answer
                if answer is not None and step in _TOLD:
                    self._tell(samples, node)

        return workers

    def _tell(self, samples: JobSamples, node: str) -> None:
        for source in samples.sources("gpu"):
            if source.node == node:
                self._told()

    def close(self) -> None:
        """End the other processes, whatever they are at."""
        for hand in self._hands:
            hand.end()
        self._hands = []


@dataclass
class _Hand:
    """Another process, as this one talks to it; once it is lost, it is silent."""

    process: BaseProcess
    connection: Connection
    lost: bool = False

    def say(self, message: _Job | _Step) -> None:
        try:
            if not self.lost:
                self.connection.send(message)
        except _GONE:
            self.lost = True

    def answer(self) -> Any:
        """The next result, None when there will be none. Raises what was raised there."""
        try:
            found = None if self.lost else self.connection.recv()
        except _GONE:
            self.lost = True
            return None
        if isinstance(found, _Failed):
            self.end()
            raise found.error
        return found

    def end(self) -> None:
        self.lost = True
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _begin(open_reader: Open) -> _Hand:
    """Spawned: a fork would share the connection to the database and the locks of threads."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, open_reader), daemon=True)
    with _ignoring_interrupts():
        process.start()
    there.close()
    return _Hand(process, here)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """What begins meanwhile leaves Ctrl-C to this process, which ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection, open_reader: Open) -> None:
    """The life of another process: until nobody asks any more. What goes wrong in it ends it, and is tried again there."""
    clerk = _Clerk(open_reader)
    with suppress(Exception):
        while True:
            for answer in clerk.answers(connection.recv()):
                connection.send(answer)


class _Clerk:
    """Does what another process is told to."""

    def __init__(self, open_reader: Open) -> None:
        self._open_reader = open_reader
        self._reader: Reader | None = None
        self._work: NodeWork | None = None

    def answers(self, message: _Job | _Step) -> Iterator[Any]:
        try:
            if isinstance(message, _Job):
                self._begin(message)
                return
            for node in message.nodes:
                yield getattr(self._work, message.name)(node, *message.arguments)
        except GpudiagError as error:
            yield _Failed(error)

    def _begin(self, job: _Job) -> None:
        self._reader = self._reader or self._open_reader()
        self._work = NodeWork(job.outline.samples(self._reader), job.ruleset, job.nodes)
