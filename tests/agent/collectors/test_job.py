"""Job metrics from cgroups of both versions and from process trees, on files written here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from fake_host import FakeHost

from gpudiag.agent.attribution.cgroup_tree import CgroupTree
from gpudiag.agent.attribution.identity import CgroupIdentity, identify
from gpudiag.agent.attribution.run import RunningJob
from gpudiag.agent.collectors import NothingToCollect
from gpudiag.agent.collectors.job import JobCollector
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.job import Event, Job
from gpudiag.storage.sample import Frame, Source

JOB = Job("c1/42/1767225600", "42", 1_767_225_600_000)
MIB = 1 << 20
FOLDER = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_42"
V2 = "0::/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0\n"


@dataclass
class Jobs:
    cgroups: CgroupTree
    running: tuple[RunningJob, ...] = field(default=())


def watch(
    host: FakeHost, *pids: int, identity: CgroupIdentity | None = None, root_pid: int | None = None
) -> JobCollector:
    path = identity.path if identity else ""
    running = RunningJob(JOB, (), tuple(pids), path, identity, root_pid)
    jobs = Jobs(CgroupTree(host.root), (running,))
    return JobCollector(host.root, "n1", host.clock, jobs, stopwatch=lambda: 0.0)


def stat(**numbers: int) -> str:
    return "".join(f"{name} {number}\n" for name, number in numbers.items())


def cgroup_v2(host: FakeHost, cpu_seconds: float = 0.0, **changes: str) -> None:
    files: Mapping[str, str] = {
        "cpu.stat": stat(usage_usec=round(cpu_seconds * 1e6), nr_periods=0, nr_throttled=0),
        "cpu.max": "max 100000\n",
        "cpuset.cpus.effective": "0-3,8-11\n",
        "memory.current": f"{100 * MIB}\n",
        "memory.stat": stat(
            anon=40 * MIB, file=50 * MIB, shmem=10 * MIB, inactive_file=30 * MIB, slab_reclaimable=5 * MIB
        ),
        "memory.max": "max\n",
        "memory.events": stat(low=0, oom=0, oom_kill=0),
        "io.stat": "259:0 rbytes=1000 wbytes=10 rios=1\n253:0 rbytes=1000 wbytes=10 rios=1\n",
        "cpu.pressure": "some avg10=0 total=0\n",
        "io.pressure": "some avg10=0 total=0\nfull avg10=0 total=0\n",
        **{name.replace("_", ".", 1): text for name, text in changes.items()},
    }
    host.write_all(FOLDER, files)


def slurm_v2(host: FakeHost, *pids: int) -> CgroupIdentity:
    host.unified()
    host.job_cgroup_v2("job_42", pids)
    identity = identify(V2)
    assert identity is not None
    return identity


def test_no_job_means_nothing_to_collect(host: FakeHost) -> None:
    collector = JobCollector(host.root, "n1", host.clock, Jobs(CgroupTree(host.root)))
    with pytest.raises(NothingToCollect):
        list(collector.collect(0))


def test_memory_that_cannot_be_reclaimed_includes_shared_memory(host: FakeHost) -> None:
    collector = watch(host, identity=slurm_v2(host, 10))
    cgroup_v2(host)
    values = host.values(collector)
    assert values["job_memory_working_set_bytes"] == 65 * MIB
    assert values["job_memory_anon_bytes"] == 40 * MIB
    assert values["job_memory_file_bytes"] == 50 * MIB
    assert values["job_memory_shmem_bytes"] == 10 * MIB
    assert values["job_oom_kills_total"] == 0
    assert "job_memory_limit_bytes" not in values


def test_the_tightest_limit_may_be_an_ancestors(host: FakeHost) -> None:
    collector = watch(host, identity=slurm_v2(host, 10))
    cgroup_v2(host, memory_max=f"{300 * MIB}\n")
    host.write("sys/fs/cgroup/system.slice/memory.max", f"{200 * MIB}\n")
    assert host.values(collector)["job_memory_limit_bytes"] == 200 * MIB


def test_cpu_is_relative_to_the_cpus_of_the_set(host: FakeHost) -> None:
    collector = watch(host, identity=slurm_v2(host, 10))
    cgroup_v2(host, cpu_seconds=10.0)
    assert host.values(collector)["job_cpus_allowed"] == 8
    host.clock.sleep(2)
    cgroup_v2(host, cpu_seconds=18.0)
    assert host.values(collector)["job_cpu_busy_ratio"] == 0.5


def test_a_quota_bounds_the_cpus_and_shows_throttling(host: FakeHost) -> None:
    collector = watch(host, identity=slurm_v2(host, 10))
    throttled = stat(usage_usec=0, nr_periods=100, nr_throttled=5)
    cgroup_v2(host, cpu_max="250000 100000\n", cpu_stat=throttled)
    assert host.values(collector)["job_cpus_allowed"] == 2.5
    host.clock.sleep(1)
    throttled = stat(usage_usec=2_500_000, nr_periods=110, nr_throttled=9)
    cgroup_v2(host, cpu_max="250000 100000\n", cpu_stat=throttled)
    values = host.values(collector)
    assert values["job_cpu_throttled_ratio"] == 0.4
    assert values["job_cpu_busy_ratio"] == 1.0


def test_without_a_quota_there_is_no_throttling_to_report(host: FakeHost) -> None:
    collector = watch(host, identity=slurm_v2(host, 10))
    cgroup_v2(host)
    host.values(collector)
    host.clock.sleep(1)
    assert "job_cpu_throttled_ratio" not in host.values(collector)


def test_pressure_of_the_job_is_its_own(host: FakeHost) -> None:
    collector = watch(host, identity=slurm_v2(host, 10))
    cgroup_v2(host)
    host.values(collector)
    host.clock.sleep(2)
    cgroup_v2(host, io_pressure="some avg10=0 total=500000\nfull avg10=0 total=1\n")
    values = host.values(collector)
    assert values["job_pressure_io_some_ratio"] == 0.25
    assert values["job_pressure_cpu_some_ratio"] == 0.0
    assert "job_pressure_memory_full_ratio" not in values


def test_what_goes_through_a_mapped_device_is_counted_once(host: FakeHost) -> None:
    host.folder("sys/dev/block/259:0/device")
    host.folder("sys/dev/block/253:0/dm")
    collector = watch(host, identity=slurm_v2(host, 10))
    cgroup_v2(host)
    host.values(collector)
    host.clock.sleep(1)
    cgroup_v2(host, io_stat="259:0 rbytes=5000 wbytes=30\n253:0 rbytes=5000 wbytes=30\n")
    values = host.values(collector)
    assert values["job_read_bytes_per_second"] == 4000
    assert values["job_write_bytes_per_second"] == 20


def test_an_oom_kill_in_the_cgroup_is_an_event_once(host: FakeHost) -> None:
    collector = watch(host, identity=slurm_v2(host, 10))
    cgroup_v2(host, memory_events=stat(oom_kill=3))
    assert not events(collector, host)
    cgroup_v2(host, memory_events=stat(oom_kill=5))
    host.clock.sleep(1)
    [event] = events(collector, host)
    assert (event.kind, event.detail["killed"]) == ("cgroup_oom_kill", 2)
    assert event.source == Source("n1", "job:c1/42/1767225600")
    assert not events(collector, host)


def events(collector: JobCollector, host: FakeHost) -> list[Event]:
    return [item for item in collector.collect(host.clock.now_ms()) if isinstance(item, Event)]


def test_cgroup_version_one_answers_in_the_same_terms(host: FakeHost) -> None:
    path = host.job_cgroup_v1(42, pids=[10])
    identity = CgroupIdentity(
        "slurm", "42", controllers=dict.fromkeys(("freezer", "memory", "cpuset", "cpu", "cpuacct"), path)
    )
    cpu, memory = f"sys/fs/cgroup/cpu,cpuacct{path}", f"sys/fs/cgroup/memory{path}"
    host.write(f"sys/fs/cgroup/cpuset{path}/cpuset.cpus", "0-1\n")
    host.write_all(cpu, {"cpuacct.usage": "0\n", "cpu.stat": stat(nr_periods=0, nr_throttled=0)})
    host.write_all(cpu, {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"})
    host.write_all(
        memory,
        {
            "memory.usage_in_bytes": f"{100 * MIB}\n",
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.stat": stat(
                total_rss=60 * MIB, total_cache=40 * MIB, total_shmem=8 * MIB, total_inactive_file=20 * MIB
            ),
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            "step_0/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        },
    )
    host.write(f"sys/fs/cgroup/memory{path.rpartition('/')[0]}/memory.limit_in_bytes", f"{500 * MIB}\n")
    collector = watch(host, identity=identity)
    values = host.values(collector)
    assert values["job_memory_working_set_bytes"] == 80 * MIB
    assert values["job_memory_limit_bytes"] == 500 * MIB
    assert values["job_oom_kills_total"] == 2
    assert values["job_cpus_allowed"] == 2
    host.clock.sleep(1)
    host.write(f"{cpu}/cpuacct.usage", "1500000000\n")
    assert host.values(collector)["job_cpu_busy_ratio"] == 0.75


def training(host: FakeHost, busy: float = 0.0, loading: float = 0.0, states: str = "SSSS") -> None:
    """A GPU process 100 with four forked workers, a tracker and a tool."""
    host.process(100, cpu_seconds=busy, io=(0, 0))
    for offset, state in enumerate(states):
        host.process(101 + offset, 100, name="pt_data_worker", state=state, cpu_seconds=loading)
    host.process(110, 100, command="python -c from multiprocessing.resource_tracker import main;main(5)")
    host.process(111, 100, name="nvidia-smi", command="nvidia-smi dmon")


def test_workers_are_told_from_other_children(host: FakeHost) -> None:
    training(host)
    values = host.values(watch(host, 100))
    assert values["loader_workers"] == 4
    assert values["job_processes"] == 7


def test_the_cpu_of_the_main_process_and_of_a_worker(host: FakeHost) -> None:
    training(host)
    collector = watch(host, 100)
    host.values(collector)
    host.clock.sleep(2)
    training(host, busy=1.9, loading=1.0)
    values = host.values(collector)
    assert values["main_cpu_ratio"] == pytest.approx(0.95)
    assert values["loader_cpu_ratio"] == 0.5
    assert values["loader_dstate_ratio"] == 0.0


def test_workers_that_wait_for_storage_show_as_a_share(host: FakeHost) -> None:
    training(host, states="DDSD")
    collector = watch(host, 100)
    host.values(collector)
    host.clock.sleep(1)
    assert host.values(collector)["loader_dstate_ratio"] == 0.75


def test_a_loader_without_workers_says_zero_workers_and_no_cpu_of_theirs(host: FakeHost) -> None:
    host.process(100)
    collector = watch(host, 100)
    host.values(collector)
    host.clock.sleep(1)
    values = host.values(collector)
    assert values["loader_workers"] == 0
    assert "loader_cpu_ratio" not in values
    assert "loader_dstate_ratio" not in values


def test_spawned_and_forkserver_workers_count(host: FakeHost) -> None:
    host.process(100)
    spawn = "python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork"
    host.process(101, 100, command=spawn)
    server = "python -c from multiprocessing.forkserver import main; main(7)"
    host.process(102, 100, command=server)
    host.process(103, 102, command=server)
    host.process(104, 102, command=server)
    assert host.values(watch(host, 100))["loader_workers"] == 3


def test_compiler_workers_and_subshells_are_no_loaders(host: FakeHost) -> None:
    host.process(100)
    pool = "python torch/_inductor/compile_worker/__main__.py --workers=32"
    host.process(101, 100, command=pool)
    host.process(102, 101, command=pool)
    host.process(103, 100, name="bash", command="python train.py")
    assert host.values(watch(host, 100))["loader_workers"] == 0


def test_other_ranks_are_no_workers_of_the_first(host: FakeHost) -> None:
    host.process(100)
    host.process(101, 100)
    host.process(102, 101)
    assert host.values(watch(host, 100, 101))["loader_workers"] == 1


def test_new_workers_of_the_next_epoch_are_found(host: FakeHost) -> None:
    training(host)
    collector = watch(host, 100)
    assert host.values(collector)["loader_workers"] == 4
    host.clock.sleep(1)
    host.end(101, 102, 103, 104)
    host.process(120, 100, name="pt_data_worker")
    assert host.values(collector)["loader_workers"] == 1


def test_a_process_that_reuses_a_pid_is_another_one(host: FakeHost) -> None:
    training(host, busy=500.0)
    collector = watch(host, 100)
    host.values(collector)
    host.clock.sleep(1)
    host.process(100, cpu_seconds=900.0, start=host.clock.boottime())
    assert "main_cpu_ratio" not in host.values(collector)


def test_bytes_of_processes_come_before_those_of_the_cgroup(host: FakeHost) -> None:
    identity = slurm_v2(host, 100)
    cgroup_v2(host)
    host.process(100, io=(0, 0))
    collector = watch(host, 100, identity=identity)
    host.values(collector)
    host.clock.sleep(5)
    host.process(100, io=(10_000, 500))
    [frame] = [one for one in collector.collect(0) if isinstance(one, Frame)]
    assert frame.values["job_read_bytes_per_second"] == 2000
    assert frame.values["job_write_bytes_per_second"] == 100
    assert frame.origins["job_read_bytes_per_second"] == "processes"


def test_without_permission_the_cgroup_tells_the_bytes(host: FakeHost) -> None:
    identity = slurm_v2(host, 100)
    cgroup_v2(host)
    host.process(100)
    collector = watch(host, 100, identity=identity)
    host.values(collector)
    host.clock.sleep(5)
    [frame] = [one for one in collector.collect(0) if isinstance(one, Frame)]
    assert frame.values["job_read_bytes_per_second"] == 0
    assert frame.origins["job_read_bytes_per_second"] == "cgroup"


def test_a_job_without_a_cgroup_of_its_own_is_its_process_tree(host: FakeHost) -> None:
    host.unified()
    host.write("sys/fs/cgroup/user.slice/memory.max", f"{64 * MIB}\n")
    host.write("sys/devices/system/cpu/online", "0-15\n")
    host.process(200, cgroup="0::/user.slice/session-1.scope\n", pss=8 * MIB)
    host.write("proc/200/status", "Name: python\nCpus_allowed_list:\t0-3\n")
    host.process(201, 200, name="pt_data_worker", pss=2 * MIB)
    collector = watch(host, root_pid=200)
    first = host.values(collector)
    assert first["job_cpus_allowed"] == 4
    assert first["job_memory_limit_bytes"] == 64 * MIB
    host.clock.sleep(1)
    host.process(200, cpu_seconds=0.8)
    host.process(201, 200, name="pt_data_worker", cpu_seconds=0.4)
    second = host.values(collector)
    assert second["job_cpu_busy_ratio"] == pytest.approx(0.3)
    assert second["process_pss_bytes"] == 10 * MIB
    assert second["job_memory_working_set_bytes"] == 10 * MIB


def test_a_shell_that_started_the_training_is_not_taken_for_it(host: FakeHost) -> None:
    host.process(200, name="bash", command="bash train.sh")
    host.process(201, 200)
    collector = watch(host, root_pid=200)
    host.values(collector)
    host.clock.sleep(1)
    host.process(201, 200, cpu_seconds=0.9)
    assert host.values(collector)["main_cpu_ratio"] == 0.9


def test_memory_maps_are_read_for_at_most_a_thousandth_of_the_time(host: FakeHost) -> None:
    host.process(100, pss=MIB)
    host.process(101, 100, pss=MIB)
    running = RunningJob(JOB, (), (100,), "")
    ticking = iter(range(1000))
    collector = JobCollector(
        host.root, "n1", host.clock, Jobs(CgroupTree(host.root), (running,)), lambda: next(ticking) * 0.5
    )
    host.values(collector)
    for _ in range(499):
        host.clock.sleep(1)
        assert "process_pss_bytes" not in host.values(collector)
    host.clock.sleep(1)
    assert host.values(collector)["process_pss_bytes"] == 2 * MIB


def test_unreadable_memory_maps_are_missing_not_zero(host: FakeHost) -> None:
    host.process(100, pss=MIB)
    host.process(101, 100)
    collector = watch(host, 100)
    for _ in range(5):
        assert "process_pss_bytes" not in host.values(collector)
        host.clock.sleep(1)


def test_every_value_is_in_the_catalog(host: FakeHost) -> None:
    identity = slurm_v2(host, 100)
    cgroup_v2(host)
    training(host)
    collector = watch(host, 100, identity=identity)
    names = set(host.values(collector))
    host.clock.sleep(5)
    names |= set(host.values(collector))
    assert names <= {name for scope, name in METRICS if scope == "job"}


def test_only_the_jobs_own_processes_are_read(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    training(host)
    for pid in range(5000, 5050):
        host.process(pid)
    collector = watch(host, 100)
    read: set[str] = set()
    original, original_record = type(host.root).read, type(host.root).read_record

    def recording(self: object, relative: str) -> str:
        read.add(relative)
        return original(self, relative)  # type: ignore[arg-type]

    def recording_record(self: object, relative: str) -> str:
        read.add(relative)
        return original_record(self, relative)  # type: ignore[arg-type]

    monkeypatch.setattr(type(host.root), "read", recording)
    monkeypatch.setattr(type(host.root), "read_record", recording_record)
    host.values(collector)
    host.clock.sleep(6)
    host.values(collector)
    assert read
    assert not [relative for relative in read if relative.startswith("proc/50")]
