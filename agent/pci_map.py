"""Which UUID is at which PCI address, kept in a file: once a GPU is off the bus nobody can say it any more."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.kernel_lines import normal_bdf
from gpudiag.storage.job import Device

log = logging.getLogger(__name__)
_DRIVER = "proc/driver/nvidia/gpus"


class PciMap:
    """Learns from NVML's devices, from the driver's /proc entries and from the log itself."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, str] = _load(path)

    def uuid(self, bdf: str) -> str | None:
        """The GPU that is, or was last, at this address."""
        return self._known.get(normal_bdf(bdf))

    def learn_devices(self, devices: Iterable[Device]) -> None:
        """Take over addresses of whole GPUs."""
        self.learn(
            {one.pci_bus_id: one.source.device for one in devices if one.pci_bus_id and not one.parent_uuid}
        )

    def learn_from_driver(self, root: HostRoot) -> None:
        """Read /proc/driver/nvidia/gpus, which needs neither NVML nor a privilege."""
        found = {}
        for bdf in root.names(_DRIVER):
            for line in (root.read_if_there(f"{_DRIVER}/{bdf}/information") or "").splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "GPU UUID" and value.strip().startswith("GPU-"):
                    found[bdf] = value.strip()
        self.learn(found)

    def learn(self, found: Mapping[str, str]) -> None:
        """Add or correct entries; the file is written only when something is new."""
        news = {normal_bdf(bdf): uuid for bdf, uuid in found.items() if "?" not in uuid}
        if any(self._known.get(bdf) != uuid for bdf, uuid in news.items()):
            self._known.update(news)
            self._save()

    def _save(self) -> None:
        if self._path is not None:
            write_json(self._path, self._known)


def write_json(path: Path, body: object) -> None:
    """Replace a small state file, all or nothing; a failure is logged and does not stop the agent."""
    try:
        temporary = path.with_name(f".{path.name}.new")
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(body, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        log.warning("cannot save %s: %s", path, error.strerror)


def read_json(path: Path | None) -> dict[str, object]:
    """A state file's content; empty when there is none or it is damaged."""
    if path is None:
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _load(path: Path | None) -> dict[str, str]:
    return {key: value for key, value in read_json(path).items() if isinstance(value, str)}
