"""Hand-made diagnoses for the renderers: each a scenario that a report must say well."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpudiag.rules.model import (
    Advice,
    Bucket,
    Coverage,
    DeviceReport,
    Diagnosis,
    Evidence,
    Finding,
    Interval,
    NotEvaluated,
    PhaseSpan,
    Statistics,
)  # fmt: skip
from gpudiag.storage.job import Device, Event, Job
from gpudiag.storage.sample import Source

START = 1_772_528_400_000  # 2026-03-03 09:00:00 UTC
MINUTE = 60_000
HOUR = 60 * MINUTE
GIB = 1024.0**3


def stretch(first: float, last: float) -> Interval:
    """Minutes of the job."""
    return Interval(START + int(first * MINUTE), START + int(last * MINUTE))


def spread(mean: float, low: float = 0.0, high: float | None = None) -> Statistics:
    top = mean if high is None else high
    return Statistics(mean, low, low + (mean - low) / 2, mean, top, top)


def gpu(
    index: int, node: str = "node01", *, busy: float = 0.7, coverage: float = 1.0, **changes: object
) -> DeviceReport:
    source = Source(node, f"GPU-{node}-{index:04d}")
    device = Device(source, START, index=index, model="NVIDIA H100 80GB HBM3", memory_total_bytes=80 * GIB)
    timeline = tuple(busy * (0.6 + 0.4 * math.sin(cell / 7 + index)) for cell in range(120))
    report = DeviceReport(
        source, device, coverage,
        {
            "sm_active_ratio": spread(busy, 0.0, 0.99),
            "memory_used_bytes": spread(46 * GIB, 1 * GIB, (46 + 4 * index) * GIB),
            "power_watts": spread(510.0 - 10 * index, 90.0, 690.0),
            "temperature_celsius": spread(64.0, 31.0, 68.0 + index),
        },
        {"sm_active_ratio": "gpm", "memory_used_bytes": "nvml"},
        "sm_active_ratio", timeline, stretch(225, 240),
    )  # fmt: skip
    return replace(report, **changes)  # type: ignore[arg-type]


def buckets(hours: float, **shares: float) -> tuple[Bucket, ...]:
    return tuple(Bucket(cause, hours * share, share) for cause, share in shares.items())


LOADER = Finding(
    "input/cpu-bound-loader", "Data-loader workers cannot keep up: the GPU waits for the CPU.", "warning", "likely",
    "input_cpu", (), (stretch(25, 70),), 2.61, 2.3,
    (
        Evidence("lost", 0.46, "ratio"), Evidence("mean(loader_cpu_ratio)", 0.98, "ratio"),
        Evidence("loader_workers", 32.0, "count"), Evidence("cpus_allowed", 96.0, "count"),
    ),
    (
        Advice("quick", "Raise num_workers from 4 to about 10 per GPU: 60 CPUs of the job are idle."),
        Advice("medium", "Decode and augment on the GPU."), Advice("deep", "Prepare the data set offline."),
    ),
)  # fmt: skip
THROTTLE = Finding(
    "clocks/thermal-throttle", "A GPU lowers its clock because it is too hot.", "critical", "confirmed", "throttle",
    (), (stretch(158, 183),), 0.71, 0.7,
    (Evidence("max(temperature_celsius)", 88.0, "celsius"), Evidence("mean(sm_clock_hertz)", 1.49e9, "hertz")),
    (Advice("quick", "Check the air flow of this GPU; its neighbours are 18 °C cooler."),),
)  # fmt: skip
OOM = Finding(
    "memory/gpu-oom-imminent", "GPU memory grows steadily and will run out.", "critical", "likely", "allocator",
    (), (stretch(190, 235),), 0.0, 0.0,
    (Evidence("slope", 0.6 * GIB / 60, "bytes_per_second"), Evidence("eta", 760.0, "seconds")),
    (Advice("quick", "Log loss.item(), not loss: the graph of every logged loss is kept."),),
)  # fmt: skip
PHASES = (
    PhaseSpan("before_start", stretch(0, 1)), PhaseSpan("startup", stretch(1, 4)), PhaseSpan("warmup", stretch(4, 14)),
    PhaseSpan("train", stretch(14, 75)), PhaseSpan("eval", stretch(75, 77)), PhaseSpan("train", stretch(77, 120)),
    PhaseSpan("checkpoint", stretch(120, 121)), PhaseSpan("train", stretch(121, 235)), PhaseSpan("tail", stretch(235, 240)),
)  # fmt: skip


def slow() -> Diagnosis:
    """Eight GPUs, several causes: the report most people will see."""
    devices = tuple(gpu(index) for index in range(8))
    everything = tuple(device.source for device in devices)
    return Diagnosis(
        Job("local/42/1772528400", "42", START, START + 4 * HOUR, name="sft-7b", user="ana", state="failed", exit_code=1),
        START, START + 4 * HOUR, ("node01",), Coverage(0.998, 8, 8),
        "74 % of 32.0 GPU-hours did useful work; most was lost to a data loader that is short of CPU.",
        (
            replace(LOADER, sources=everything),
            replace(THROTTLE, sources=everything[5:6]),
            replace(OOM, sources=everything[:1]),
            replace(LOADER, rule="util/low-sm-activity", sources=everything, explained_by="input/cpu-bound-loader"),
        ),
        buckets(
            32.0, before_start=0.004, startup=0.013, warmup=0.042, train=0.74, input_cpu=0.082, checkpoint=0.01,
            eval=0.019, throttle=0.022, allocator=0.004, tail=0.021, unattributed=0.041, not_measured=0.002,
        ),
        32.0, PHASES, devices,
        (Event(everything[3], START + 130 * MINUTE, "xid", 31, detail={"message": "GPU memory page fault"}),),
        ("comm/nvlink-unused", "health/ecc", "memory/host-oom-imminent", "util/hung"),
        (
            NotEvaluated("memory/fragmentation", "needs torch_reserved_bytes: no hook in the process"),
            NotEvaluated("memory/allocator-thrash", "needs torch_reserved_bytes: no hook in the process"),
            NotEvaluated("health/nvlink-errors", "nvlink_errors_total was not measured"),
        ),
        rule_versions={"builtin": "1"},
    )  # fmt: skip


def healthy() -> Diagnosis:
    """Nothing to complain about."""
    whole = slow()
    return replace(
        whole, findings=(), verdict="96 % of 32.0 GPU-hours did useful work; nothing cost more than a fiftieth of it.",
        waterfall=buckets(32.0, startup=0.01, warmup=0.02, train=0.96, unattributed=0.01), events=(),
        job=replace(whole.job, state="completed", exit_code=0), not_evaluated=(),
    )  # fmt: skip


def unmeasured() -> Diagnosis:
    """Most of the job was not seen: figures, but no verdict."""
    whole = slow()
    gone = tuple(
        replace(
            device, coverage=0.0, statistics={}, origins={}, timeline=(math.nan,) * 120, longest_idle=None
        )
        for device in whole.devices[2:]
    )
    return replace(
        whole, devices=(*whole.devices[:2], *gone), findings=(), coverage=Coverage(0.24, 8, 2),
        verdict="No verdict: only 24 % of the allocation was measured, at least 50 % is needed.",
        waterfall=buckets(32.0, train=0.2, tail=0.04, not_measured=0.76),
        phases=(PhaseSpan("train", stretch(0, 60)), PhaseSpan("not_measured", stretch(60, 240))), events=(), passed=(),
    )  # fmt: skip


def cluster() -> Diagnosis:
    """Eight nodes of eight GPUs, one slow."""
    whole = slow()
    nodes = tuple(f"node{number:02d}" for number in range(1, 9))
    devices = tuple(
        gpu(index, node, busy=0.3 if (node, index) == ("node06", 2) else 0.8)
        for node in nodes
        for index in range(8)
    )
    straggler = Finding(
        "util/straggler", "One GPU is slower than its peers, and all wait for it.", "critical", "likely", "straggler",
        (devices[42].source,), (stretch(20, 40), stretch(60, 100), stretch(110, 200), stretch(210, 220)), 41.3, 38.0,
        (Evidence("share_of_peers", 0.38, "ratio"),), (Advice("quick", "Look at clocks and links of node06 GPU 2."),),
    )  # fmt: skip
    return replace(
        whole, nodes=nodes, devices=devices, total_gpu_hours=256.0, findings=(straggler,),
        coverage=Coverage(0.97, 64, 64), events=(), waterfall=buckets(256.0, train=0.8, straggler=0.161, unattributed=0.039),
        verdict="80 % of 256.0 GPU-hours did useful work; most was lost to waiting for a slower GPU.",
    )  # fmt: skip


def imported() -> Diagnosis:
    """A log that somebody else recorded: utilisation only, no host, no end known."""
    whole = slow()
    devices = tuple(
        replace(
            device, headline="gpu_util_ratio", origins={"gpu_util_ratio": "nvml"},
            statistics={"gpu_util_ratio": spread(0.41, 0.0, 1.0)}, device=None,
        )
        for device in whole.devices[:1]
    )  # fmt: skip
    reason = "job_memory_limit_bytes was not measured"
    return replace(
        whole, job=Job("local/7/1772528400", "7", START, None, state="unknown"), devices=devices, findings=(),
        coverage=Coverage(1.0, 1, 1), total_gpu_hours=4.0, waterfall=buckets(4.0, train=0.6, idle=0.4), events=(),
        not_evaluated=tuple(NotEvaluated(f"memory/rule-{n}", f"{reason} ({n})") for n in range(12)),
        verdict="60 % of 4.0 GPU-hours did useful work; most was lost to idle GPUs: 1.6 GPU-hours, 40 %.",
        notes=("SM activity was not recorded: judged by utilisation, with less confidence.",),
    )  # fmt: skip


def hostile() -> Diagnosis:
    """Names and texts that try to break out of the page or the terminal."""
    whole = slow()
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;owned\x07\u202e|`*_[x](javascript:1)\n# x"
    return replace(
        whole, job=replace(whole.job, name=evil, user=evil, id="4|2"), verdict=f"verdict {evil}", notes=(evil,),
        findings=(replace(LOADER, summary=evil, rule="x/<b>", sources=(whole.devices[0].source,), advice=(Advice("quick", evil),)),),
        not_evaluated=(NotEvaluated("a/b", evil),), nodes=("node<1>",),
        events=(Event(whole.devices[0].source, START + HOUR, "xid", 13, detail={"message": evil}),),
    )  # fmt: skip


def mig() -> Diagnosis:
    """Two slices of one GPU."""
    whole = slow()
    device = whole.devices[0].device
    assert device is not None
    slices = tuple(
        gpu(0, source=Source("node01", f"MIG-{number}"), device=replace(device, mig_profile="3g.40gb"))
        for number in range(2)
    )
    return replace(
        whole, devices=slices, findings=(), total_gpu_hours=8.0, waterfall=buckets(8.0, train=0.9, tail=0.1)
    )


def short() -> Diagnosis:
    """Eight seconds of a job: nothing was allocated for long enough to say anything."""
    whole = slow()
    return replace(
        whole, end_ms=START + 8000, findings=(), waterfall=(), phases=(), devices=(), events=(), passed=(),
        total_gpu_hours=0.018, coverage=Coverage(1.0, 8, 8), not_evaluated=(),
        verdict="No verdict: too few samples, 8 of the 10 that are needed at least.",
    )  # fmt: skip


SCENARIOS: Mapping[str, Callable[[], Diagnosis]] = {
    made.__name__: made for made in (slow, healthy, unmeasured, cluster, imported, hostile, mig, short)
}
