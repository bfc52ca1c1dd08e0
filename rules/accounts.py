"""Goes through the devices of a job's nodes one at a time and books everything a report says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpudiag.rules.activity import HEADLINES
from gpudiag.rules.coverage import CoverageFold, allocated_seconds
from gpudiag.rules.energy import METRICS as ENERGY_METRICS
from gpudiag.rules.energy import EnergyMeter
from gpudiag.rules.explain import Case, union
from gpudiag.rules.host_evidence import JOB_METRICS, NODE_METRICS, HostEvidence, host_evidence
from gpudiag.rules.model import CAUSES, DeviceReport
from gpudiag.rules.peers import PeerFold
from gpudiag.rules.phases import CODE, Codes
from gpudiag.rules.samples import JobSamples
from gpudiag.rules.shortfall import METRICS, Signals, shortfall, signals
from gpudiag.rules.statistics import GAUGES, describe
from gpudiag.rules.waterfall import Claim, Ledger, Waterfall, device_phases, ledger
from gpudiag.storage.sample import Floats, Source

Mask = npt.NDArray[np.bool_]

FIGURES = tuple(dict.fromkeys((*METRICS, *GAUGES)))  # of a GPU, for all that is said of it
ACCOUNTED = tuple(dict.fromkeys((*METRICS, *ENERGY_METRICS)))  # of a GPU, for `compare` and `account`
_WORKING = ("train", "interactive", "inference")
_SYMPTOMS = ("train", "unattributed", "not_measured", "")
_NOT_LOST = ("train", "not_measured")
# nothing was done there, whatever the job was doing otherwise: seconds of these buckets are what an idle GPU cost
_STILL = ("idle", "tail", "before_start", "startup")
_SHARED = ("throttle", "straggler")  # one GPU has the fault, its peers wait for it


@dataclass
class Figures:
    """What is said of devices whatever was found."""

    coverage: CoverageFold = field(default_factory=CoverageFold)
    devices: list[DeviceReport] = field(default_factory=list)

    def add_all(self, other: Figures) -> None:
        """Add the devices of another node."""
        self.coverage.add_all(other.coverage)
        self.devices += other.devices


@dataclass
class Accounts:
    """Sums over devices; memory does not depend on their number."""

    waterfall: Waterfall = field(default_factory=Waterfall)
    energy: EnergyMeter = field(default_factory=EnergyMeter)
    lost_hours: dict[tuple[str, Source], float] = field(default_factory=dict)

    def add_all(self, other: Accounts) -> None:
        """Add the devices of another node."""
        self.waterfall.add_all(other.waterfall)
        self.energy.add_all(other.energy)
        for key, hours in other.lost_hours.items():
            self.lost_hours[key] = self.lost_hours.get(key, 0.0) + hours


class Bookkeeper:
    """Books the devices of one node after another: `describe` them, `compare` peers, `account` for what was found."""

    def __init__(self, samples: JobSamples) -> None:
        self._samples = samples
        self._headlines: dict[Source, str] = {}
        samples.want("job", JOB_METRICS)
        samples.want("node", NODE_METRICS)

    def describe(self, node: str) -> Figures:
        """The figures of the node's devices."""
        self._samples.want("gpu", FIGURES)
        figures = Figures()
        for source in self._gpus(node):
            headline, allocated = self.headline(source), allocated_seconds(self._samples, source)
            active = self._active(source, headline)
            covered = figures.coverage.add(self._samples, source, headline, active, allocated)
            figures.devices.append(describe(self._samples, source, headline, covered))
        return figures

    def compare(self, node: str, phases: Codes) -> dict[str, PeerFold]:
        """What the node's devices did under these phases of the job, by model."""
        folds: dict[str, PeerFold] = {}
        for source in self._gpus(node):
            gpu, _ = self._signals(source, phases)
            fold = folds.setdefault(self._model(source), PeerFold(self._samples.seconds))
            fold.add(gpu.work, gpu.clock_loss, gpu.clock)
        return folds

    def account(
        self, node: str, phases: Codes, cases: Sequence[Case], peers: Mapping[str, PeerFold]
    ) -> Accounts:
        """Book the node's devices under the findings on all nodes, beside their peers on all nodes."""
        accounts, host = Accounts(), self._host(node)
        ordered = sorted(cases, key=lambda one: -one.claimed_seconds)
        for source in self._gpus(node):
            gpu, own = self._signals(source, phases)
            working = np.isin(own, [CODE[name] for name in _WORKING])
            beside = peers.get(self._model(source)) or PeerFold(self._samples.seconds)
            missing = shortfall(gpu, working, host, beside)
            allocated = allocated_seconds(self._samples, source)
            booked = ledger(self._samples.start_ms, own, missing, allocated, _claims(source, ordered))
            accounts.waterfall.add(booked)
            _charge(source, booked, ordered, accounts)
            accounts.energy.add(gpu.series, booked.share)
        return accounts

    def headline(self, source: Source) -> str:
        """The best activity metric the device has; one per device, never mixed."""
        if source not in self._headlines:
            present = (name for name in HEADLINES if not np.isnan(self._samples.series(source, name)).all())
            self._headlines[source] = next(present, "")
        return self._headlines[source]

    def _gpus(self, node: str) -> list[Source]:
        return [source for source in self._samples.sources("gpu") if source.node == node]

    def _active(self, source: Source, headline: str) -> Floats:
        if headline:
            return self._samples.series(source, headline)
        return np.full(self._samples.seconds, np.nan)

    def _model(self, source: Source) -> str:
        device = self._samples.devices.get(source)
        return f"{device.model}/{device.mig_profile}" if device else ""

    def _signals(self, source: Source, phases: Codes) -> tuple[Signals, Codes]:
        def series(metric: str) -> Floats:
            return self._samples.series(source, metric)

        headline = self.headline(source)
        own = device_phases(phases, self._active(source, headline))
        working = np.isin(own, [CODE[name] for name in _WORKING])
        return signals(series, headline, working, self._samples.devices.get(source)), own

    def _host(self, node: str) -> HostEvidence:
        node_source = Source(node, "node")
        job_source = self._samples.beside(node_source, "job")
        return host_evidence(
            lambda metric: self._samples.series(job_source, metric),
            lambda metric: self._samples.series(node_source, metric),
        )


def _claims(source: Source, cases: Sequence[Case]) -> list[Claim]:
    mine = (one for one in cases if source in one.devices and one.cause not in _SYMPTOMS)
    return [Claim(one.cause, one.intervals) for one in mine if one.cause in CAUSES]


def _charge(source: Source, booked: Ledger, cases: Sequence[Case], accounts: Accounts) -> None:
    """Add to each finding what this device lost to its cause while it fired."""
    for one in cases:
        if source in one.devices and one.cause in CAUSES and one.cause not in _NOT_LOST:
            causes = _STILL if one.cause == "idle" else (one.cause,)
            _add(accounts, one, booked.lost_to(causes, one.intervals))
    for cause in _SHARED:
        _charge_culprits(cause, source, booked, cases, accounts)


def _charge_culprits(
    cause: str, source: Source, booked: Ledger, all_cases: Sequence[Case], accounts: Accounts
) -> None:
    """What this device lost waiting for others belongs to their findings; each second to one of them."""
    cases = [one for one in all_cases if one.cause == cause and one.source.scope == "gpu"]
    seen = [interval for one in cases if source in one.devices for interval in one.intervals]
    before = booked.lost_to([cause], union(seen))
    for one in cases:
        if source not in one.devices:
            seen.extend(one.intervals)
            total = booked.lost_to([cause], union(seen))
            _add(accounts, one, total - before)
            before = total


def _add(accounts: Accounts, case: Case, seconds: float) -> None:
    key = (case.rule, case.source)
    accounts.lost_hours[key] = accounts.lost_hours.get(key, 0.0) + seconds / 3600
