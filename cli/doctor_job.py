"""Why a job has no data, or only a part: was it known, had it GPUs, were they sampled, was the agent there?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gpudiag.cli.doctor_item import Item
from gpudiag.cli.render.labels import EVENTS, STATES
from gpudiag.cli.render.units import duration, instant, percent
from gpudiag.message import Message
from gpudiag.storage.job import Allocation, Job
from gpudiag.storage.sample import NODE, Block, Source
from gpudiag.storage.store import Reader

_EXPECTED_MS = 1000
_GAP_MS = 60_000
_DAY_MS = 86_400_000


def examine(reader: Reader, job: Job, now_ms: int, frozen_ms: int | None = None) -> Iterator[Item]:
    """Every reason that can be seen, from the job itself down to single gaps.

    `frozen_ms` is when its report was kept because its samples were to be pruned.
    """
    end_ms = job.end_ms or now_ms
    state = job.state if job.end_ms else "running"
    yield Item(
        "job",
        job.id,
        "ok",
        Message(
            "{start} to {end}, {state}, user {user}",
            start=instant(job.start_ms),
            end=instant(end_ms),
            state=Message(STATES.get(state, state)),
            user=job.user or Message("unknown"),
        ),
    )
    if frozen_ms is not None:
        kept = "kept on {time}, before its samples were pruned: the report answers from it"
        yield Item("job", "report", "ok", Message(kept, time=instant(frozen_ms)))
    if end_ms - job.start_ms < 10 * _EXPECTED_MS:
        length = duration((end_ms - job.start_ms) / 1000)
        short = Message("{length}: too short; a verdict needs at least 10 samples", length=length)
        yield Item("job", "length", "problem", short)
    allocations = [one for one in reader.allocations(job.key) if one.source.scope == "gpu"]
    if not allocations:
        yield Item(
            "job", "GPUs", "problem", Message("no GPU is known to belong to it"),
            Message("a hook (gpudiag job start), Slurm's own GPU list, or a process on a GPU tells; see gpudiag doctor"),
        )  # fmt: skip
    for allocation in allocations:
        yield _device(reader, allocation, end_ms, now_ms)
    nodes = sorted({one.source.node for one in reader.allocations(job.key)})
    for node in nodes:
        yield from _node(reader, node, job.start_ms, end_ms, now_ms)


def _device(reader: Reader, allocation: Allocation, end_ms: int, now_ms: int) -> Item:
    until = min(allocation.end_ms or end_ms, now_ms)
    block = reader.read(allocation.source, allocation.start_ms, until)
    name = f"{allocation.source.node} {allocation.source.device}"
    known = Message(
        "allocation known from {source}, confidence {confidence}",
        source=allocation.known_from,
        confidence=f"{allocation.confidence:.2f}",
    )
    if not len(block):
        return Item(
            "job", name, "problem", Message("no sample; {known}", known=known), Message("see the node below")
        )
    covered = coverage(block, allocation.start_ms, until)
    text = Message(
        "{share} of its time measured, {count} metrics; {known}",
        share=percent(covered),
        count=str(len(block.columns)),
        known=known,
    )
    return Item("job", name, "ok" if covered >= 0.5 else "problem", text)


def coverage(block: Block, start_ms: int, end_ms: int) -> float:
    """Share of a stretch that samples stand for: each holds for the usual distance of samples at most."""
    if end_ms <= start_ms or not len(block):
        return 0.0
    steps = np.diff(np.append(block.times_ms, end_ms))
    usual = float(np.median(steps[:-1])) if len(steps) > 1 else _EXPECTED_MS
    return float(min(1.0, np.minimum(steps, 1.5 * usual).sum() / (end_ms - start_ms)))


def _node(reader: Reader, node: str, start_ms: int, end_ms: int, now_ms: int) -> Iterator[Item]:
    host = reader.read(Source(node, NODE), start_ms, end_ms)
    if len(host):
        yield from _gaps(reader, node, host, start_ms, end_ms)
        return
    if any(source.node == node for source in reader.sources(start_ms, end_ms)):
        text = Message("no host samples, but others; an import, or sources.host is false")
        yield Item("node", node, "ok", text)
        return
    yield _unsampled(reader, node, start_ms, end_ms, now_ms)


def _unsampled(reader: Reader, node: str, start_ms: int, end_ms: int, now_ms: int) -> Item:
    """Nothing at all of this node while the job ran: before the first sample, after the last, or in between."""
    before = _any(reader, node, start_ms - 30 * _DAY_MS, start_ms)
    after = _any(reader, node, end_ms, max(now_ms, end_ms + 1))
    if before and after:
        reason = Message("the agent did not run then: there are samples before and after")
    elif before:
        reason = Message("samples stop before the job: the agent has stopped, or forwarding stands still")
    elif after:
        reason = Message(
            "samples begin after the job: the agent was not there yet, or they were pruned (retention)"
        )
    else:
        reason = Message("this database has never had samples of it: another database, or another node name?")
    remedy = Message("gpudiag doctor on that node; gpudiag db status")
    return Item("node", node, "problem", reason, remedy)


def _any(reader: Reader, node: str, start_ms: int, end_ms: int) -> bool:
    return any(source.node == node for source in reader.sources(start_ms, end_ms))


def _gaps(reader: Reader, node: str, host: Block, start_ms: int, end_ms: int) -> Iterator[Item]:
    """Stretches of over a minute without host samples: the agent itself was away."""
    # a sample stands for the second that follows it
    times = np.concatenate(([start_ms - _EXPECTED_MS], host.times_ms, [end_ms]))
    gaps = [(a + _EXPECTED_MS, b) for a, b in pairwise(times.tolist()) if b - a > _GAP_MS]
    for begin, end in gaps[:5]:
        length = duration((end - begin) / 1000)
        away = "{time}: {length} without samples: the agent was away"
        yield Item("node", node, "problem", Message(away, time=instant(begin), length=length))
    if len(gaps) > 5:
        more = Message("and {count} more such gaps", count=str(len(gaps) - 5))
        yield Item("node", node, "problem", more)
    if not gaps:
        text = Message("sampled all the time, {count} host samples", count=str(len(host)))
        yield Item("node", node, "ok", text)
    for event in reader.events(
        start_ms, end_ms, node, ("clock_jump", "suspended", "driver_hung", "gpu_lost")
    ):
        details = ", ".join(f"{name} {value}" for name, value in event.detail.items())
        kind = Message(EVENTS.get(event.kind, event.kind))
        told = "{time}: {event} ({details})" if details else "{time}: {event}"
        text = Message(told, time=instant(event.time_ms), event=kind, details=details)
        yield Item("node", node, "problem", text)
