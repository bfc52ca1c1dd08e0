"""What Slurm says about a job, in the forms of several versions, and asking without waiting."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.attribution.facts import Facts
from gpudiag.agent.attribution.hostlist import expand_hostlist
from gpudiag.agent.attribution.scontrol import (
    Scontrol,
    cluster_name,
    job_facts,
    node_devices,
    parse_records,
    time_ms,
)
from gpudiag.agent.attribution.slurm_words import gpu_count

RECORD = """JobId=3 ArrayJobId=2 ArrayTaskId=7 JobName=train | step=1
   UserId=ada(1001) GroupId=users(100) MCS_label=N/A
   Priority=4294901757 Nice=0 Account=(null) QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=2-01:00:05 TimeLimit=UNLIMITED TimeMin=N/A
   SubmitTime=1767225590 EligibleTime=1767225590
   StartTime=1767225600 EndTime=Unknown Deadline=N/A
   Partition=gpu AllocNode:Sid=login:991
   NodeList=n[01-02]
   NumNodes=2 NumCPUs=16 NumTasks=2 CPUs/Task=8 ReqB:S:C:T=0:0:*:*
   TRES=cpu=16,mem=200G,node=2,billing=16,gres/gpu:a100=6
   JOB_GRES=gpu:a100:6
     Nodes=n01 CPU_IDs=0-7 Mem=102400 GRES=gpu:a100:4(IDX:0-3)
     Nodes=n02 CPU_IDs=0-7 Mem=102400 GRES=gpu:a100:2(IDX:1,3)
   Command=/home/ada/run.sh --gres=gpu:1 JobState=FAILED
   WorkDir=/home/ada/a dir
   TresPerNode=gres:gpu:a100:4
"""


def facts(text: str, *names: str) -> Facts:
    [record] = parse_records(text)
    return job_facts(record, names)


def test_a_running_array_task_on_this_node() -> None:
    known = facts(RECORD, "n02")
    assert (known.raw_id, known.id, known.name, known.user) == ("3", "2_7", "train | step=1", "ada")
    assert (known.start_ms, known.end_ms, known.state) == (1_767_225_600_000, None, "running")
    assert (known.restart, known.exit_code) == (2, None)
    assert known.devices == ("minor:1", "minor:3")
    assert known.meta["time_limit"] == "UNLIMITED"
    assert "account" not in known.meta


def test_each_node_has_its_own_devices() -> None:
    assert facts(RECORD, "n01").devices == ("minor:0", "minor:1", "minor:2", "minor:3")
    assert facts(RECORD, "elsewhere").devices == ()


@pytest.mark.parametrize("name", ["pod-7f6c", "host.example.org"])
def test_a_node_whose_name_slurm_does_not_know_has_the_only_line(name: str) -> None:
    assert node_devices("Nodes=n01 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", [name]) == (0, 1)


@pytest.mark.parametrize(
    ("gres", "numbers"),
    [
        ("GRES=gpu:4(IDX:0-3)", (0, 1, 2, 3)),
        ("GRES=gpu:a100:2(IDX:0,7)", (0, 7)),
        ("GRES=gpu:a100:1(IDX:2),gpu:h100:2(IDX:5-6)", (2, 5, 6)),
        ("GRES=gpu:1g.10gb:1(IDX:3)", (3,)),
        ("GRES=mps:50(IDX:1)", (1,)),
        ("GRES=gpu:0(IDX:N/A)", ()),
        ("GRES=nic:1(IDX:0)", ()),
        ("GRES=(null)", ()),
        ("GRES=", ()),
    ],
)
def test_forms_of_gres(gres: str, numbers: tuple[int, ...]) -> None:
    assert node_devices(f"Nodes=n1 CPU_IDs=0-7 Mem=0 {gres}", ["n1"]) == numbers


def ended(state: str, code: str) -> Facts:
    return facts(
        f"JobId=42 JobName=x\n   JobState={state} ExitCode={code}\n   StartTime=100 EndTime=160\n", "n1"
    )


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("COMPLETED", "0:0", ("completed", 0)),
        ("FAILED", "3:0", ("failed", 3)),
        ("FAILED", "0:9", ("failed", 137)),
        ("CANCELLED", "0:15", ("cancelled", 143)),
        ("TIMEOUT", "0:0", ("timeout", 0)),
        ("OUT_OF_MEMORY", "0:125", ("oom", None)),
        ("NODE_FAIL", "1:0", ("failed", 1)),
        ("PREEMPTED", "0:0", ("cancelled", 0)),
        ("SOMETHING_NEW", "0:0", ("", 0)),
    ],
)
def test_final_states(state: str, code: str, expected: tuple[str, int | None]) -> None:
    known = ended(state, code)
    assert (known.state, known.exit_code, known.end_ms) == (*expected, 160_000)


def test_a_part_of_a_heterogeneous_job() -> None:
    known = facts("JobId=43 HetJobId=42 HetJobOffset=1 JobName=x\n   JobState=RUNNING\n", "n1")
    assert known.id == "42+1"


def test_a_name_with_a_line_feed_does_not_hide_the_rest() -> None:
    known = facts("JobId=42 JobName=two\nlines\n   JobState=RUNNING StartTime=100\n", "n1")
    assert (known.start_ms, known.state) == (100_000, "running")


def test_local_times_without_offset_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        summer, winter = time_ms("2026-07-01T12:00:00"), time_ms("2026-01-01T12:00:00")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert summer == 1_782_900_000_000
    assert winter == 1_767_265_200_000


@pytest.mark.parametrize("text", ["Unknown", "", "N/A", "yesterday"])
def test_times_that_are_none(text: str) -> None:
    assert time_ms(text) is None


def test_the_name_of_the_cluster() -> None:
    assert cluster_name("AccountingStorageType   = x\nClusterName             = c1\n") == "c1"
    assert cluster_name("ClusterName = (null)\n") == ""
    assert cluster_name("") == ""


@given(st.text(max_size=300))
def test_any_text_is_records_or_none(text: str) -> None:
    for record in parse_records(text + "\nJobId=1 " + text):
        job_facts(record, ["n1"])


# -- lists of hosts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a,b[1-2]-gpu,c", ["a", "b1-gpu", "b2-gpu", "c"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n]", "n[a]", "n[0-999999999]", "n[1-2"])
def test_bad_lists_of_hosts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text differs
        expand_hostlist(text)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20))
def test_every_list_of_numbers_is_read_back(numbers: list[int]) -> None:
    text = "n[" + ",".join(map(str, numbers)) + "]"
    assert expand_hostlist(text) == [f"n{number}" for number in numbers]


# -- asking ----------------------------------------------------------------------------------------------------------


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "scontrol"
    path.write_text(f"#!/bin/sh\nif [ \"$2\" = config ]; then echo 'ClusterName = c1'; exit; fi\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def settle(scontrol: Scontrol, job: str) -> Facts | None:
    """Poll as an agent does until nothing is asked any more."""
    for _ in range(400):
        scontrol.poll()
        if not scontrol.asking(job):
            return scontrol.take(job)
        time.sleep(0.02)
    raise AssertionError("still asking")


def test_an_answer_comes_without_waiting_and_is_given_once(tmp_path: Path) -> None:
    answer = "echo 'JobId=42 JobName=x'; echo '   JobState=RUNNING StartTime='$(date +%s -d @100)"
    scontrol = Scontrol(Time(), ["n1"], program(tmp_path, f'[ "$SLURM_TIME_FORMAT" = %s ] && {answer}'))
    scontrol.ask("42")
    started = time.monotonic()
    scontrol.poll()
    assert time.monotonic() - started < 0.5
    found = settle(scontrol, "42")
    assert found is not None
    assert found.start_ms == 100_000
    assert scontrol.cluster == "c1"
    assert scontrol.take("42") is None


def test_asking_for_an_array_takes_the_task_that_was_meant(tmp_path: Path) -> None:
    records = "printf 'JobId=43 ArrayJobId=42 ArrayTaskId=1 JobName=x\\n\\nJobId=42 ArrayJobId=42 ArrayTaskId=9 JobName=x\\n'"
    scontrol = Scontrol(Time(), ["n1"], program(tmp_path, records))
    scontrol.ask("42")
    found = settle(scontrol, "42")
    assert found is not None
    assert found.id == "42_9"


def test_a_job_that_slurm_has_forgotten_has_no_answer(tmp_path: Path) -> None:
    failing = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    scontrol = Scontrol(Time(), ["n1"], program(tmp_path, failing))
    scontrol.ask("42")
    assert settle(scontrol, "42") is None


def accounting(tmp_path: Path, *lines: str) -> str:
    text = "".join(line.replace("|", "\x1f") + "\n" for line in lines)
    (tmp_path / "answer").write_text(text)
    path = tmp_path / "sacct"
    path.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


FIRST = "43|42_1|a name|ada|c1|100|160|REQUEUED|0:0|gpu|n1|lab|normal|01:00:00|gres/gpu=2|90"
SECOND = "43|42_1|a name|ada|c1|200|260|CANCELLED by 1000|0:15|gpu|n1|lab|normal|01:00:00|gres/gpu=2|90"
OTHER = "42|42_9|a name|ada|c1|100|160|COMPLETED|0:0|gpu|n1|lab|normal|01:00:00|gres/gpu=2|90"


def test_accounting_is_asked_when_the_controller_has_forgotten(tmp_path: Path) -> None:
    scontrol = Scontrol(
        Time(), ["n1"], program(tmp_path, "exit 1"), sacct=accounting(tmp_path, FIRST, SECOND, OTHER)
    )
    scontrol.ask("43")
    found = settle(scontrol, "43")
    assert found is not None
    assert (found.id, found.name, found.user, found.cluster) == ("42_1", "a name", "ada", "c1")
    assert (found.start_ms, found.end_ms, found.state, found.exit_code) == (
        200_000,
        260_000,
        "cancelled",
        143,
    )
    assert found.restart == 1
    assert found.meta["tres"] == "gres/gpu=2"


@pytest.mark.parametrize("lines", [(), (OTHER,), ("43|42_1|a name",), ("no such job",)])
def test_accounting_that_does_not_know_the_job_is_no_answer(tmp_path: Path, lines: tuple[str, ...]) -> None:
    scontrol = Scontrol(Time(), ["n1"], program(tmp_path, "exit 1"), sacct=accounting(tmp_path, *lines))
    scontrol.ask("43")
    assert settle(scontrol, "43") is None


def test_accounting_is_not_asked_while_the_controller_knows(tmp_path: Path) -> None:
    answer = "printf 'JobId=43 JobName=x\\n JobState=RUNNING\\n'"
    scontrol = Scontrol(Time(), ["n1"], program(tmp_path, answer), sacct=accounting(tmp_path, SECOND))
    scontrol.ask("43")
    found = settle(scontrol, "43")
    assert found is not None
    assert (found.name, found.state) == ("x", "running")


def test_a_scheduler_that_hangs_is_given_up(tmp_path: Path) -> None:
    clock = Time()
    scontrol = Scontrol(clock, ["n1"], program(tmp_path, "exec sleep 300"), timeout=10)
    scontrol.ask("42")
    while scontrol.cluster == "":
        scontrol.poll()
        time.sleep(0.02)
    scontrol.poll()
    assert scontrol.asking("42")
    clock.now = 11.0
    scontrol.poll()
    assert not scontrol.asking("42")
    assert scontrol.take("42") is None


def test_a_missing_program_is_no_answer(tmp_path: Path) -> None:
    scontrol = Scontrol(Time(), ["n1"], str(tmp_path / "none"))
    scontrol.ask("42")
    assert settle(scontrol, "42") is None
    scontrol.close()


@pytest.mark.parametrize(
    ("tres", "count"),
    [
        ("cpu=16,mem=200G,node=2,billing=16,gres/gpu=8", 8),
        ("cpu=16,gres/gpu:a100=4", 4),
        ("gres/gpu:a100=4,gres/gpu:h100=2", 6),
        ("cpu=4,gres/gpu=6,gres/gpu:a100=4,gres/gpu:h100=2", 6),
        ("gpu:h100:8", 8),
        ("gpu:8", 8),
        ("gpu:a100:4(IDX:0,1,6-7),gpu:h100:2(S:0-1)", 6),
        ("gres:gpu:a100:4", 4),
        ("gres/gpu:1g.18gb=7", 7),
        ("gpu", 1),
        ("gres/gpumem=80G,gres/gpuutil=0,gres/shard=4,gres/mps=50", None),
        ("cpu=16,mem=200G", None),
        ("", None),
    ],
)
def test_gpus_of_a_list_of_resources_are_counted_once(tres: str, count: int | None) -> None:
    assert gpu_count(tres) == count


@pytest.mark.parametrize(
    "line",
    [
        "TRES=cpu=16,node=2,gres/gpu:a100=6",
        "ReqTRES=cpu=8,gres/gpu=4 AllocTRES=cpu=16,node=2,gres/gpu:a100=6",
        "JOB_GRES=gpu:a100:6",
    ],
)
def test_a_job_knows_how_many_gpus_it_has_on_all_nodes(line: str) -> None:
    [record] = parse_records(f"JobId=42 JobName=train\n   JobState=RUNNING\n   {line}\n")
    assert job_facts(record, ["n1"]).meta["gpus"] == 6
