"""GPUs through a running DCGM host engine, read by a probe process of its own with NVIDIA's bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpudiag.agent.clock import Clock
from gpudiag.agent.collectors import NothingToCollect, dcgm_fields
from gpudiag.agent.probe.client import ProbeClient
from gpudiag.agent.probe.keeper import HANG_AFTER, Keeper, Probe
from gpudiag.storage.job import Event
from gpudiag.storage.sample import NODE, Frame, Source

ORIGIN = "dcgm"
PATIENCE = 0.25  # of the interval
STALE = 3.0  # intervals: an answer that took longer is too old to be stamped with this tick


class DcgmCollector:
    """Connects to `address` (host:port, or the path of a UNIX socket); `bindings`: where else to look for `pydcgm`.

    `instance`: UUID of the MIG instance of this number on a GPU; one without is left out.
    """

    name = "dcgm"

    def __init__(
        self,
        node: str,
        address: str,
        clock: Clock,
        interval: float = 1.0,
        bindings: Sequence[str] = (),
        start: Callable[[], Probe] | None = None,
        hang_after: float = HANG_AFTER,
        instance: Callable[[str, int], str | None] = lambda uuid, number: None,
    ) -> None:
        self._node = node
        self._instance = instance
        self._interval = interval
        self._keeper = Keeper(
            start or (lambda: ProbeClient(source=("dcgm", address, *bindings))),
            clock.monotonic,
            hang_after,
            hang_after,
        )
        self.last_xids: dict[str, int] = {}
        self.absent: dict[str, str] = {}

    @property
    def state(self) -> str:
        """As `NvmlStatus.state`."""
        return self._keeper.state

    def collect(self, now_ms: int) -> Iterator[Frame | Event]:
        """The latest values of every GPU; raises `RuntimeError` when the host engine does not give them."""
        request = {"op": "sample", "interval": self._interval}
        reply = self._keeper.exchange(request, PATIENCE * self._interval)
        for incident in self._keeper.incidents():
            kind = incident.kind.replace("driver_", "dcgm_")
            yield Event(Source(self._node, NODE), now_ms, kind, incident.code, 0, incident.detail)
        if reply is None:
            self._explain()
            return
        self.absent = reply["absent"]
        if self._keeper.waited > STALE * self._interval:
            return
        for gpu in reply["gpus"]:
            fields = {int(number): value for number, value in gpu["fields"].items()}
            xid = fields.get(dcgm_fields.XID)
            if xid is not None and not dcgm_fields.blank(xid):
                self.last_xids[gpu["uuid"]] = int(xid)
            values = dcgm_fields.metrics(fields)
            uuid = self._instance(gpu["uuid"], gpu["instance"]) if "instance" in gpu else gpu["uuid"]
            if values and uuid is not None:
                yield Frame(Source(self._node, uuid), now_ms, values, dict.fromkeys(values, ORIGIN))

    def close(self) -> None:
        """Disconnect."""
        self._keeper.close()

    def _explain(self) -> None:
        state, reason = self._keeper.state, self._keeper.reason
        if state == "starting":
            raise NothingToCollect(reason)
        raise RuntimeError(f"DCGM {state}: {reason}")
