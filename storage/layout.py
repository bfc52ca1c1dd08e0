"""Which metric, from which origin, each column of a chunk holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

Column = tuple[str, str]  # metric, origin ("" when the metric has only one)


@dataclass(frozen=True)
class Layout:
    """The columns of a chunk in order; the id is a digest of them, equal on every node."""

    columns: tuple[Column, ...]

    @cached_property
    def body(self) -> str:
        """What is stored: JSON [[metric, origin], ...]."""
        return json.dumps(self.columns, separators=(",", ":"))

    @cached_property
    def id(self) -> str:
        """First 16 hexadecimal digits of the body's SHA-256."""
        return hashlib.sha256(self.body.encode()).hexdigest()[:16]

    @cached_property
    def members(self) -> frozenset[Column]:
        """The columns, for look-up."""
        return frozenset(self.columns)

    @cached_property
    def metrics(self) -> frozenset[str]:
        """Names of the metrics."""
        return frozenset(name for name, _ in self.columns)

    @staticmethod
    def parse(body: str) -> Layout:
        """The layout that was stored as `body`."""
        return Layout(tuple((str(name), str(origin)) for name, origin in json.loads(body)))
