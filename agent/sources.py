"""The collectors that this configuration asks for, in the order in which they run, and the attribution of jobs."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.agent.attribution import Attribution
from gpudiag.agent.attribution.pod_resources import PodResources
from gpudiag.agent.attribution.scontrol import Scontrol
from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import Collector, host_collectors
from gpudiag.agent.collectors.dcgm import DcgmCollector
from gpudiag.agent.collectors.dcgm_exporter import DcgmExporterCollector
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.collectors.job import JobCollector
from gpudiag.agent.collectors.kernel_log import KernelLogCollector
from gpudiag.agent.collectors.nvml import NvmlCollector
from gpudiag.agent.collectors.training import TrainingCollector
from gpudiag.agent.config import Config, SourcesSection
from gpudiag.agent.remembered import Remembered
from gpudiag.agent.sampler import RunningJob
from gpudiag.agent.xid import WithXids, XidReports, load_catalogue
from gpudiag.errors import InputError
from gpudiag.storage.job import Allocation, Device, Event, Job
from gpudiag.storage.sample import Source

if TYPE_CHECKING:
    from gpudiag.agent.attribution.pod_labels import PodLabels

log = logging.getLogger(__name__)


class JobsOnNode:
    """A `sampler.Attributor` over the attribution and the GPU processes that NVML lists."""

    def __init__(self, attribution: Attribution, nvml: NvmlCollector | None) -> None:
        self._attribution = attribution
        self._nvml = nvml

    @property
    def running(self) -> Sequence[RunningJob]:
        return [RunningJob(one.job, one.allocations) for one in self._attribution.running]

    def reconcile(
        self, now_ms: int, devices: Mapping[Source, Device]
    ) -> tuple[Sequence[Job], Sequence[Allocation], Sequence[Event]]:
        processes = self._nvml.processes if self._nvml is not None else ()
        activity = self._nvml.activity if self._nvml is not None else {}
        changes = self._attribution.reconcile(now_ms, processes, devices.values(), activity)
        return changes.jobs, changes.allocations, changes.events


class Sources:
    """Builds the collectors; the sampler closes them."""

    def __init__(
        self,
        config: Config,
        node: str,
        clock: Clock,
        runtime_dir: Path,
        state_dir: Path | None,
        remembered: Remembered,
    ) -> None:
        root = Path(config.agent.root)
        wanted = config.sources
        self.collectors: list[Collector] = []
        self.nvml: NvmlCollector | None = None
        self.attributor: JobsOnNode | None = None
        self.kernel_log: KernelLogCollector | None = None
        if wanted.nvml:
            self.nvml = NvmlCollector(
                node,
                clock,
                config.agent.interval,
                wanted.nvml_library,
                root,
                remembered.devices,
                remembered.open_trouble,
            )
            self.collectors.append(self.nvml)
        self._add_dcgm(config, node, clock)
        if wanted.host:
            self.collectors += host_collectors(root, node, clock)
        if wanted.kernel_log:
            self.kernel_log = KernelLogCollector(HostRoot.at(root), node, clock, state_dir)
            self.kernel_log.learn_devices(remembered.devices)
            self.collectors.append(self.kernel_log)
        if wanted.jobs:
            attribution = Attribution(
                root,
                node,
                clock,
                cluster=config.agent.cluster,
                runtime_dir=runtime_dir,
                job_directories=[Path(folder) for folder in wanted.job_directories],
                scontrol=_scontrol(wanted, node, clock),
                pods=PodResources(wanted.pod_resources, clock.monotonic) if wanted.pod_resources else None,
                pod_labels=_pod_labels(wanted, node, clock),
                silence_ms=round(wanted.job_silence * 1000),
            )
            attribution.restore(remembered.jobs, remembered.last_sample_ms)
            self.attributor = JobsOnNode(attribution, self.nvml)
            self.collectors.append(JobCollector(HostRoot.at(root), node, clock, attribution))
            self._add_training(runtime_dir, node, attribution, root)
        self._share_xids(wanted.xid_catalogue)

    def _share_xids(self, catalogue: str) -> None:
        """One event for an Xid, whoever reports it. Raises `InputError` for a bad catalogue."""
        reports = XidReports(load_catalogue(Path(catalogue) if catalogue else None))
        self.collectors = [WithXids(one, reports) for one in self.collectors]

    def learn_devices(self, devices: Sequence[Device]) -> None:
        """Tell those who must know where a GPU was once it is gone."""
        if self.kernel_log is not None:
            self.kernel_log.learn_devices(devices)

    def _add_dcgm(self, config: Config, node: str, clock: Clock) -> None:
        wanted, nvml = config.sources, self.nvml
        if wanted.dcgm_hostengine:
            instance = nvml.instance if nvml is not None else lambda uuid, number: None
            found = DcgmCollector(
                node, wanted.dcgm_hostengine, clock, config.agent.interval, instance=instance
            )
            self.collectors.append(found)
        if wanted.dcgm_exporter and nvml is not None:
            self.collectors.append(
                DcgmExporterCollector(node, wanted.dcgm_exporter, clock, nvml.describes, nvml.instance)
            )
        elif wanted.dcgm_exporter:
            self.collectors.append(DcgmExporterCollector(node, wanted.dcgm_exporter, clock))

    def _add_training(self, runtime_dir: Path, node: str, attribution: Attribution, root: Path) -> None:
        path = runtime_dir / "probe.sock"
        try:
            self.collectors.append(TrainingCollector(path, node, lambda: attribution.running, root))
        except OSError as error:
            log.warning("training processes cannot report here: %s: %s", path, error.strerror)


def _pod_labels(wanted: SourcesSection, node: str, clock: Clock) -> PodLabels | None:
    if not wanted.pod_labels:
        return None
    if not wanted.pod_resources:
        raise InputError("sources.pod_labels needs sources.pod_resources, which names the pods")
    from gpudiag.agent.attribution.pod_labels import PodLabels  # an HTTPS client, only where it is wanted

    return PodLabels(wanted.pod_labels, node, os.environ, clock.monotonic)


def _scontrol(wanted: SourcesSection, node: str, clock: Clock) -> Scontrol | None:
    if not wanted.scontrol or shutil.which(wanted.scontrol) is None:
        return None
    sacct = wanted.sacct if wanted.sacct and shutil.which(wanted.sacct) else ""
    names = [node, socket.gethostname(), socket.gethostname().partition(".")[0]]
    return Scontrol(clock.monotonic, list(dict.fromkeys(names)), wanted.scontrol, sacct=sacct)
