"""NVLink traffic and errors of a GPU, summed over links, from the first family of counters that it has.

Traffic: sums over links made by the driver; Blackwell: per link. Errors: up to Ampere totals per kind; Hopper per link
replay, recovery and CRC; Blackwell per link recoveries.
"""

from __future__ import annotations

import math

import pynvml

from gpudiag.agent.probe.entries import Entries
from gpudiag.agent.probe.fields import ALL_LINKS, Field, Fields
from gpudiag.agent.probe.units import KIB, ONE, convert

_TOTALS: tuple[Field, ...] = (
    (pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0),
    (pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0),
    (pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0),
    (pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 0),
)
_HOPPER = (
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
)
_BLACKWELL = (pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,)
_NAME, _TRAFFIC = "nvlink errors", "nvlink traffic"
_SENT, _RECEIVED = "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second"
_SUMS: dict[Field, tuple[str, int]] = {
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS): (_SENT, KIB),
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS): (_RECEIVED, KIB),
}
_PER_LINK = {
    pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES: _SENT,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES: _RECEIVED,
}


class LinkTraffic:
    """Which fields to read for the bytes over NVLink, and what they add up to."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._settled = False
        self.wanted: dict[Field, tuple[str, int]] = dict(_SUMS)

    def bytes(self, found: dict[Field, float], fields: Fields) -> dict[str, float]:
        """Bytes sent and received since driver load; a direction of which any link is silent is left out."""
        if not self._settled and found:
            self._settle(found, fields)
        elif not self.wanted and self._entries.may(_TRAFFIC):
            self.wanted, self._settled = dict(_SUMS), False  # the next cycle asks anew
        totals: dict[str, float] = {}
        for field, (name, scale) in self.wanted.items():
            totals[name] = totals.get(name, 0.0) + convert(found.get(field, math.nan), scale)
        return {name: total for name, total in totals.items() if not math.isnan(total)}

    def _settle(self, found: dict[Field, float], fields: Fields) -> None:
        """Keep the sums when the driver makes them, else take single links where they are counted."""
        self._settled = True
        if any(field in found for field in _SUMS):
            self._entries.worked(_TRAFFIC)
            return
        links = range(link_count(fields))
        per_link = {(kind, link): (name, ONE) for kind, name in _PER_LINK.items() for link in links}
        self.wanted = {field: per_link[field] for field in fields.read(per_link)}
        if not self.wanted:
            self._entries.cannot(_TRAFFIC, "this GPU has no NVLink or does not count its bytes")


class LinkErrors:
    """Settles once on a family of counters and stays with it: two families never share a series."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._family: tuple[Field, ...] = ()

    def total(self, fields: Fields) -> float | None:
        """Errors over all links and kinds since driver load, or None when the GPU counts none."""
        if self._family:
            return _sum(fields.read(self._family))
        if not self._entries.may(_NAME):
            return None
        for family in self._families(fields):
            found = fields.read(family)
            if found:
                self._family = tuple(found)
                self._entries.worked(_NAME)
                return _sum(found)
        self._entries.cannot(_NAME, "this GPU has no NVLink or does not count its errors")
        return None

    def _families(self, fields: Fields) -> list[tuple[Field, ...]]:
        links = range(link_count(fields))
        if not links:
            return []
        per_link = [
            tuple((kind, link) for kind in kinds for link in links) for kinds in (_HOPPER, _BLACKWELL)
        ]
        return [_TOTALS, *per_link]


def link_count(fields: Fields) -> int:
    """How many links the GPU has."""
    return int(next(iter(fields.read([(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)]).values()), 0))


def _sum(found: dict[Field, float]) -> float | None:
    return sum(found.values()) if found else None
