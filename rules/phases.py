"""Which phase a job was in, each second, from telemetry alone; marks and steps sharpen it when a job gives them.

Labels are causal: the label of a second depends on samples up to `LAG_S` seconds after it and on nothing
later, so a live agent and a report read the same ones. `gpudiag.rules.phase_spans` looks back for the report.
Start values: `docs/waterfall.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from gpudiag.rules.activity import FIELDS, GPU_FIELDS, HOST_FIELDS, Activity, ActivityFold
from gpudiag.rules.marks import PHASES as MARKED
from gpudiag.rules.marks import TRAIN, MarkFollower
from gpudiag.rules.model import PHASES
from gpudiag.rules.phase_machine import TICK_FIELDS, PhaseMachine, Tick
from gpudiag.rules.samples import JobSamples
from gpudiag.rules.stretch import host_source
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Floats, Source

Codes = npt.NDArray[np.int8]

GPU_METRICS = ("sm_active_ratio", "memory_used_bytes", *GPU_FIELDS)
TICK_S = 10
LAG_S = 20
CODE = {name: code for code, name in enumerate(PHASES)}
_HISTORY_S = 1000
_CHECKPOINT_MAX_S = 900
_LOOK_S = 10
_STOPPED = 0.15


class PhaseTracker:
    """Labels a job that is still going on: `advance` takes what was newly sampled, in time order.

    However the samples are cut into calls, the same labels come out.
    """

    def __init__(self, tags: Iterable[str] = ()) -> None:
        self._machine = PhaseMachine(frozenset(tags))
        self._marks = MarkFollower()
        self._recent: Activity | None = None
        self._labelled = 0
        self._base = np.empty(0, np.int8)

    def advance(self, activity: Activity, marks: Iterable[Event] = ()) -> Codes:
        """Codes (index into `PHASES`) of the seconds that can be labelled now, following the last ones.

        `marks` are the job's marks as far as they are known, older ones included: they may come `LAG_S` late.
        """
        recent = activity if self._recent is None else self._recent.then(activity)
        self._run_machine(recent)
        ready = max(0, len(self._base) - _LOOK_S - self._labelled)
        first = self._labelled
        codes = self._overlay(recent, marks, first, first + ready)
        self._forget(recent, first + ready)
        return codes

    def finish(self, marks: Iterable[Event] = ()) -> Codes:
        """Codes of the last seconds, for which no later samples will come."""
        if self._recent is None:
            return np.empty(0, np.int8)
        self._run_machine(self._recent, last=True)
        return self._overlay(self._recent, marks, self._labelled, len(self._base))

    def _overlay(self, recent: Activity, marks: Iterable[Event], first: int, last: int) -> Codes:
        codes = _overlay(recent, self._base)[first:last]
        begin_s = recent.start_ms // 1000 + first
        # a process that steps on while it writes or evaluates in the background is training
        still = _in_work(codes) & ~(recent["steps_per_second"][first:last] > 0)
        inside = self._marks.advance(marks, begin_s, last - first)
        codes[(codes == CODE["warmup"]) & inside[TRAIN]] = CODE["train"]
        for phase in MARKED:
            codes[still & inside[phase]] = CODE[phase]
        return codes

    def _run_machine(self, recent: Activity, last: bool = False) -> None:
        begin = len(self._base)
        end = len(recent) if last else begin + (len(recent) - begin) // TICK_S * TICK_S
        if end <= begin:
            return
        part = recent.between(begin, end)
        labels = [CODE[self._machine.step(tick)] for tick in _ticks(part)]
        codes = np.repeat(np.array(labels, np.int8), TICK_S)[: end - begin]
        self._base = np.concatenate([self._base, codes])

    def _forget(self, recent: Activity, labelled: int) -> None:
        drop = max(0, (labelled - _HISTORY_S) // TICK_S * TICK_S)
        self._recent = recent.between(drop, len(recent))
        self._base = self._base[drop:]
        self._labelled = labelled - drop


def label(samples: JobSamples, node: str = "") -> Codes:
    """Phase code of each second of the job, or of its part on one node, [seconds]: an index into `PHASES`."""
    return label_activity(gather(samples, node).result(), samples.job.tags, marks_of(samples, node))


def label_activity(activity: Activity, tags: Iterable[str] = (), marks: Sequence[Event] = ()) -> Codes:
    """`label` for an activity that is already gathered."""
    tracker = PhaseTracker(tags)
    return np.concatenate([tracker.advance(activity, marks), tracker.finish(marks)])


def marks_of(samples: JobSamples, node: str = "") -> tuple[Event, ...]:
    """What the job's own processes said of its phases, on one node or on any."""
    own = {host_source(one, samples.job, "job") for one in samples.nodes if node in ("", one)}
    return tuple(event for event in samples.events if event.source in own)


def gather(samples: JobSamples, node: str = "") -> ActivityFold:
    """The activity of the job, or of its part on one node, one device in memory at a time."""
    samples.want("gpu", GPU_METRICS)
    for scope in ("node", "job"):
        samples.want(scope, (field for field, (wanted, _) in HOST_FIELDS.items() if wanted == scope))
    fold = ActivityFold(samples.start_ms, samples.seconds)
    for source in _on(node, samples.sources("gpu")):
        device = samples.devices.get(source)
        total = device.memory_total_bytes if device else None
        fold.add_device(lambda metric, source=source: samples.series(source, metric), total)  # type: ignore[misc]
    for scope in ("node", "job"):
        for source in _on(node, samples.sources(scope)):
            fold.add_host(scope, lambda metric, source=source: samples.series(source, metric))  # type: ignore[misc]
    return fold


def _on(node: str, sources: Iterable[Source]) -> list[Source]:
    return [source for source in sources if node in ("", source.node)]


def _ticks(activity: Activity) -> Iterable[Tick]:
    columns = []
    for field in TICK_FIELDS:
        fold = np.fmax if field == "peak" else None
        columns.append(_by_tick(activity[field], fold).tolist())
    return map(Tick._make, zip(*columns, strict=True))


def _by_tick(values: Floats, fold: np.ufunc | None) -> Floats:
    missing = -len(values) % TICK_S
    rows = np.concatenate([values, np.full(missing, np.nan)]).reshape(-1, TICK_S)
    if fold is not None:
        folded: Floats = fold.reduce(rows, axis=1)
        return folded
    seen = ~np.isnan(rows)
    total = np.where(seen, rows, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.where(seen.any(axis=1), total / np.maximum(seen.sum(axis=1), 1), np.nan)


def _overlay(activity: Activity, base: Codes) -> Codes:
    codes = base.copy()
    part = activity.between(0, len(base))
    codes[_in_work(codes) & checkpointing(activity)[: len(base)]] = CODE["checkpoint"]
    codes[np.isnan(part["active"])] = CODE["not_measured"]
    return codes


def _in_work(codes: Codes) -> npt.NDArray[np.bool_]:
    return np.isin(codes, [CODE["train"], CODE["eval"], CODE["idle"], CODE["warmup"], CODE["checkpoint"]])


def checkpointing(activity: Activity) -> npt.NDArray[np.bool_]:
    """Seconds in which every device stands still while the job writes its state, [seconds].

    Still: no device above 15 % activity (or, where measured, no tensor and no memory traffic). Writing: the
    job writes over 50 MB/s and twice what it reads, or a device sends over 0.5 GB/s to the host and
    gets much less back; seen since the
    standstill began, at most 15 min back and 10 s ahead.
    """
    index = np.arange(len(activity))
    still = _still(activity)
    evidence = _writing(activity) & (still | np.roll(still, 1))
    last_evidence = np.maximum.accumulate(np.where(evidence, index, -(10**9)))
    ahead = last_evidence[np.minimum(index + _LOOK_S, len(index) - 1)] if len(index) else last_evidence
    began = np.maximum.accumulate(np.where(still, 0, index + 1))
    result: npt.NDArray[np.bool_] = still & (ahead >= began) & (ahead >= index - _CHECKPOINT_MAX_S)
    return result


def _still(activity: Activity) -> npt.NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        spinning = (activity["tensor_active_ratio"] < 0.005) & (activity["dram_active_ratio"] < 0.03)
        still: npt.NDArray[np.bool_] = (activity["peak"] < _STOPPED) | (spinning & (activity["peak"] < 0.4))
    return still


def _writing(activity: Activity) -> npt.NDArray[np.bool_]:
    write, read = activity["job_write_bytes_per_second"], activity["job_read_bytes_per_second"]
    write = np.where(np.isnan(write), activity["disk_write_bytes_per_second"], write)
    read = np.where(np.isnan(read), activity["disk_read_bytes_per_second"], read)
    sent, received = activity["pcie_tx_bytes_per_second"], activity["pcie_rx_bytes_per_second"]
    with np.errstate(invalid="ignore"):
        to_disk = (write > 50e6) & (write > 2 * np.nan_to_num(read))
        result: npt.NDArray[np.bool_] = to_disk | ((sent > 0.5e9) & ~(received > 0.3 * sent))
    return result


assert set(TICK_FIELDS) <= set(FIELDS)
