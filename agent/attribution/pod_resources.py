"""Which pod has which GPU, from the kubelet's pod-resources socket (API v1); needs the extra `k8s`.

The answer names pods, not their UIDs; control groups name UIDs, not pods. A GPU that both know joins the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpudiag.agent.attribution.devices import is_uuid
from gpudiag.errors import InputError

log = logging.getLogger(__name__)
LIST = "/v1.PodResourcesLister/List"
ASK_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0
_REPEATED, _OPTIONAL, _TEXT, _MESSAGE = 3, 1, 9, 11
# message: (field, number, label, type or message) of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto
_MESSAGES = {
    "ContainerDevices": (("resource_name", 1, _OPTIONAL, None), ("device_ids", 2, _REPEATED, None)),
    "CDIDevice": (("name", 1, _OPTIONAL, None),),
    "ClaimResource": (("cdi_devices", 1, _REPEATED, "CDIDevice"), ("device_name", 4, _OPTIONAL, None)),
    "DynamicResource": (("claim_resources", 4, _REPEATED, "ClaimResource"),),
    "ContainerResources": (
        ("name", 1, _OPTIONAL, None),
        ("devices", 2, _REPEATED, "ContainerDevices"),
        ("dynamic_resources", 5, _REPEATED, "DynamicResource"),
    ),
    "PodResources": (
        ("name", 1, _OPTIONAL, None),
        ("namespace", 2, _OPTIONAL, None),
        ("containers", 3, _REPEATED, "ContainerResources"),
    ),
    "ListPodResourcesResponse": (("pod_resources", 1, _REPEATED, "PodResources"),),
}


@dataclass(frozen=True)
class Pod:
    """A pod that was given GPUs."""

    namespace: str
    name: str
    uuids: tuple[str, ...]

    @property
    def id(self) -> str:
        """`namespace:name`, what tells it apart on the node while it lives."""
        return f"{self.namespace}:{self.name}"


def response_class() -> Any:
    """The class of the kubelet's answer, built from its description above. Raises `ImportError` without protobuf."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="gpudiag_podresources.proto", package="gpudiag.podresources", syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, number, label, kind in fields:
            made.field.add(
                name=name,
                number=number,
                label=label,
                type=_MESSAGE if kind else _TEXT,
                type_name=f".gpudiag.podresources.{kind}" if kind else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("gpudiag.podresources.ListPodResourcesResponse")
    return message_factory.GetMessageClass(found)


def pods_of(answer: Any) -> tuple[Pod, ...]:
    """Pods with at least one GPU or MIG instance, each device once; a shared GPU is `UUID::replica` there."""
    found = []
    for pod in answer.pod_resources:
        uuids: dict[str, None] = {}
        for container in pod.containers:
            names = [name for devices in container.devices for name in devices.device_ids]
            for claim in (one for dynamic in container.dynamic_resources for one in dynamic.claim_resources):
                names += [device.name.rpartition("=")[2] for device in claim.cdi_devices]
            uuids.update((name.partition("::")[0], None) for name in names if is_uuid(name))
        if uuids:
            found.append(Pod(pod.namespace, pod.name, tuple(uuids)))
    return tuple(found)


class PodResources:
    """Asks the kubelet now and then, and never waits for it. `pods` is its latest answer."""

    def __init__(self, socket: str, monotonic: Callable[[], float]) -> None:
        try:
            import grpc

            parse = response_class().FromString
        except ImportError as error:
            raise InputError(
                f"sources.pod_resources needs gpudiag's extra k8s (pip install 'gpudiag[k8s]'): {error}"
            ) from None
        self._monotonic = monotonic
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._list = self._channel.unary_unary(
            LIST, request_serializer=lambda _: b"", response_deserializer=parse
        )
        self._errors: type[Exception] = grpc.RpcError
        self._call: Any = None
        self._next = float("-inf")
        self._failing = False
        self.pods: tuple[Pod, ...] = ()

    def poll(self) -> None:
        """Take an answer that has come; ask again when it is time. The old answer stays while the kubelet is away."""
        if self._call is not None and self._call.done():
            self._take(self._call)
            self._call = None
        if self._call is None and self._monotonic() >= self._next:
            self._next = self._monotonic() + ASK_SECONDS
            self._call = self._list.future(None, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        """Let go of the socket."""
        self._channel.close()

    def _take(self, call: Any) -> None:
        try:
            self.pods = pods_of(call.result())
            self._failing = False
        except self._errors:
            if not self._failing:
                log.warning("the kubelet does not list pods: %s", call.details())
            self._failing = True
