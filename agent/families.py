"""Names and meanings of the metrics that are not in the catalog, and the making of prometheus-client families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Families = Iterator[Metric]

OWN = {
    "gpudiag_build_info": "Version of the agent",
    "gpudiag_collector_duration_seconds": "Length of the latest run of the collector",
    "gpudiag_collector_failures_total": "Failed runs of the collector since the start",
    "gpudiag_collector_last_success_timestamp_seconds": "When the collector last succeeded",
    "gpudiag_collector_success": "Whether the latest run of the collector succeeded; absent where there is nothing to collect",
    "gpudiag_cycles_failed_total": "Sampling cycles that broke off on an error",
    "gpudiag_driver_calls": "Calls into the driver in the latest cycle of the probe",
    "gpudiag_driver_cycle_seconds": "Length of the latest cycle of the probe",
    "gpudiag_driver_entry_absent": "An entry point of the driver that gives nothing on this device, and why",
    "gpudiag_driver_state": "1 for the state in which the driver's probe is",
    "gpudiag_event_last_timestamp_seconds": "When the latest event of this kind and code was",
    "gpudiag_events_total": "Events since the start of the agent",
    "gpudiag_finding_active": "A rule fires now on this device; without uuid: on the node",
    "gpudiag_finding_lost_gpu_seconds_total": "GPU time lost while the rule fired, by the rule's own estimate; rules overlap",
    "gpudiag_forward_failures_total": "Rounds of forwarding that failed",
    "gpudiag_forward_lag_seconds": "Age of the oldest sample that the central database has not acknowledged",
    "gpudiag_forward_last_success_timestamp_seconds": "When the latest round of forwarding succeeded",
    "gpudiag_forward_rejected_rows_total": "Rows that the central database can never hold; each is an event",
    "gpudiag_forward_sent_rows_total": "Rows sent to the central database",
    "gpudiag_forward_up": "Whether the latest round of forwarding succeeded",
    "gpudiag_forward_waiting_rows": "Rows that wait to be forwarded",
    "gpudiag_gpu_lost": "A GPU that the driver does not answer for any more, and why",
    "gpudiag_gpu_info": "Attributes of a device; join on uuid",
    "gpudiag_job_info": "Which job has which device now; join on uuid or job_key",
    "gpudiag_last_tick_timestamp_seconds": "When the latest sampling cycle was",
    "gpudiag_log_lines_suppressed_total": "Log lines left out as repetitions",
    "gpudiag_otlp_failures_total": "Exports to the OTLP receiver that failed",
    "gpudiag_probe_starts_total": "Starts of the child process that talks to the driver",
    "gpudiag_samples_rejected_total": "Values outside the believable range, left out",
    "gpudiag_store_bytes": "Size of the database, without free pages",
    "gpudiag_store_dropped_chunks_total": "Chunks given up at the size limit before the central database had them",
    "gpudiag_store_dropped_frames_total": "Samples given up after waiting too long for the database",
    "gpudiag_store_flush_seconds": "Length of the latest write to the database",
    "gpudiag_store_flushes_total": "Writes to the database that succeeded",
    "gpudiag_store_last_flush_timestamp_seconds": "When the latest write to the database succeeded",
    "gpudiag_store_up": "Whether the latest write to the database succeeded",
    "gpudiag_store_waiting_frames": "Samples in memory that are not written yet",
    "gpudiag_ticks_skipped_total": "Sampling cycles left out because the one before took too long",
    "gpudiag_ticks_total": "Sampling cycles since the start",
}


class Family:
    """A gauge or counter being filled; an empty one is left out of the exposition."""

    def __init__(self, name: str, help: str, labels: Sequence[str] = (), counter: bool = False) -> None:
        kind = CounterMetricFamily if counter else GaugeMetricFamily
        self.metric = kind(name, help, labels=labels)

    def add(self, labels: Sequence[object], value: float) -> None:
        self.metric.add_metric([str(label) for label in labels], value)

    def filled(self) -> Families:
        if self.metric.samples:
            yield self.metric


def own(name: str, *labels: str) -> Family:
    """A family of `OWN`; names in `_total` are counters."""
    return Family(name, OWN[name], labels, counter=name.endswith("_total"))


def single(name: str, value: float | None) -> Families:
    """A family of `OWN` with one value and no labels; nothing for None."""
    if value is not None:
        family = own(name)
        family.add((), value)
        yield family.metric
