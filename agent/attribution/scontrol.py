"""Slurm's own account of a job: `scontrol show job -d ID`, asked once per job and never waited for.

The controller forgets a job some minutes after its end (MinJobAge); then accounting is asked, where there is any.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from gpudiag.agent.attribution.facts import Facts, display_id
from gpudiag.agent.attribution.hostlist import expand_hostlist, expand_numbers
from gpudiag.agent.attribution.sacct import accounted_facts, question
from gpudiag.agent.attribution.slurm_words import UNKNOWN, exit_code, gpu_count, state_of, time_ms

log = logging.getLogger(__name__)
_CONFIG = ""  # the question about the cluster itself

_PAIR = re.compile(r"(\w[\w/:]*)=(\S*)")
_REST_OF_LINE = (
    "JobName",
    "Command",
    "WorkDir",
    "StdErr",
    "StdIn",
    "StdOut",
    "Comment",
    "AdminComment",
    "TresPerNode",
)
_INDEX = re.compile(r"(?P<kind>gpu|mps|shard)(?::[^,()]*)?\(IDX:(?P<list>[\d,\-]+)\)")


def parse_records(text: str) -> list[dict[str, str]]:
    """Records of `scontrol show job`, each as its `Key=Value` pairs; per-node lines are gathered under `NodeDetail`."""
    records: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("JobId="):
            records.append({})
        if records and line.strip():
            _read_line(line, records[-1])
    return records


def _read_line(line: str, record: dict[str, str]) -> None:
    stripped = line.strip()
    if stripped.startswith("Nodes=") and "CPU_IDs=" in stripped:
        record["NodeDetail"] = f"{record.get('NodeDetail', '')}{stripped}\n"
        return
    # these values may hold blanks and equal signs, and end their line
    for key in _REST_OF_LINE:
        before, found, value = stripped.partition(f"{key}=")
        if found and (not before or before.endswith(" ")):
            record.setdefault(key, value)
            stripped = before
            break
    for key, value in _PAIR.findall(stripped):
        record.setdefault(key, value)


def job_facts(record: Mapping[str, str], node_names: Sequence[str]) -> Facts:
    """Facts of one record, with the devices that it has on the node known by any of `node_names`."""
    known = {key: value for key, value in record.items() if value not in UNKNOWN}
    raw_id = known.get("JobId", "")
    state = known.get("JobState", "").partition(",")[0]  # "COMPLETED,REQUEUED": the main state is first
    running = state_of(state) == "running"
    het_job, offset = known.get("HetJobId", ""), known.get("HetJobOffset", "")
    return Facts(
        raw_id=raw_id,
        id=display_id(raw_id, known.get("ArrayJobId", ""), known.get("ArrayTaskId", ""), het_job, offset),
        name=known.get("JobName", ""),
        user=known.get("UserId", "").partition("(")[0],
        start_ms=time_ms(known.get("StartTime", "")),
        end_ms=None if running else time_ms(known.get("EndTime", "")),
        state=state_of(state),
        exit_code=None if running else exit_code(known.get("ExitCode", "")),
        restart=int(known["Restarts"]) if known.get("Restarts", "").isdigit() else None,
        devices=tuple(f"minor:{number}" for number in node_devices(known.get("NodeDetail", ""), node_names)),
        sluid=known.get("SLUID", ""),
        meta=_meta(known, state),
    )


def node_devices(detail: str, node_names: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the devices in the per-node lines; a job on one group of nodes needs no matching name."""
    lines = detail.splitlines()
    chosen = [line for line in lines if _names_node(line, node_names)] or (lines if len(lines) == 1 else [])
    numbers: dict[int, None] = {}
    for line in chosen:
        for match in _INDEX.finditer(line):
            numbers.update(dict.fromkeys(int(number) for number in expand_numbers(match["list"])))
    return tuple(numbers)


def _names_node(line: str, node_names: Sequence[str]) -> bool:
    listed = line.split()[0].partition("=")[2]
    try:
        return not set(node_names).isdisjoint(expand_hostlist(listed))
    except ValueError:
        return False


def _meta(known: Mapping[str, str], state: str) -> dict[str, str | int]:
    names = {
        "partition": "Partition",
        "nodes": "NodeList",
        "account": "Account",
        "qos": "QOS",
        "time_limit": "TimeLimit",
        "submitted": "SubmitTime",
    }
    found: dict[str, str | int] = {key: known[name] for key, name in names.items() if name in known}
    tres = known.get("AllocTRES") or known.get("TRES", "")  # the second before Slurm 23.02
    gpus = gpu_count(tres) or gpu_count(known.get("JOB_GRES", ""))
    found |= {"tres": tres} if tres else {}
    found |= {"gpus": gpus} if gpus else {}
    return {**found, "scheduler_state": state} if state else found


def cluster_name(config: str) -> str:
    """The cluster's name in the output of `scontrol show config`; empty when it does not tell."""
    for line in config.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "ClusterName":
            return "" if value.strip() in UNKNOWN else value.strip()
    return ""


@dataclass
class _Query:
    job: str
    program: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    deadline: float


class Scontrol:
    """Asks about one job at a time in the background; answers are kept until they are taken.

    `poll` must be called now and then; nothing here waits for the scheduler. `cluster` is its name once known.
    `sacct` is asked about jobs that `program` does not know; empty: nobody is.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        node_names: Sequence[str],
        program: str = "scontrol",
        timeout: float = 10.0,
        sacct: str = "",
    ) -> None:
        self._monotonic, self._program, self._timeout = monotonic, program, timeout
        self._sacct = sacct
        self._node_names = tuple(node_names)
        self._waiting: dict[str, None] = {_CONFIG: None}
        self._query: _Query | None = None
        self._answers: dict[str, Facts | None] = {}
        self.cluster = ""

    def ask(self, job: str) -> None:
        """Ask about a job (number or SLUID) soon; an answer not yet taken is forgotten."""
        self._answers.pop(job, None)
        self._waiting[job] = None

    def asking(self, job: str) -> bool:
        """Whether a question about the job is still open."""
        return job in self._waiting or (self._query is not None and self._query.job == job)

    def take(self, job: str) -> Facts | None:
        """The answer, once; None when there is none: not asked, not answered, or Slurm does not know the job."""
        return self._answers.pop(job, None)

    def poll(self) -> None:
        """Collect an answer that has come, and start the next question."""
        if self._query is not None:
            self._finish(self._query)
        if self._query is None and self._waiting:
            job = next(iter(self._waiting))
            del self._waiting[job]
            about_job = ["show", "job", "-d", job]
            self._start(job, self._program, about_job if job != _CONFIG else ["show", "config"])

    def close(self) -> None:
        """End a question that is under way."""
        if self._query is not None:
            self._query.process.kill()
            self._query.process.wait()
            self._query.output.close()
            self._query = None

    def _start(self, job: str, program: str, arguments: list[str]) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the answer is read
        try:
            process = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
            )
        except OSError as error:
            log.warning("cannot ask the scheduler: %s", error)
            output.close()
            self._answers[job] = None  # an answer all the same: nobody waits for it
            return
        self._query = _Query(job, program, process, output, self._monotonic() + self._timeout)

    def _finish(self, query: _Query) -> None:
        status = query.process.poll()
        if status is None:
            if self._monotonic() < query.deadline:
                return
            log.warning("the scheduler did not answer in %g s", self._timeout)
            query.process.kill()
            query.process.wait()
        query.output.seek(0)
        text = query.output.read().decode("utf-8", "replace")
        query.output.close()
        self._query = None
        if query.job == _CONFIG:
            self.cluster = cluster_name(text)
        elif query.program == self._sacct:
            self._answers[query.job] = accounted_facts(text, query.job) if status == 0 else None
        elif status and self._sacct and query.job.isdigit():
            self._start(query.job, self._sacct, question(query.job))
        else:
            self._answers[query.job] = self._choose(query.job, text) if status == 0 else None

    def _choose(self, job: str, text: str) -> Facts | None:
        """The record that was meant: asking for an array's first task lists the whole array."""
        records = parse_records(text)
        exact = [record for record in records if job in (record.get("JobId"), record.get("SLUID"))]
        chosen = exact or (records if len(records) == 1 else [])
        return job_facts(chosen[0], self._node_names) if chosen else None
