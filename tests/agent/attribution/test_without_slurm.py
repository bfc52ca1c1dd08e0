"""Jobs without Slurm: pods, containers, directories that others write, processes of nobody."""

from __future__ import annotations

from pathlib import Path

from attributed_node import Node, make_node
from fake_host import FakeHost


def test_jobstats_files_name_devices_by_uuid_and_number(host: FakeHost, tmp_path: Path) -> None:
    folder = tmp_path / "gpustat"
    node = make_node(host, job_directories=[folder])
    host.write("gpustat/1", "42 1000\n")
    host.write("gpustat/GPU-3", "42 1000\n")
    node.tick()
    assert set(node.gpus(node.job("42"))) == {"GPU-3"}
    assert node.gpus(node.job("42"))["GPU-3"].known_from == "job_directory"
    host.remove("gpustat")
    node.tick(seconds=31)
    node.tick(seconds=31)
    assert node.job("42").end_ms is not None


def test_dcgm_exporter_files_hold_one_job_per_line(host: FakeHost, tmp_path: Path) -> None:
    node = make_node(host, job_directories=[tmp_path / "hpc"])
    host.write("hpc/0", "42\n43\n42\n")
    host.write("hpc/1", "42\n")
    host.write("hpc/2.1", "44\n")
    node.tick()
    assert set(node.gpus(node.job("42"))) == {"GPU-0", "GPU-1"}
    assert set(node.gpus(node.job("43"))) == {"GPU-0"}
    assert {job.raw_id for job in node.jobs.values()} == {"42", "43"}


POD = "4415fd05-2c0f-4533-909b-f2180dca8d7c"

HEX = "b15a5bdedd2e7645c3be271364324321b908314e4c77857bbfd32a041148c07f"


def test_a_pod_lives_as_long_as_its_cgroup(node: Node) -> None:
    own = f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice"
    folder = f"sys/fs/cgroup{own}"
    node.host.write(f"{folder}/cgroup.events", "populated 1\n")
    node.host.process(900, cgroup=f"0::{own}/cri-containerd-{HEX}.scope\n")
    node.tick((0, 900))
    job = node.job(POD)
    assert (job.meta["kind"], job.meta["container"]) == ("kubernetes", HEX)
    node.host.end(900)
    node.tick(seconds=100)
    assert node.job(POD).end_ms is None
    node.host.write(f"{folder}/cgroup.events", "populated 0\n")
    node.tick(seconds=100)
    assert node.job(POD).end_ms is not None


def test_a_plain_container_is_a_job_of_its_own(node: Node) -> None:
    node.host.process(900, cgroup=f"0::/system.slice/docker-{HEX}.scope\n")
    node.tick((2, 900))
    assert set(node.gpus(node.job(HEX))) == {"GPU-2"}


def test_a_process_outside_of_any_job_is_nobodys(node: Node) -> None:
    node.host.process(900, cgroup="0::/user.slice/user-1000.slice/session-214.scope\n")
    node.tick((0, 900))
    assert not node.jobs
