"""What the environment of a process says about its job: /proc/PID/environ, where that may be read."""

from __future__ import annotations

from collections.abc import Mapping

from gpudiag.agent.attribution.devices import is_uuid, visible_references
from gpudiag.agent.attribution.facts import Facts, display_id

_NOT_DEVICES = ("NoDevFiles", "-1", "")


def parse_environ(text: str) -> dict[str, str]:
    """Variables between NUL bytes; the kernel gives what the process was started with."""
    pairs = (item.partition("=") for item in text.split("\0"))
    return {name: value for name, separator, value in pairs if separator and name}


def slurm_facts(environ: Mapping[str, str]) -> Facts | None:
    """Facts of a Slurm job's process, Prolog or Epilog; None outside of one."""
    raw_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    if not raw_id.isdigit():
        return None
    het_job, offset = _het_part(environ, raw_id)
    return Facts(
        raw_id=raw_id,
        id=display_id(
            raw_id,
            environ.get("SLURM_ARRAY_JOB_ID", ""),
            environ.get("SLURM_ARRAY_TASK_ID", ""),
            het_job,
            offset,
        ),
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        name=environ.get("SLURM_JOB_NAME", ""),
        user=environ.get("SLURM_JOB_USER", ""),
        start_ms=_seconds_as_ms(environ.get("SLURM_JOB_START_TIME", "")),
        restart=_number(environ.get("SLURM_RESTART_COUNT", "")),
        devices=slurm_devices(environ),
        sluid=environ.get("SLURM_JOB_SLUID", ""),
        meta=_meta(environ),
    )


def slurm_devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Device references of the job on this node.

    UUIDs in CUDA_VISIBLE_DEVICES are exact. SLURM_JOB_GPUS numbers device files; SLURM_STEP_GPUS would name
    only the step's. Plain numbers in CUDA_VISIBLE_DEVICES count from the job's first device and say nothing.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    exact = tuple(word for word in visible_references(visible) if is_uuid(word))
    if exact:
        return exact
    numbers = environ.get("SLURM_JOB_GPUS") or environ.get("GPU_DEVICE_ORDINAL") or ""
    return tuple(f"minor:{word}" for word in numbers.split(",") if word.isdigit())


def _het_part(environ: Mapping[str, str], raw_id: str) -> tuple[str, str]:
    """Leader and offset of a part of a heterogeneous job, from SLURM_JOB_ID_HET_GROUP_n."""
    prefix = "SLURM_JOB_ID_HET_GROUP_"
    leader = environ.get(f"{prefix}0", "")
    for name, value in environ.items():
        if name.startswith(prefix) and value == raw_id:
            return leader, name[len(prefix) :]
    return "", ""


def _meta(environ: Mapping[str, str]) -> dict[str, str]:
    names = {
        "partition": "SLURM_JOB_PARTITION",
        "nodes": "SLURM_JOB_NODELIST",
        "node_name": "SLURMD_NODENAME",
        "account": "SLURM_JOB_ACCOUNT",
        "qos": "SLURM_JOB_QOS",
    }
    found = {key: environ[name] for key, name in names.items() if environ.get(name)}
    if "nodes" not in found and environ.get("SLURM_NODELIST"):
        found["nodes"] = environ["SLURM_NODELIST"]
    return found


def _seconds_as_ms(text: str) -> int | None:
    number = _number(text)
    return number * 1000 if number else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
