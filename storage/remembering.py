"""What is remembered of names that come and go: jobs and slices of GPUs would fill memory in a year."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

REMEMBERED = 20_000


def make_room(known: MutableMapping[Any, Any]) -> None:
    """Forget everything once there is too much of it; what is still in use is looked up again."""
    if len(known) >= REMEMBERED:
        known.clear()
