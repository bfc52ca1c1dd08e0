from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.attribution.identity import CgroupIdentity, identify

HEX = "b15a5bdedd2e7645c3be271364324321b908314e4c77857bbfd32a041148c07f"
CAPTURES = Path(__file__).parents[3].parent / "shared" / "data" / "cgroup" / "proc_cgroup_lines.tsv"


def found(text: str) -> CgroupIdentity:
    identity = identify(text)
    assert identity is not None
    return identity


def test_slurm_on_the_unified_tree_is_cut_at_the_job() -> None:
    identity = found("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n")
    assert (identity.kind, identity.id, identity.part) == ("slurm", "42", "0")
    assert identity.path == "/system.slice/slurmstepd.scope/job_42"


def test_several_slurmd_on_one_node_prefix_the_scope_with_their_name() -> None:
    assert found("0::/system.slice/gamba1_slurmstepd.scope/job_7/step_batch/user/task_0").id == "7"
    assert identify("0::/system.slice/gamba1_slurmstepd.scope/slurmd") is None


def test_a_sluid_names_a_job_without_telling_its_number() -> None:
    identity = found("0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/user/task_0")
    assert (identity.kind, identity.id, identity.part) == ("sluid", "sEKNKTV3WPV500", "batch")


def test_slurm_version_one_knows_the_job_only_in_some_controllers() -> None:
    identity = found(
        "11:pids:/system.slice/slurmd.service\n9:memory:/slurm/uid_2179/job_11811379/step_0/task_0\n"
        "3:cpuacct,cpu:/slurm/uid_2179/job_11811379/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n"
    )
    assert (identity.id, identity.uid) == ("11811379", 2179)
    assert dict(identity.controllers) == dict.fromkeys(
        ("memory", "cpuacct", "cpu"), "/slurm/uid_2179/job_11811379"
    )


def test_a_slurm_root_may_carry_the_hosts_name() -> None:
    assert found("4:cpu,cpuacct:/slurm_host0/uid_1000/job_1009248/step_0/task_0").id == "1009248"


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        (
            f"/kubepods.slice/kubepods-x.slice/kubepods-x-pod4415fd05_2c0f_4533_909b_f2180dca8d7c.slice/cri-containerd-{HEX}.scope",
            "4415fd05-2c0f-4533-909b-f2180dca8d7c",
        ),
        (
            f"/kubepods.slice/kubepods-pod22949dce_fd8b_11ea_8ede_98f2b32c645c.slice/docker-{HEX}.scope",
            "22949dce-fd8b-11ea-8ede-98f2b32c645c",
        ),
        (
            f"/kubepods/besteffort/pod22949dce-fd8b-11ea-8ede-98f2b32c645c/{HEX}",
            "22949dce-fd8b-11ea-8ede-98f2b32c645c",
        ),
        (
            f"/kubelet/kubepods/pod22949dce-fd8b-11ea-8ede-98f2b32c645c/{HEX}",
            "22949dce-fd8b-11ea-8ede-98f2b32c645c",
        ),
    ],
)
def test_pods_of_both_cgroup_drivers(path: str, uid: str) -> None:
    identity = found(f"0::{path}\n")
    assert (identity.kind, identity.id, identity.part) == ("kubernetes", uid, HEX)
    assert HEX not in identity.path


@pytest.mark.parametrize(
    "path",
    [f"/system.slice/docker-{HEX}.scope", f"/docker/{HEX}", f"/{HEX}", f"/machine.slice/libpod-{HEX}.scope/container"],
)  # fmt: skip
def test_containers_without_a_scheduler(path: str) -> None:
    identity = found(f"10:net_prio:{path}")
    assert (identity.kind, identity.id) == ("container", HEX)


def test_slurm_inside_a_pod_is_slurm() -> None:
    identity = found(
        f"0::/kubepods.slice/kubepods-pod22949dce_fd8b_11ea_8ede_98f2b32c645c.slice/cri-containerd-{HEX}.scope"
        "/system.slice/slurmstepd.scope/job_3/step_0\n"
    )
    assert (identity.kind, identity.id) == ("slurm", "3")


@pytest.mark.parametrize(
    "path", ["/", "/user.slice/user-1000.slice/session-214.scope", "/job_42", "/slurm/job_x", "/.."]
)
def test_other_paths_belong_to_no_job(path: str) -> None:
    assert identify(f"0::{path}\n") is None


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    identify(text)


@given(
    st.integers(1, 10**9),
    st.integers(0, 10**6),
    st.sampled_from(["batch", "extern", "interactive", "0", "17"]),
    st.sampled_from(["slurm", "slurm_node-1"]),
)
def test_every_job_number_is_read_back(job: int, uid: int, step: str, root: str) -> None:
    identity = found(f"6:freezer:/{root}/uid_{uid}/job_{job}/step_{step}\n")
    assert identity == CgroupIdentity(
        "slurm", str(job), step, uid, {"freezer": f"/{root}/uid_{uid}/job_{job}"}
    )


def test_the_captured_lines() -> None:
    if not CAPTURES.exists():
        pytest.skip("captures of other people's machines are not part of the repository")
    with CAPTURES.open() as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    checked = 0
    for row in rows:
        text = row["line(s, \\n-joined)"].replace("\\n", "\n").replace("<64hex>", HEX)
        identity = identify(text)
        expected = row["expected"]
        if expected.startswith("job="):
            assert identity is not None
            assert f"job={identity.id} step={identity.part}" in expected or "root dir" in expected
        elif expected.startswith("sluid="):
            assert identity is not None
            assert (identity.kind, identity.id) == ("sluid", expected[6:])
        elif expected.startswith("pod="):
            assert identity is not None
            assert (identity.kind, identity.id) == ("kubernetes", expected[4:])
        elif expected == "docker" or expected.startswith("cid="):
            assert identity is not None
            assert identity.kind == "container"
        elif expected.startswith("root dir"):
            assert identity is not None
            assert identity.id == "1009248"
        else:
            assert identity is None, row
        checked += 1
    assert checked == 12
