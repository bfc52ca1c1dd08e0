"""One reading of the OOM killer's lines for the kernel log and for a job's own output."""

from __future__ import annotations

import pytest

from gpudiag.agent.kernel_lines import KernelLines
from gpudiag.rules.kernel_kill import KernelKill, read_kill
from gpudiag.rules.oom import read

WHY = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/slurm/job_42,"
    "task_memcg=/slurm/job_42/step_0,task=python3,pid=77,uid=1000"
)
DONE = "Memory cgroup out of memory: Killed process 77 (python3) total-vm:9kB, anon-rss:4kB, file-rss:2kB, shmem-rss:1kB"


def test_a_kill_is_told_by_two_lines() -> None:
    assert read_kill(WHY) == KernelKill(
        "why", "cgroup", 77, "python3",
        {"constraint": "CONSTRAINT_MEMCG", "oom_cgroup": "/slurm/job_42", "cgroup": "/slurm/job_42/step_0"},
    )  # fmt: skip
    done = read_kill(DONE)
    assert done is not None
    assert (done.phase, done.scope, done.pid, done.process) == ("done", "cgroup", 77, "python3")
    assert done.resident_bytes == 7 * 1024


@pytest.mark.parametrize(
    ("line", "phase", "scope"),
    [
        ("Out of memory: Kill process 5 (a (b)) score 900 or sacrifice child", "announced", "host"),
        ("Out of memory (oom_kill_allocating_task): Killed process 5 (a) total-vm:1kB", "done", "host"),
        ("Killed process 5, UID 1000, (a) total-vm:1kB", "done", ""),
        ("oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,task=a,pid=5,uid=0", "why", ""),
    ],
)
def test_wordings_of_kernels(line: str, phase: str, scope: str) -> None:
    kill = read_kill(line)
    assert kill is not None
    assert (kill.phase, kill.scope, kill.pid) == (phase, scope, 5)


@pytest.mark.parametrize("line", ["python3 invoked oom-killer: gfp_mask=0x0", "process 5 was killed", ""])
def test_other_lines_are_none(line: str) -> None:
    assert read_kill(line) is None


def test_the_kernel_log_and_a_jobs_output_agree() -> None:
    [fact] = KernelLines().feed(f"{WHY}\n{DONE}", 1000)
    assert (fact.detail["pid"], fact.detail["constraint"]) == (77, "cgroup")
    for message in read([f"[ 12.5] {WHY}", f"[ 12.5] {DONE}"]):
        assert (message.kind, message.victim_pid, message.victim) == ("cgroup_oom", 77, "python3")
