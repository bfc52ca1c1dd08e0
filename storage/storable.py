"""Text from outside as every database takes it: job names and marks may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")
_STRANGE = "\N{REPLACEMENT CHARACTER}"


def storable(value: Value) -> Value:
    """The same with lone surrogates and NULs replaced, in all texts of a list or mapping; PostgreSQL refuses both."""
    made: object = value
    if isinstance(value, str):
        made = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", _STRANGE)
    elif isinstance(value, Mapping):
        made = {storable(name): storable(each) for name, each in value.items()}
    elif isinstance(value, (list, tuple)):
        made = type(value)(storable(each) for each in value)
    return made  # type: ignore[return-value]
