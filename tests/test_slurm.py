"""Slurm, really running, with the agent on the fake driver: batch, steps, arrays, requeue, two jobs on one node."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_process import AgentProcess
from fake_nvml.control import FakeNvml
from slurm import Slurm
from slurm_accounting import Accounting

from gpudiag.agent.attribution.facts import Facts
from gpudiag.agent.attribution.scontrol import Scontrol
from gpudiag.storage.job import Job
from gpudiag.storage.open import open_reader
from gpudiag.storage.store import JobFilter

pytestmark = pytest.mark.integration


@pytest.fixture
def site(
    slurm: Callable[[str, str], Slurm],
    start_agent: Callable[..., AgentProcess],
    fake_nvml: FakeNvml,
    tmp_path: Path,
) -> tuple[Slurm, AgentProcess]:
    """A node as a site sets it up: the agent, and `gpudiag job start|end` in Prolog and Epilog."""
    runtime = tmp_path / "agent" / "run"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    gpudiag = f"PYTHONPATH={path} {sys.executable} -m gpudiag job"
    cluster = slurm(
        f"{gpudiag} start --runtime-dir {runtime}",
        f"{gpudiag} end --runtime-dir {runtime}",
    )
    agent = start_agent(
        {**fake_nvml.environ, "SLURM_CONF": cluster.environ["SLURM_CONF"]}, agent__cluster="gpudiagtest"
    )
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    return cluster, agent


def jobs(agent: AgentProcess, job_id: str = "") -> list[Job]:
    reader = open_reader(agent.url)
    try:
        return reader.jobs(JobFilter(id=job_id))
    finally:
        reader.close()


def devices(agent: AgentProcess, job: Job) -> set[str]:
    reader = open_reader(agent.url)
    try:
        return {one.source.device for one in reader.allocations(job.key) if one.source.scope == "gpu"}
    finally:
        reader.close()


def until_over(agent: AgentProcess, job_id: str, runs: int = 1, seconds: float = 120) -> list[Job]:
    """The runs of a job once the agent has seen the end of each."""
    deadline = time.monotonic() + seconds
    while True:
        found = jobs(agent, job_id)
        if len(found) == runs and all(job.end_ms for job in found):
            return found
        assert time.monotonic() < deadline, f"{found}\n{agent.log.read_text()[-2000:]}"
        time.sleep(0.5)


def report(agent: AgentProcess, job_id: str, *more: str) -> dict[str, object]:
    done = agent.command("report", "--job", job_id, "--json", *more)
    assert done.returncode == 0, done.stderr
    content: dict[str, object] = json.loads(done.stdout)
    return content


def test_a_batch_job_its_gpus_name_user_and_report(site: tuple[Slurm, AgentProcess]) -> None:
    cluster, agent = site
    job = cluster.sbatch("srun sleep 12; exit 0", "--gres=gpu:1", "--job-name=train|one")
    [recorded] = until_over(agent, job)
    assert (recorded.name, recorded.user, recorded.state, recorded.exit_code) == (
        "train|one",
        "root",
        "completed",
        0,
    )
    assert recorded.cluster == "gpudiagtest"
    assert len(devices(agent, recorded)) == 1
    content = report(agent, job)
    assert content["job"]["id"] == job  # type: ignore[index]
    assert content["coverage"]["devices_allocated"] == 1  # type: ignore[index]
    assert content["coverage"]["ratio"] > 0.7  # type: ignore[index]


def test_two_jobs_share_the_node_with_one_gpu_each(site: tuple[Slurm, AgentProcess]) -> None:
    cluster, agent = site
    first = cluster.sbatch("sleep 10", "--gres=gpu:1", "-n1", "--mem=100")
    second = cluster.sbatch("sleep 10; exit 3", "--gres=gpu:1", "-n1", "--mem=100")
    agent.wait_for(lambda: len(agent.values("gpudiag_job_info")) == 2)
    [one], [other] = until_over(agent, first), until_over(agent, second)
    assert one.start_ms < (other.end_ms or 0)
    assert other.start_ms < (one.end_ms or 0)
    assert len(devices(agent, one)) == len(devices(agent, other)) == 1
    assert devices(agent, one) != devices(agent, other)
    assert (other.state, other.exit_code) == ("failed", 3)


def test_an_element_of_an_array_by_the_id_that_people_use(site: tuple[Slurm, AgentProcess]) -> None:
    cluster, agent = site
    array = cluster.sbatch("sleep 6", "--gres=gpu:1", "--array=3,7", "--mem=100")
    cluster.wait(array, "COMPLETED")
    for element in (f"{array}_3", f"{array}_7"):
        [job] = until_over(agent, element)
        assert job.id == element
        assert report(agent, element)["job"]["id"] == element  # type: ignore[index]


def test_a_requeued_job_has_two_runs(site: tuple[Slurm, AgentProcess]) -> None:
    cluster, agent = site
    job = cluster.sbatch("sleep 8", "--gres=gpu:1", "--requeue", "--mem=100")
    cluster.wait(job, "RUNNING")
    agent.wait_for(lambda: bool(agent.values("gpudiag_job_info")))
    cluster("scontrol", "requeue", job)
    cluster.wait(job, "PENDING")
    later, earlier = until_over(agent, job, runs=2, seconds=120)
    assert earlier.start_ms < (earlier.end_ms or 0) <= later.start_ms
    assert earlier.key != later.key
    assert (earlier.state, later.state, later.exit_code) == ("cancelled", "completed", 0)
    assert report(agent, job)["job"]["key"] == later.key  # type: ignore[index]
    assert report(agent, job, "--run", "1")["job"]["key"] in {earlier.key, later.key}  # type: ignore[index]


def test_without_scontrol_a_requeued_run_is_still_not_called_completed(
    slurm: Callable[..., Slurm], start_agent: Callable[..., AgentProcess], fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    hook = (
        f"PYTHONPATH={os.pathsep.join(entry for entry in sys.path if entry)} {sys.executable} -m gpudiag job"
    )
    runtime = f"--runtime-dir {tmp_path / 'agent' / 'run'}"
    cluster = slurm(f"{hook} start {runtime}", f"{hook} end {runtime}")
    agent = start_agent(
        {**fake_nvml.environ, "SLURM_CONF": cluster.environ["SLURM_CONF"]}, sources__scontrol=""
    )
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    job = cluster.sbatch("sleep 30", "--gres=gpu:1", "--requeue", "--mem=100")
    cluster.wait(job, "RUNNING")
    agent.wait_for(lambda: bool(agent.values("gpudiag_job_info")))
    cluster("scontrol", "requeue", job)
    [taken_off] = until_over(agent, job)
    assert (taken_off.state, taken_off.exit_code, taken_off.restart) == ("cancelled", None, 0)
    assert taken_off.meta["scheduler_state"] == "REQUEUED"


def asked(cluster: Slurm, job: str, monkeypatch: pytest.MonkeyPatch) -> Facts | None:
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    scheduler = Scontrol(time.monotonic, [cluster.host], sacct="sacct")
    scheduler.ask(job)
    while scheduler.asking(job):
        scheduler.poll()
        time.sleep(0.05)
    return scheduler.take(job)


def test_accounting_knows_what_the_controller_has_forgotten(
    accounting: Accounting, slurm: Callable[..., Slurm], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = slurm("true", "true", accounting)
    failed = cluster.sbatch("sleep 1; exit 3", "--gres=gpu:1", "--mem=100", "--job-name=train|one")
    array = cluster.sbatch("sleep 1", "--array=7", "--mem=100")
    requeued = cluster.sbatch("sleep 4", "--requeue", "--mem=100")
    cluster.wait(requeued, "RUNNING")
    cluster("scontrol", "requeue", requeued)
    cluster.wait(failed, "FAILED")
    before = asked(cluster, failed, monkeypatch)
    cluster("scontrol", "update", f"jobid={requeued}", "StartTime=now")
    for job in (array, requeued):
        cluster.wait(job, "COMPLETED", seconds=150)
    cluster.forget_jobs()
    with pytest.raises(AssertionError, match="Invalid job id"):
        cluster("scontrol", "show", "job", failed)

    after = asked(cluster, failed, monkeypatch)
    assert before is not None
    assert after is not None
    known = ("raw_id", "id", "name", "user", "start_ms", "end_ms", "state", "exit_code", "restart")
    assert {name: getattr(after, name) for name in known} == {name: getattr(before, name) for name in known}
    assert (after.state, after.exit_code, after.name, after.cluster) == (
        "failed",
        3,
        "train|one",
        "gpudiagtest",
    )
    task = asked(cluster, array, monkeypatch)
    assert task is not None
    assert (task.id, task.state) == (f"{array}_7", "completed")
    again = asked(cluster, requeued, monkeypatch)
    assert again is not None
    assert (again.restart, again.state) == (1, "completed")
    assert asked(cluster, "99999", monkeypatch) is None
