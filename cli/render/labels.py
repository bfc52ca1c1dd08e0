"""Every short text of the reports that is not a sentence: names of causes, phases, severities and tiers as people read them, and the letter each has on a strip."""

from __future__ import annotations

CAUSES = {
    "before_start": "before start",
    "startup": "start-up",
    "warmup": "warm-up",
    "train": "training, productive",
    "input_cpu": "input: CPU-bound",
    "input_disk": "input: disk-bound",
    "input_other": "input: other",
    "transfer": "host-to-device copies",
    "checkpoint": "checkpoints",
    "eval": "evaluation",
    "communication": "communication",
    "straggler": "waiting for a straggler",
    "throttle": "throttled clocks",
    "allocator": "memory allocator",
    "host": "host, kernel launches",
    "hung": "hung",
    "idle": "idle",
    "tail": "idle tail",
    "unattributed": "unattributed",
    "not_measured": "not measured",
}
PHASES = {
    "before_start": "before start",
    "startup": "start-up",
    "warmup": "warm-up",
    "train": "training",
    "eval": "evaluation",
    "checkpoint": "checkpoint",
    "hung": "hung",
    "idle": "idle",
    "interactive": "interactive",
    "inference": "inference",
    "restart": "restart",
    "tail": "idle tail",
    "not_measured": "not measured",
}
PHASE_LETTERS = {
    "before_start": "b",
    "startup": "s",
    "warmup": "w",
    "train": "T",
    "eval": "e",
    "checkpoint": "c",
    "hung": "H",
    "idle": "i",
    "interactive": "n",
    "inference": "f",
    "restart": "r",
    "tail": "t",
    "not_measured": "?",
}
CAUSE_LETTERS = {
    "before_start": "b",
    "startup": "s",
    "warmup": "w",
    "train": "T",
    "input_cpu": "p",
    "input_disk": "d",
    "input_other": "n",
    "transfer": "x",
    "checkpoint": "c",
    "eval": "e",
    "communication": "m",
    "straggler": "g",
    "throttle": "h",
    "allocator": "a",
    "host": "o",
    "hung": "H",
    "idle": "i",
    "tail": "t",
    "unattributed": "u",
    "not_measured": "?",
}
SEVERITIES = {"info": "info", "warning": "warning", "critical": "critical"}
CONFIDENCES = {"possible": "possible", "likely": "likely", "confirmed": "confirmed"}
TIERS = {"quick": "do first", "medium": "then", "deep": "later"}
STATES = {
    "running": "running",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "timeout": "timed out",
    "oom": "out of memory",
    "unknown": "state unknown",
}
HEADLINES = {
    "sm_active_ratio": "SM activity",
    "graphics_active_ratio": "engine activity",
    "gpu_util_ratio": "GPU utilisation",
}
EVENTS = {
    "xid": "Xid",
    "oom_kill": "killed for memory",
    "driver_hung": "driver not responding",
    "driver_recovered": "driver responds again",
    "gpu_lost": "GPU lost",
    "clock_jump": "clock jumped",
}
METRICS = {
    "sm_active_ratio": "SM activity",
    "gpu_util_ratio": "GPU utilisation",
    "tensor_active_ratio": "tensor cores",
    "dram_active_ratio": "memory bandwidth",
    "memory_used_bytes": "GPU memory used",
    "power_watts": "power",
    "temperature_celsius": "temperature",
    "sm_clock_hertz": "SM clock",
    "pcie_rx_bytes_per_second": "PCIe, host to GPU",
    "nvlink_rx_bytes_per_second": "NVLink received",
    "cpu_busy_ratio": "host CPUs busy",
    "memory_available_bytes": "host memory free",
    "pressure_io_some_ratio": "host waits for I/O",
    "disk_read_bytes_per_second": "disk reads",
    "loader_cpu_ratio": "CPU per loader worker",
    "main_cpu_ratio": "CPU of main process",
    "job_cpus_allowed": "CPUs allowed",
    "loader_workers": "loader workers",
    "job_memory_limit_bytes": "job memory limit",
    "job_memory_working_set_bytes": "job memory on host",
    "job_write_bytes_per_second": "job writes",
}
STATES_OF_ITEMS = {"ok": "ok", "missing": "missing", "problem": "PROBLEM"}
LEVELS = ("ok", "warning", "critical")
SEEN_BY = ("agent", "store", "driver")
OOM_NUMBERS = ("requested", "capacity", "limit", "free", "allocated", "reserved", "process", "others")
OOM_KINDS = {
    "shortage": "shortage",
    "fragmentation": "fragmentation",
    "another_process": "another process",
    "context_overhead": "context overhead",
    "private_pools": "private pools",
    "absurd_request": "absurd request",
    "process_limit": "limit of the process",
    "pool_exhausted": "pool of the framework",
    "kv_cache": "cache of keys and values",
    "library_memory": "memory of a library",
    "outside_allocator": "outside allocator",
    "kernel_resources": "on-chip memory of a kernel",
    "host_oom": "host out of memory",
    "cgroup_oom": "memory limit of the job",
    "oom_killed": "killed for memory",
    "host_allocation": "host memory refused",
    "shared_memory_full": "shared memory full",
    "worker_died": "worker died",
    "unknown": "unknown",
}
POOL_COLUMNS = ("GPU", "pool", "stream", "segments", "reserved", "allocated", "stuck")
PIN_COLUMNS = ("allocated at", "held", "pinned")
MATURITIES = ("sandbox", "incubating", "stable", "deprecated")
SCOPES = {"gpu": "each GPU", "node": "each node", "job": "each job"}
PRECISIONS = {"mixed": "mixed precision", "fp32": "fp32 precision", "bf16": "bf16 precision"}
HOST_SOURCES = {
    "cpu": "CPUs",
    "memory": "host memory",
    "pressure": "pressure",
    "disk": "disks",
    "network": "network",
    "infiniband": "InfiniBand",
    "nfs": "NFS",
    "shm": "shared memory",
}
POOLS = ("large", "small", "unknown")
TABLES = {  # rows of the database, by table
    "head": "{count} blocks not yet sealed",
    "chunk": "{count} chunks",
    "minute": "{count} minutes",
    "job": "{count} jobs",
    "event": "{count} events",
    "finding": "{count} findings",
    "report": "{count} frozen reports",
    "source": "{count} sources",
    "series": "{count} series",
    "device": "{count} devices' attributes",
    "layout": "{count} kinds of columns",
}
PRUNED = {  # what pruning did, by the name in its JSON
    "frozen_reports": "{count} reports frozen",
    "chunks": "{count} chunks",
    "minutes": "{count} minutes",
    "events": "{count} events",
    "findings": "{count} findings",
    "jobs": "{count} jobs",
    "names": "{count} names that nothing refers to",
    "dropped_chunks": "{count} chunks dropped before they were forwarded",
    "sealed_windows": "{count} windows sealed",
    "freed_bytes": "{count} bytes freed",
}
DRIVER_STATES = ("off", "starting", "running", "late", "hung", "unavailable", "released", "failed")
DEVICE_COLUMNS = ("GPU", "model", "measured", "mean", "p10", "mem max", "power", "max temp", "longest idle")
TOP_COLUMNS = ("GPU", "JOB", "USER", "SM", "TENSOR", "MEMORY", "PCIE", "NVLINK", "POWER", "TEMP", "FINDING")
TOP_SORTS = ("index", "sm", "memory", "power", "job", "finding")
MODEL_COLUMNS = ("model", "parameters", "layers", "width", "heads", "kv heads")
JOB_COLUMNS = ("job", "name", "user", "state", "start", "length", "nodes", "GPUs", "GPU-h")
LOSS_COLUMNS = ("lost", "share", "largest loss", "severity")
SCRIPT = {  # texts of the HTML report's script, by the name it knows them under
    "not_measured": "not measured",
    "phases": "phases",
    "finding": "finding",
    "events": "events",
    "per_gpu": "each GPU",
    "low_to_high": "low to high",
}
