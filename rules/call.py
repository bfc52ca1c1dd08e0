"""Checks a function call of the rule language against the function's signature."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from dataclasses import dataclass, field

from gpudiag.rules.functions import FUNCTIONS, Function, Parameter
from gpudiag.rules.model import PHASES
from gpudiag.rules.node import ERROR, Node, Option
from gpudiag.rules.units import SECONDS, mismatch

LONGEST_OVER = 7200
SHORTEST_OVER = 10
CHEAP, EXPENSIVE, GROUP = 4, 400, 40

Visit = Callable[[ast.AST], Node]
Report = Callable[[ast.AST, str], Node]

_EXPECTED = {
    "series": "a value per second (a metric)",
    "condition": "a condition per second, such as sm_active_ratio < 0.3",
    "counter": "a counter of the catalog (its name ends in _total)",
    "state": "a state of the catalog",
    "window": "a value per evaluation, such as mean(...)",
    "either": "a value or condition per evaluation, such as mean(...)",
    "truth": "a condition per evaluation, such as mean(...) < 0.3",
    "same": "a value of the same kind as the first",
    "number": "a plain number",
    "seconds": "a constant number of seconds",
    "text": 'text in "quotes"',
}


@dataclass
class _Call:
    """A call while it is being checked."""

    function: Function
    place: ast.Call
    visit: Visit
    report: Report
    children: list[Node] = field(default_factory=list)
    options: dict[str, Option] = field(default_factory=dict)
    failed: bool = False

    def fail(self, place: ast.AST, message: str) -> None:
        self.failed = True
        self.report(place, message)


def check_call(
    place: ast.Call, visit: Visit, visit_gpu: Visit, report: Report, scope: str, window: int
) -> Node:
    """The checked call, or `ERROR` after reporting what is wrong with it.

    `visit_gpu` checks an argument in which names mean the metrics of the job's GPUs.
    """
    if not isinstance(place.func, ast.Name):
        return report(place, "only the functions of the rule language can be called")
    function = FUNCTIONS.get(place.func.id)
    if function is None:
        close = difflib.get_close_matches(place.func.id, FUNCTIONS, n=1)
        return report(
            place, f"unknown function '{place.func.id}'" + (f"; did you mean '{close[0]}'?" if close else "")
        )
    if function.only and function.only != scope:
        return report(place, f"{function.name}() compares GPUs; this rule's scope is {scope}")
    call = _Call(function, place, visit_gpu if function.name.startswith("gpus_") else visit, report)
    _positional(call)
    _keywords(call, window)
    if call.failed:
        return ERROR
    if any(child.shape == "error" for child in call.children):
        return ERROR
    return _node(call)


def _positional(call: _Call) -> None:
    parameters = call.function.parameters
    given = list(call.place.args)
    for k, argument in enumerate(given):
        if k < len(parameters):
            _take(call, parameters[k], argument)
        elif parameters and parameters[-1].repeated:
            _take(call, parameters[-1], argument)
        else:
            call.fail(argument, f"{call.function.name}() takes {_count(parameters)}: {call.function.example}")
            return
    named = {keyword.arg for keyword in call.place.keywords}
    for parameter in parameters[len(given) :]:
        if parameter.name in named or (parameter.repeated and parameter is not parameters[0]):
            continue
        if parameter.default is None:
            call.fail(call.place, f"{call.function.name}() needs '{parameter.name}': {call.function.example}")
        else:
            call.options[parameter.name] = parameter.default


def _count(parameters: tuple[Parameter, ...]) -> str:
    return (
        "no arguments"
        if not parameters
        else f"at most {len(parameters)} argument{'s' * (len(parameters) > 1)}"
    )


def _keywords(call: _Call, window: int) -> None:
    if call.function.over:
        call.options["over"] = float(window)
    for keyword in call.place.keywords:
        parameter = next((p for p in call.function.parameters if p.name == keyword.arg), None)
        if keyword.arg == "over" and call.function.over:
            _over(call, keyword.value)
        elif parameter is None or parameter.takes not in ("number", "seconds"):
            close = difflib.get_close_matches(
                keyword.arg or "**", [p.name for p in call.function.parameters] + ["over"], n=1
            )
            hint = f"; did you mean '{close[0]}'?" if close else ""
            call.fail(keyword.value, f"{call.function.name}() has no option '{keyword.arg}'{hint}")
        else:
            _take(call, parameter, keyword.value)


def _over(call: _Call, place: ast.AST) -> None:
    value = _constant(call, place, "seconds")
    if value is None:
        return
    if not SHORTEST_OVER <= value <= LONGEST_OVER or value % 10:
        call.fail(
            place, f"'over' must be a multiple of 10 s between {SHORTEST_OVER} s and {LONGEST_OVER // 3600} h"
        )
    call.options["over"] = value


def _constant(call: _Call, place: ast.AST, takes: str) -> float | None:
    node = call.visit(place)
    if node.shape == "error":
        call.failed = True
        return None
    if node.op != "number" or (takes == "seconds" and mismatch(node.unit, SECONDS, float(node.value))):
        call.fail(place, f"{_EXPECTED[takes]} was expected here")
        return None
    value = float(node.value)
    if takes == "seconds" and not 0 <= value <= LONGEST_OVER:
        call.fail(place, f"must lie between 0 s and {LONGEST_OVER // 3600} h")
        return None
    return value


def _take(call: _Call, parameter: Parameter, place: ast.AST) -> None:
    if parameter.takes in ("number", "seconds"):
        value = _constant(call, place, parameter.takes)
        if value is not None:
            _set_number(call, parameter, value)
        return
    node = call.visit(place)
    if node.shape == "error":
        call.failed = True
        return
    if parameter.takes == "text":
        _set_text(call, parameter, node, place)
        return
    if not _fits(parameter.takes, node, call.children):
        call.fail(place, f"{call.function.name}() needs {_EXPECTED[parameter.takes]} here, not {node.kind}")
        return
    why = _unit_clash(call, parameter, node)
    if why:
        call.fail(place, why)
        return
    call.children.append(node)


def _set_number(call: _Call, parameter: Parameter, value: float) -> None:
    if parameter.repeated:
        before = call.options.get(parameter.name, ())
        call.options[parameter.name] = (*(before if isinstance(before, tuple) else ()), f"{value:g}")
    else:
        call.options[parameter.name] = value


def _set_text(call: _Call, parameter: Parameter, node: Node, place: ast.AST) -> None:
    if node.shape != "text":
        call.fail(place, f"{_EXPECTED['text']} was expected here")
        return
    value = str(node.value)
    if call.function.name == "phase" and value not in PHASES:
        close = difflib.get_close_matches(value, PHASES, n=1)
        call.fail(place, f"unknown phase '{value}'" + (f"; did you mean '{close[0]}'?" if close else ""))
    elif parameter.repeated:
        before = call.options.get(parameter.name, ())
        call.options[parameter.name] = (*(before if isinstance(before, tuple) else ()), value)
    else:
        call.options[parameter.name] = value


def _fits(takes: str, node: Node, before: list[Node]) -> bool:
    if takes == "series":
        return node.shape == "series" and not node.boolean
    if takes == "condition":
        return node.shape == "series" and node.boolean
    if takes in ("counter", "state"):
        return node.op == "metric" and node.options["kind"] == takes
    if takes == "window":
        return node.shape in ("window", "const") and not node.boolean
    if takes == "truth":
        return node.shape in ("window", "const") and node.boolean
    if takes == "same":
        return node.shape in ("window", "const") and bool(before) and node.boolean == before[0].boolean
    return node.shape in ("window", "const")


def _unit_clash(call: _Call, parameter: Parameter, node: Node) -> str:
    """Arguments that stand beside each other must be in one unit."""
    alike = call.function.name in ("default", "larger", "smaller", "time_to", "batch_growth")
    if not alike or not call.children or node.boolean:
        return ""
    literal = float(node.value) if node.op == "number" and node.unit.literal else None
    return mismatch(call.children[0].unit, node.unit, literal)


def _node(call: _Call) -> Node:
    function, children, options = call.function, call.children, call.options
    numbers = {name: value for name, value in options.items() if isinstance(value, float)}
    over = int(numbers.get("over", 0))
    below = max(
        (child.reach for child in children if child.shape == "series" or not function.over), default=0
    )
    lag = max((child.lag for child in children), default=0)
    series = function.gives == "series"
    windowed = any(child.windowed for child in children)
    expensive = function.expensive or (function.over and windowed)
    own_cost = EXPENSIVE if expensive else GROUP if function.group else CHEAP
    boolean = function.boolean or function.name == "tag"
    if function.name == "default":
        boolean = children[0].boolean
    shape = function.gives
    if function.name == "default" or (
        function.gives == "window" and not function.over and not function.group
    ):
        shape = "const" if all(child.shape == "const" for child in children) else "window"
    return Node(
        "call",
        _key(function.name, children, options),
        shape,
        function.unit([child.unit for child in children]),
        boolean,
        tuple(children),
        function.name,
        options,
        reach=below + over + (int(function.reach(numbers)) if series else 0),
        lag=lag + (int(function.lag(numbers)) if series else 0),
        cost=own_cost + sum(child.cost for child in children),
        windowed=series and windowed,
    )


def _key(name: str, children: list[Node], options: dict[str, Option]) -> str:
    shown = [child.key for child in children]
    shown += [f"{option}={value!r}" for option, value in sorted(options.items())]
    return f"{name}({', '.join(shown)})"
