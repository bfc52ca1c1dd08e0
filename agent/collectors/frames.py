"""Building the frame of the host from values that may be missing."""

from __future__ import annotations

from collections.abc import Mapping

from gpudiag.storage.sample import NODE, Frame, Source


def node_frame(node: str, now_ms: int, values: Mapping[str, float | None]) -> list[Frame]:
    """One frame of the node with what was measured; none when nothing was."""
    measured = {name: value for name, value in values.items() if value is not None}
    return [Frame(Source(node, NODE), now_ms, measured)] if measured else []


def share(part: float | None, whole: float | None) -> float | None:
    """`part / whole` held to 0..1; None when either is missing or there is no whole."""
    if part is None or not whole:
        return None
    return min(1.0, max(0.0, part / whole))
