"""Labels of this node's pods from the Kubernetes API, only those that a site names; the pod-resources socket has none."""

from __future__ import annotations

import json
import logging
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpudiag.errors import InputError

log = logging.getLogger(__name__)
ASK_SECONDS = 60.0
TIMEOUT_SECONDS = 10.0
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_BYTES = 1 << 25
# names and labels without the pods' specifications, where the server can leave them out
_ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

Labels = Mapping[tuple[str, str], Mapping[str, str]]


class PodLabels:
    """Asks the API server in a thread of its own, once a minute; `labels` maps (namespace, pod) to its latest answer."""

    def __init__(
        self,
        wanted: Sequence[str],
        node: str,
        environ: Mapping[str, str],
        monotonic: Callable[[], float],
        account: Path = SERVICE_ACCOUNT,
    ) -> None:
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").is_file():
            raise InputError("sources.pod_labels needs a pod with a service account that may list pods")
        query = urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"})
        self._url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/pods?{query}"
        self._wanted, self._account, self._monotonic = tuple(wanted), account, monotonic
        self._next = float("-inf")
        self._thread: threading.Thread | None = None
        self._failing = False
        self.labels: Labels = {}

    def poll(self) -> None:
        """Ask again when it is time; never waits. The old answer stays while the server is away."""
        if self._monotonic() < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = self._monotonic() + ASK_SECONDS
        self._thread = threading.Thread(target=self._ask, name="pod-labels", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self.labels = labels_of(self._read(), self._wanted)
            self._failing = False
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if not self._failing:
                log.warning("the Kubernetes API does not tell labels of pods: %s", error)
            self._failing = True

    def _read(self) -> Any:
        token = (self._account / "token").read_text(encoding="ascii").strip()  # renewed by the kubelet
        request = urllib.request.Request(
            self._url, headers={"Accept": _ACCEPT, "Authorization": f"Bearer {token}"}
        )
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
            return json.loads(answer.read(_MAX_BYTES))


def labels_of(answer: Any, wanted: Sequence[str]) -> Labels:
    """The wanted labels of each pod of a list that has any. Raises `KeyError` or `TypeError` for anything else."""
    found = {}
    for pod in answer["items"]:
        given = pod["metadata"].get("labels") or {}
        kept = {name: str(given[name]) for name in wanted if name in given}
        if kept:
            found[(pod["metadata"]["namespace"], pod["metadata"]["name"])] = kept
    return found
