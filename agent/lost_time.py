"""GPU-seconds that open findings say are lost, summed since the start: the counters beside `gpudiag_finding_active`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpudiag.storage.sample import JOB_PREFIX
from gpudiag.storage.store import StoredFinding


class LostTime:
    """Adds up per rule and device. Findings overlap, so sums over rules may count a second twice."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)

    def add(
        self, findings: Iterable[StoredFinding], devices: Mapping[str, Sequence[str]], seconds: float
    ) -> None:
        """Each finding was open for that long; `devices` maps a job's key to the UUIDs it has here."""
        for finding in findings:
            ratio = lost_ratio(finding)
            if ratio is not None:
                for uuid in charged(finding, devices):
                    self._seconds[finding.rule, uuid] += ratio * seconds

    def totals(self) -> Mapping[tuple[str, str], float]:
        """(rule, UUID) to GPU-seconds; a rule that names no loss is absent."""
        return dict(self._seconds)


def lost_ratio(finding: StoredFinding) -> float | None:
    """Share of the device's time that the finding puts down to its cause, 0..1; None when it does not say."""
    ratio = finding.body.get("lost_ratio") if isinstance(finding.body, Mapping) else None
    return float(ratio) if isinstance(ratio, (int, float)) else None


def charged(finding: StoredFinding, devices: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The GPUs whose time it is: its own, or all of its job when it is on the job or on the node; none once that ended."""
    if finding.job_key and finding.job_key not in devices:
        return ()
    if finding.source.scope == "gpu":
        return (finding.source.device,)
    return devices.get(finding.job_key or finding.source.device.removeprefix(JOB_PREFIX), ())
