"""Reads an expression of the rule language: a subset of Python's grammar, checked for names, shapes and units.

Nothing is ever executed: `ast` gives the grammar, and only the node types named here are accepted. All
mistakes of an expression are found at once.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpudiag.rules import node as nodes
from gpudiag.rules.call import check_call
from gpudiag.rules.functions import DEVICE_CONSTANTS, FUNCTIONS, MASKS
from gpudiag.rules.node import ERROR, Node
from gpudiag.rules.units import CODE, CONSTANTS, NAMED, NUMBER, Unit, mismatch
from gpudiag.storage import catalog

MAX_LENGTH = 1000
MAX_NODES = 200
MAX_EXPANDED = 2000
MAX_DEPTH = 24

Complain = Callable[[str, int], None]

_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISON: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_FOLD: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_HINTS: dict[type[ast.AST], str] = {
    ast.Attribute: "a dot is not part of the rule language",
    ast.Subscript: "[ ] is not part of the rule language",
    ast.IfExp: "if ... else is not part of the rule language; use default(value, otherwise)",
    ast.Lambda: "lambda is not part of the rule language",
    ast.BitAnd: "use 'and', or bits(state, mask) for a bit mask",
    ast.BitOr: "use 'or'",
    ast.Pow: "** is not part of the rule language",
    ast.Mod: "% is not part of the rule language; write 0.3 for 30 %",
}


@dataclass
class Names:
    """What an expression may refer to: the rule's scope and window, its `let` and `params`."""

    scope: str
    window: int
    lets: Mapping[str, Node] = field(default_factory=dict)
    params: Mapping[str, tuple[float, Unit]] = field(default_factory=dict)

    def all(self) -> Iterable[str]:
        """Every name, for "did you mean"."""
        scopes = ("gpu", "job", "node") if self.scope == "gpu" else ("job", "node")
        metrics = [name for scope, name in catalog.METRICS if scope in scopes]
        return (*self.lets, *self.params, *metrics, *DEVICE_CONSTANTS, *CONSTANTS, *MASKS, *FUNCTIONS)


def parse(text: str, names: Names, complain: Complain) -> Node:
    """The checked expression; mistakes go to `complain(message, characters before it, blanks not counted)`.

    After a mistake the result holds `ERROR` in its place and must not be evaluated.
    """
    if len(text) > MAX_LENGTH:
        complain(f"longer than {MAX_LENGTH} characters; name parts of it under 'let'", 0)
        return ERROR
    if any(depth > MAX_DEPTH for depth in _depths(text)):
        complain(f"brackets nested more than {MAX_DEPTH} deep", 0)
        return ERROR
    flat = text.replace("\n", " ")
    stripped = flat.lstrip()
    try:
        tree = ast.parse(stripped.rstrip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        complain(*_syntax(error, stripped.rstrip()))
        return ERROR
    checker = _Checker(stripped, names, complain)
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES * 3:
        complain(f"more than {MAX_NODES} terms; name parts of it under 'let'", 0)
        return ERROR
    result = checker.visit(tree.body)
    if sum(1 for _ in result) > MAX_EXPANDED:
        complain(f"more than {MAX_EXPANDED} terms after its names are filled in", 0)
        return ERROR
    return result


def _depths(text: str) -> Iterable[int]:
    depth = unary = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        unary = unary + 1 if character in "-+~" else 0 if not character.isspace() else unary
        yield max(depth, unary)


def _syntax(error: Exception, text: str) -> tuple[str, int]:
    if not text:
        return "empty: an expression was expected", 0
    if not isinstance(error, SyntaxError):
        return "too complicated to be read", 0
    message = {"invalid syntax": "not an expression"}.get(error.msg, error.msg).split(". Perhaps")[0]
    column = (error.offset or 1) - 1
    if text.rstrip()[-1:] in "<>=+-*/(,!":
        return f"{message}: something is missing at the end", _solid(text)
    return message, _solid(text[:column])


def _solid(text: str) -> int:
    return sum(1 for character in text if not character.isspace())


class _Checker:
    """Turns `ast` nodes into checked nodes."""

    def __init__(self, text: str, names: Names, complain: Complain) -> None:
        self._bytes = text.encode()
        self._names = names
        self._complain = complain

    def complain(self, node: ast.AST, message: str) -> Node:
        """Report a mistake at `node`; gives the node that stands for it."""
        before = self._bytes[: getattr(node, "col_offset", 0)].decode(errors="ignore")
        self._complain(message, _solid(before))
        return ERROR

    def visit(self, node: ast.AST) -> Node:
        """The checked form of any node."""
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BoolOp):
            return self._logic(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Call):
            names = self._names
            return check_call(node, self.visit, self._visit_gpu, self.complain, names.scope, names.window)
        return self.complain(node, self._refusal(node))

    def _visit_gpu(self, node: ast.AST) -> Node:
        """As `visit`, with names meaning the GPUs' metrics."""
        outer, self._names = self._names, replace(self._names, scope="gpu")
        try:
            return self.visit(node)
        finally:
            self._names = outer

    def _refusal(self, node: ast.AST) -> str:
        hint = _HINTS.get(type(node))
        return hint or f"{type(node).__name__.lower()} is not part of the rule language"

    def _constant(self, node: ast.Constant) -> Node:
        value = node.value
        if isinstance(value, bool):
            return nodes.boolean(value)
        if isinstance(value, int | float):
            if abs(value) > 1e30:
                return self.complain(node, "this number is too large")
            return nodes.number(float(value))
        if isinstance(value, str):
            return nodes.text(value)
        return self.complain(node, f"{value!r} is not part of the rule language")

    def _name(self, node: ast.Name) -> Node:
        name = node.id
        if name in ("true", "false"):
            return nodes.boolean(name == "true")
        if name in self._names.lets:
            return self._names.lets[name]
        if name in self._names.params:
            return nodes.number(*self._names.params[name])
        metric = catalog.resolve(self._names.scope, name)
        if metric is not None:
            return metric_node(metric)
        if name in CONSTANTS:
            return nodes.number(*CONSTANTS[name])
        if name in MASKS:
            return nodes.number(float(MASKS[name]), CODE)
        return self._device_constant(node)

    def _device_constant(self, node: ast.Name) -> Node:
        name = node.id
        if name not in DEVICE_CONSTANTS:
            return self.complain(node, self._unknown(name))
        if self._names.scope != "gpu":
            return self.complain(
                node, f"'{name}' belongs to a GPU, but this rule's scope is {self._names.scope}"
            )
        return Node("device", name, "window", DEVICE_CONSTANTS[name][0], value=name, cost=1)

    def _unknown(self, name: str) -> str:
        if name in FUNCTIONS:
            return f"'{name}' is a function: {FUNCTIONS[name].example}"
        if self._names.scope != "gpu" and catalog.resolve("gpu", name):
            return (
                f"'{name}' belongs to a GPU, but this rule's scope is {self._names.scope}: put it in gpus_mean(...), "
                "gpus_max(...) or the like"
            )
        close = difflib.get_close_matches(name, list(self._names.all()), n=2, cutoff=0.6)
        meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        return f"unknown name '{name}'{meant}"

    def _logic(self, node: ast.BoolOp) -> Node:
        children = [self.visit(value) for value in node.values]
        for value, child in zip(node.values, children, strict=True):
            if child.shape != "error" and not child.boolean:
                self.complain(value, f"a condition was expected here, not {child.kind} in {child.unit}")
                return ERROR
        return combine("and" if isinstance(node.op, ast.And) else "or", children, boolean=True)

    def _unary(self, node: ast.UnaryOp) -> Node:
        child = self.visit(node.operand)
        if child.shape == "error":
            return child
        if isinstance(node.op, ast.Not):
            if not child.boolean:
                return self.complain(node, f"'not' needs a condition, not {child.kind}")
            return combine("not", [child], boolean=True)
        if not isinstance(node.op, ast.USub) or child.boolean or child.shape == "text":
            return self.complain(node, "only 'not' and a minus before a number are allowed here")
        if child.op == "number":
            return nodes.number(-float(child.value), child.unit)
        return combine("negative", [child], unit=child.unit)

    def _arithmetic(self, node: ast.BinOp) -> Node:
        sign = _ARITHMETIC.get(type(node.op))
        if sign is None:
            return self.complain(node.right, self._refusal(node.op))
        left, right = self.visit(node.left), self.visit(node.right)
        if "error" in (left.shape, right.shape):
            return ERROR
        for part, child in ((node.left, left), (node.right, right)):
            if child.boolean or child.shape == "text":
                return self.complain(part, f"'{sign}' needs numbers, not {child.kind}")
        if sign in "+-":
            why = mismatch(left.unit, right.unit, None)
            if why:
                return self.complain(node.right, why)
            unit = right.unit if left.unit.literal else left.unit
        else:
            unit = left.unit.times(right.unit, 1 if sign == "*" else -1)
        return self._fold(node, sign, left, right, unit)

    def _fold(self, node: ast.BinOp, sign: str, left: Node, right: Node, unit: Unit) -> Node:
        if not (left.op == right.op == "number"):
            return combine(sign, [left, right], unit=unit)
        if sign == "/" and not right.value:
            return self.complain(node.right, "division by zero")
        return nodes.number(_FOLD[sign](float(left.value), float(right.value)), unit)

    def _comparison(self, node: ast.Compare) -> Node:
        operands = [node.left, *node.comparators]
        checked = [self.visit(operand) for operand in operands]
        if any(child.shape == "error" for child in checked):
            return ERROR
        links = []
        for k, sign in enumerate(node.ops):
            links.append(self._link(operands[k + 1], _COMPARISON.get(type(sign)), checked[k], checked[k + 1]))
        if any(link.shape == "error" for link in links):
            return ERROR
        return links[0] if len(links) == 1 else combine("and", links, boolean=True)

    def _link(self, place: ast.expr, sign: str | None, left: Node, right: Node) -> Node:
        if sign is None:
            return self.complain(place, "'in' and 'is' are not part of the rule language")
        for child in (left, right):
            if child.boolean or child.shape == "text":
                return self.complain(place, f"'{sign}' compares numbers, not {child.kind}")
        literal = next((float(c.value) for c in (left, right) if c.op == "number" and c.unit.literal), None)
        why = mismatch(left.unit, right.unit, literal)
        if why:
            return self.complain(place, why)
        return combine(sign, [left, right], boolean=True)


def metric_node(metric: catalog.Metric) -> Node:
    """The series of a metric of the catalog."""
    return Node(
        "metric",
        f"{metric.scope}:{metric.name}",
        "series",
        NAMED[metric.unit],
        value=metric.name,
        options={"scope": metric.scope, "kind": metric.kind},
        cost=1,
    )


def combine(op: str, children: list[Node], *, boolean: bool = False, unit: Unit = NUMBER) -> Node:
    """A node for an operation done value by value."""
    if any(child.shape == "error" for child in children):
        return ERROR
    shapes = {child.shape for child in children}
    windowed = any(child.windowed for child in children) or {"series", "window"} <= shapes
    shape: nodes.Shape = "series" if "series" in shapes else "window" if "window" in shapes else "const"
    return Node(
        op,
        f"({f' {op} '.join(child.key for child in children)})"
        if len(children) > 1
        else f"{op}({children[0].key})",
        shape,
        unit,
        boolean,
        tuple(children),
        reach=max(child.reach for child in children if "series" not in shapes or child.shape == "series"),
        lag=max(child.lag for child in children),
        cost=1 + sum(child.cost for child in children),
        windowed=windowed,
    )
