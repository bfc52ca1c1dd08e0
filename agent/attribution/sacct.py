"""Slurm's accounting of a job that the controller has forgotten: `sacct`, where a site has it."""

from __future__ import annotations

from gpudiag.agent.attribution.facts import Facts
from gpudiag.agent.attribution.slurm_words import UNKNOWN, exit_code, gpu_count, state_of, time_ms

_FIELDS = {  # sacct's field, and the name that its value has in a job's meta, if any
    "JobIDRaw": "", "JobID": "", "JobName": "", "User": "", "Cluster": "", "Start": "", "End": "", "State": "",
    "ExitCode": "", "Partition": "partition", "NodeList": "nodes", "Account": "account", "QOS": "qos",
    "Timelimit": "time_limit", "AllocTRES": "tres", "Submit": "submitted",
}  # fmt: skip
_SEPARATOR = "\x1f"  # no job can have it in its name


def question(job: str) -> list[str]:
    """Arguments for `sacct`: one line per run of the job (a requeued one has several), without its steps."""
    fields = ",".join(_FIELDS)
    return ["-X", "-D", "-n", "-P", f"--delimiter={_SEPARATOR}", "-o", fields, "-j", job]


def accounted_facts(text: str, job: str) -> Facts | None:
    """Facts of the job's latest run; None when accounting does not know it. An array's other tasks are passed over."""
    lines = [line.split(_SEPARATOR) for line in text.splitlines()]
    records = [dict(zip(_FIELDS, line, strict=True)) for line in lines if len(line) == len(_FIELDS)]
    runs = [record for record in records if record["JobIDRaw"] == job]
    if not runs:
        return None
    known = {name: value for name, value in runs[-1].items() if value not in UNKNOWN}
    words = known.get("State", "").split()  # "CANCELLED by 1000"
    running = state_of(words[0] if words else "") == "running"
    meta: dict[str, str | int] = {key: known[name] for name, key in _FIELDS.items() if key and name in known}
    gpus = gpu_count(known.get("AllocTRES", ""))
    meta |= {"gpus": gpus} if gpus else {}
    return Facts(
        raw_id=job,
        id=known.get("JobID", ""),
        cluster=known.get("Cluster", ""),
        name=known.get("JobName", ""),
        user=known.get("User", ""),
        start_ms=time_ms(known.get("Start", "")),
        end_ms=None if running else time_ms(known.get("End", "")),
        state=state_of(words[0] if words else ""),
        exit_code=None if running else exit_code(known.get("ExitCode", "")),
        restart=len(runs) - 1,
        meta={**meta, "scheduler_state": words[0]} if words else meta,
    )
