"""The kubelet's list of pods, from a real gRPC server on a real socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost

from gpudiag.agent.attribution import Attribution
from gpudiag.agent.attribution.pod_resources import ASK_SECONDS, Pod, PodResources, pods_of, response_class
from gpudiag.agent.gpu import GpuProcess
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.sample import NODE, Source

grpc = pytest.importorskip("grpc", reason="needs the extra k8s")
UID = "4415fd05-2c0f-4533-909b-f2180dca8d7c"
HEX = "b15a5bdedd2e7645c3be271364324321b908314e4c77857bbfd32a041148c07f"
DEVICES = [Device(Source("n1", f"GPU-{index}"), 0, index=index, minor=index) for index in range(3)]


def answer(*pods: dict[str, Any]) -> Any:
    return response_class()(pod_resources=list(pods))


def pod(name: str, *ids: str, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    devices = [{"resource_name": resource, "device_ids": list(ids)}]
    return {"name": name, "namespace": "ml", "containers": [{"name": "main", "devices": devices}]}


class Kubelet:
    """Answers with `pods`; `asked` counts."""

    def __init__(self, path: Path) -> None:
        self.pods: tuple[dict[str, Any], ...] = ()
        self.asked = 0
        self.server = grpc.server(ThreadPoolExecutor(2))
        listing = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=lambda data: data,
            response_serializer=lambda reply: reply.SerializeToString(),
        )
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": listing})
        self.server.add_generic_rpc_handlers((service,))
        self.server.add_insecure_port(f"unix://{path}")
        self.server.start()

    def _list(self, request: bytes, context: Any) -> Any:
        assert request == b""
        self.asked += 1
        return answer(*self.pods)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path / "kubelet.sock")
    yield made
    made.server.stop(None).wait()


@pytest.fixture
def resources(tmp_path: Path, host: FakeHost) -> Iterator[PodResources]:
    made = PodResources(str(tmp_path / "kubelet.sock"), host.clock.monotonic)
    yield made
    made.close()


def until_answered(resources: PodResources, *names: str) -> None:
    for _ in range(400):
        resources.poll()
        if tuple(one.name for one in resources.pods) == names:
            return
        time.sleep(0.02)
    raise AssertionError(f"the kubelet said {resources.pods}")


def test_pods_and_their_gpus(kubelet: Kubelet, resources: PodResources) -> None:
    kubelet.pods = (pod("train", "GPU-0", "GPU-1"), pod("web"))
    until_answered(resources, "train")
    assert resources.pods == (Pod("ml", "train", ("GPU-0", "GPU-1")),)


def test_mig_instances_shared_gpus_and_other_devices() -> None:
    found = pods_of(
        answer(
            pod("mig", "MIG-1", resource="nvidia.com/mig-1g.10gb"),
            pod("shared", "GPU-0::3", "GPU-0::4"),
            pod("nic", "rdma0", resource="rdma/hca"),
        )
    )
    assert [(one.name, one.uuids) for one in found] == [("mig", ("MIG-1",)), ("shared", ("GPU-0",))]


def test_devices_that_were_claimed_dynamically() -> None:
    claim = {"cdi_devices": [{"name": "k8s.gpu.nvidia.com/device=GPU-2"}], "device_name": "gpu-2"}
    container = {"name": "main", "dynamic_resources": [{"claim_resources": [claim]}]}
    [found] = pods_of(answer({"name": "dra", "namespace": "ml", "containers": [container]}))
    assert found.uuids == ("GPU-2",)


def test_the_kubelet_is_asked_now_and_then_not_each_tick(
    kubelet: Kubelet, resources: PodResources, host: FakeHost
) -> None:
    kubelet.pods = (pod("train", "GPU-0"),)
    until_answered(resources, "train")
    for _ in range(100):
        resources.poll()
    assert kubelet.asked == 1
    host.clock.sleep(ASK_SECONDS)
    kubelet.pods = ()
    until_answered(resources)
    assert kubelet.asked == 2


def test_a_kubelet_that_is_away_is_no_end_of_its_pods(
    kubelet: Kubelet, resources: PodResources, host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.pods = (pod("train", "GPU-0"),)
    until_answered(resources, "train")
    kubelet.server.stop(None).wait()
    host.clock.sleep(ASK_SECONDS)
    for _ in range(400):
        resources.poll()
        if caplog.records:
            break
        time.sleep(0.02)
    assert "the kubelet does not list pods" in caplog.text
    assert len(resources.pods) == 1


class Listed:
    """Pods without a kubelet."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = pods

    def poll(self) -> None: ...


class Labelled:
    """Labels of pods without an API server."""

    def __init__(self) -> None:
        self.labels: dict[tuple[str, str], dict[str, str]] = {}

    def poll(self) -> None: ...


class Cluster:
    def __init__(self, host: FakeHost, *pods: Pod) -> None:
        host.unified()
        self.host, self.listed, self.labelled = host, Listed(*pods), Labelled()
        self.attribution = Attribution(
            host.base,
            "n1",
            host.clock,
            runtime_dir=host.base / "run",
            pods=self.listed,  # type: ignore[arg-type]
            pod_labels=self.labelled,  # type: ignore[arg-type]
        )
        self.jobs: dict[str, Job] = {}
        self.allocations: dict[tuple[str, str], Allocation] = {}

    def tick(self, *processes: tuple[int, int], seconds: float = 1.0) -> None:
        self.host.clock.sleep(seconds)
        seen = [GpuProcess(f"GPU-{index}", pid) for index, pid in processes]
        changes = self.attribution.reconcile(self.host.clock.now_ms(), seen, DEVICES)
        self.jobs.update((job.key, job) for job in changes.jobs)
        self.allocations.update(((one.job_key, one.source.device), one) for one in changes.allocations)

    def process(self, pid: int) -> None:
        own = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
        self.host.write(f"sys/fs/cgroup{own}/cgroup.events", "populated 1\n")
        self.host.process(pid, cgroup=f"0::{own}/cri-containerd-{HEX}.scope\n")

    def devices(self) -> set[str]:
        return {device for _, device in self.allocations} - {NODE}


def test_a_pod_whose_gpu_nothing_uses_is_a_job_that_has_it(host: FakeHost) -> None:
    cluster = Cluster(host, Pod("ml", "train", ("GPU-0", "GPU-1")))
    cluster.tick()
    [job] = cluster.jobs.values()
    assert (job.id, job.meta["namespace"], job.state) == ("train", "ml", "running")
    assert cluster.devices() == {"GPU-0", "GPU-1"}
    assert cluster.allocations[job.key, "GPU-0"].known_from == "kubelet"


def test_labels_of_a_pod_go_to_its_job_when_they_come(host: FakeHost) -> None:
    cluster = Cluster(host, Pod("ml", "train", ("GPU-0",)))
    cluster.labelled.labels = {("other", "train"): {"team": "speech"}}
    cluster.tick()
    assert "labels" not in next(iter(cluster.jobs.values())).meta
    cluster.labelled.labels = {("ml", "train"): {"team": "vision"}}
    cluster.tick()
    [job] = cluster.jobs.values()
    assert (job.meta["labels"], job.meta["namespace"]) == ({"team": "vision"}, "ml")
    cluster.labelled.labels = {}
    cluster.tick()
    assert next(iter(cluster.jobs.values())).meta["labels"] == {"team": "vision"}


def test_its_process_joins_it_by_the_gpu(host: FakeHost) -> None:
    cluster = Cluster(host, Pod("ml", "train", ("GPU-0", "GPU-1")))
    cluster.tick()
    cluster.process(900)
    cluster.tick((0, 900))
    assert len(cluster.jobs) == 1
    [running] = cluster.attribution.running
    assert running.pids == (900,)
    assert running.cgroup.endswith(f"pod{UID.replace('-', '_')}.slice")


def test_a_process_that_was_seen_first_is_named_later(host: FakeHost) -> None:
    cluster = Cluster(host)
    cluster.process(900)
    cluster.tick((0, 900))
    assert [job.id for job in cluster.jobs.values()] == [UID]
    cluster.listed.pods = (Pod("ml", "train", ("GPU-0", "GPU-1")),)
    cluster.tick((0, 900))
    cluster.tick((0, 900))
    [job] = cluster.jobs.values()
    assert job.id == "train"
    assert cluster.devices() == {"GPU-0", "GPU-1"}


def test_two_pods_on_a_shared_gpu_are_not_guessed_apart(host: FakeHost) -> None:
    cluster = Cluster(host, Pod("ml", "one", ("GPU-0",)), Pod("ml", "two", ("GPU-0",)))
    cluster.process(900)
    cluster.tick((0, 900))
    assert {job.id for job in cluster.jobs.values()} == {"one", "two", UID}


def test_a_pod_that_is_gone_from_the_list_has_ended(host: FakeHost) -> None:
    cluster = Cluster(host, Pod("ml", "train", ("GPU-0",)))
    cluster.tick()
    last_ms = host.clock.now_ms()
    cluster.listed.pods = ()
    cluster.tick(seconds=40)
    assert [job.end_ms for job in cluster.jobs.values()] == [last_ms]
