"""A checked expression: a tree of nodes that know their shape, unit and how far back they look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpudiag.rules.units import NUMBER, PLAIN, RATIO, Unit

Shape = Literal["const", "series", "window", "text", "error"]
Option = float | str | tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """One operation. Nodes with the same `key` mean the same, so their values are shared between rules.

    `shape`: `series` has a value per second, `window` one per evaluation, `const` is known when the rule is
    read. `reach` is how many seconds before the end of the window it may look at, `lag` how many seconds of
    samples after a second it needs before that second's value is settled. `windowed`: a series whose values depend on the
    window they are looked at in, for instance on a quantile of it.
    """

    op: str
    key: str
    shape: Shape
    unit: Unit = NUMBER
    boolean: bool = False
    children: tuple[Node, ...] = ()
    value: float | str = 0.0
    options: Mapping[str, Option] = field(default_factory=dict)
    reach: int = 0
    lag: int = 0
    cost: int = 0
    windowed: bool = False

    def __iter__(self) -> Iterator[Node]:
        """This node and everything below it."""
        yield self
        for child in self.children:
            yield from child

    @property
    def kind(self) -> str:
        """What it is, for people: `a value per second`, `a condition per evaluation`, ..."""
        what = "a condition" if self.boolean else "a value"
        return {"series": f"{what} per second", "window": f"{what} per evaluation", "text": "text"}.get(
            self.shape, "a constant"
        )


ERROR = Node("error", "?", "error", PLAIN)


def number(value: float, unit: Unit = PLAIN) -> Node:
    """A constant; the unit `PLAIN` is a bare literal that fits most units."""
    return Node("number", f"{value!r}" if unit.literal else f"{value!r}[{unit}]", "const", unit, value=value)


def boolean(value: bool) -> Node:
    """`true` or `false`."""
    return Node("truth", str(value).lower(), "const", boolean=True, value=float(value))


def text(value: str) -> Node:
    """A string, only meaningful as an argument."""
    return Node("text", repr(value), "text", value=value)


def metrics(node: Node) -> dict[tuple[str, str], None]:
    """(scope, name) of each metric the expression reads, in order of appearance."""
    return dict.fromkeys(
        (str(part.options["scope"]), str(part.value)) for part in node if part.op == "metric"
    )


def is_ratio(node: Node) -> bool:
    """Whether the value lies between 0 and 1."""
    return node.unit == RATIO
