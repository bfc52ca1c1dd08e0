"""Which GPUs a job has: given, used, shared, sliced, counted in another way."""

from __future__ import annotations

from attributed_node import DEVICES, Node, cgroup_line, device, make_node, slurm_process
from fake_host import FakeHost

from gpudiag.storage.job import Device
from gpudiag.storage.sample import NODE, Source


def test_a_process_in_a_slurm_cgroup_gives_its_gpu_to_the_job(node: Node) -> None:
    slurm_process(node, 42, 900)
    started_ms = node.now_ms
    node.tick((1, 900))
    job = node.job("42")
    assert job.key == f"c1/42/{started_ms // 1000}"
    assert (job.state, job.end_ms) == ("running", None)
    assert set(node.gpus(job)) == {"GPU-1"}
    [running] = node.attribution.running
    assert (running.pids, running.cgroup) == ((900,), "/system.slice/slurmstepd.scope/job_42")


def test_the_node_itself_is_allocated_too(node: Node) -> None:
    slurm_process(node, 42, 900)
    node.tick()
    assert {one.source for one in node.allocations.values()} == {Source("n1", NODE)}


def test_a_gpu_without_a_process_still_belongs_to_its_job(node: Node) -> None:
    node.prolog("42", 0, 1)
    slurm_process(node, 42, 900)
    node.tick((0, 900))
    assert set(node.gpus(node.job("42"))) == {"GPU-0", "GPU-1"}


def test_a_device_stays_the_jobs_when_its_process_ends(node: Node) -> None:
    slurm_process(node, 42, 900)
    node.host.process(901, 900, cgroup=cgroup_line("job_42"))
    node.tick((0, 900), (1, 901))
    node.tick((0, 900))
    assert {one.end_ms for one in node.gpus(node.job("42")).values()} == {None}


def test_a_hook_alone_makes_a_job_with_its_gpus(node: Node) -> None:
    hook = node.prolog("42", 2, user="ada", cluster="c9")
    node.tick()
    job = node.job("42")
    assert job.key == f"c9/42/{hook.start_ms // 1000}"
    assert job.user == "ada"
    [allocation] = node.gpus(job).values()
    assert (allocation.source.device, allocation.start_ms) == ("GPU-2", hook.start_ms)
    assert (allocation.known_from, allocation.confidence) == ("hook", 1.0)


def test_two_jobs_on_one_node_keep_their_own_gpus(node: Node) -> None:
    slurm_process(node, 42, 900)
    slurm_process(node, 43, 950)
    node.tick((0, 900), (1, 950))
    assert set(node.gpus(node.job("42"))) == {"GPU-0"}
    assert set(node.gpus(node.job("43"))) == {"GPU-1"}


def test_two_jobs_may_share_one_gpu(node: Node) -> None:
    slurm_process(node, 42, 900)
    slurm_process(node, 43, 950)
    node.tick((0, 900), (0, 950))
    assert set(node.gpus(node.job("42"))) == set(node.gpus(node.job("43"))) == {"GPU-0"}


def test_minor_numbers_are_not_nvml_indices(host: FakeHost) -> None:
    node = make_node(host)
    node.devices = [device(0, minor=3), device(1, minor=2), device(2, minor=1), device(3, minor=0)]
    node.prolog("42", 0, 1)
    node.tick()
    assert set(node.gpus(node.job("42"))) == {"GPU-3", "GPU-2"}


def test_uuids_in_cuda_visible_devices_win_over_numbers(node: Node) -> None:
    slurm_process(node, 42, 900, SLURM_JOB_ID="42", SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="GPU-3,GPU-2")
    node.tick()
    node.tick((3, 900))
    assert set(node.gpus(node.job("42"))) == {"GPU-3", "GPU-2"}


def test_numbers_counted_inside_the_job_are_not_taken_for_devices(node: Node) -> None:
    slurm_process(node, 42, 900, SLURM_JOB_ID="42", CUDA_VISIBLE_DEVICES="0")
    node.tick((3, 900))
    assert set(node.gpus(node.job("42"))) == {"GPU-3"}


def test_mig_instances_are_allocated_and_the_card_is_not(node: Node) -> None:
    instances = [
        Device(Source("n1", f"MIG-{number}"), 0, parent_uuid="GPU-0", mig_profile="1g.10gb")
        for number in (1, 2)
    ]
    node.devices = [*DEVICES, *instances]
    slurm_process(node, 42, 900, SLURM_JOB_ID="42", CUDA_VISIBLE_DEVICES="MIG-1")
    node.tick((0, 900))
    assert set(node.gpus(node.job("42"))) == {"MIG-1"}


def test_devices_that_appear_later_are_still_found(node: Node) -> None:
    node.devices = []
    node.prolog("42", 0)
    node.tick()
    assert not node.gpus(node.job("42"))
    node.devices = DEVICES
    node.tick()
    assert set(node.gpus(node.job("42"))) == {"GPU-0"}
