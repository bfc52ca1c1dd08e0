"""The rules and the functions of their language as pages of the manual, written from the rules themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpudiag.rules.functions import DEVICE_CONSTANTS, FUNCTIONS, MASKS, Function
from gpudiag.rules.ruleset import Rule, RuleSet
from gpudiag.rules.units import CONSTANTS, format_duration, format_quantity

_INTRO = """\
# Rules

Every built-in rule: what it says, the cause it stands for, why the condition means that, what it measures, and what it
tells people to do. Numbers in braces are measured when the finding is made. Stable rules are on; `incubating` ones have
weaker evidence and are off until a rule file switches them on (`maturity: stable` under `override`). The language
is in [rule-language.md](rule-language.md). This page is written from `rules/builtin/*.yaml`.
"""


def rules_page(ruleset: RuleSet) -> str:
    """`docs/rules.md`."""
    parts = [_INTRO]
    topic = ""
    for rule in sorted(ruleset, key=lambda rule: rule.id):
        if rule.id.partition("/")[0] != topic:
            topic = rule.id.partition("/")[0]
            parts.append(f"## {topic}\n")
        parts.append(_rule(rule))
    return "\n".join(parts)


def _rule(rule: Rule) -> str:
    facts = [
        (
            "severity",
            rule.severity + (f", critical when {_code(rule.texts['critical'])}" if rule.critical else ""),
        ),
        ("maturity", rule.maturity),
        ("looks at", _looks_at(rule)),
        ("cause", _code(rule.cause) if rule.cause else "none: it costs no GPU time by itself"),
        (
            "needs",
            ", ".join(" or ".join(_code(name) for _, name in group) for group in rule.requires) or "nothing",
        ),
        ("better with", ", ".join(_code(name) for _, name in rule.prefers)),
        ("explains", ", ".join(_code(other) for other in rule.explains)),
        (
            "thresholds",
            ", ".join(f"{_code(name)} {format_quantity(*value)}" for name, value in rule.params.items()),
        ),
        ("evidence", ", ".join(_code(name) for name, _ in rule.evidence)),
    ]
    lines = [f"### {rule.id}\n", _marked(rule.summary), "", rule.why, ""]
    lines += [f"- **{name}**: {text}" for name, text in facts if text]
    lines += [f"- **not when** {excuse.because}" for excuse in rule.excuses]
    lines += ["", "Action:", ""]
    lines += [f"- *{hint.tier}*: {_marked(hint.text)}" for hint in rule.hints]
    return "\n".join([*lines, ""])


def _looks_at(rule: Rule) -> str:
    parts = [f"each {rule.scope}, windows of {format_duration(rule.window)}"]
    if rule.phases:
        parts.append("phases " + ", ".join(rule.phases))
    if rule.hold:
        parts.append(f"for {format_duration(rule.hold)}")
    if rule.min_age:
        parts.append(f"in jobs older than {format_duration(rule.min_age)}")
    if rule.unless_tags:
        parts.append(f"not jobs tagged {' or '.join(rule.unless_tags)}")
    return "; ".join(parts)


def _marked(text: str) -> str:
    """Placeholders as code."""
    return re.sub(r"\{(\w+)\}", r"`{\1}`", text)


def _code(text: str) -> str:
    return f"`{text}`"


def functions_tables() -> str:
    """The functions, one table for each kind."""
    kinds = (
        "From a series to a series",
        "From a series to a value per evaluation",
        "Comparing GPUs, and facts of the job",
        "Between values",
    )
    parts = []
    for kind, title in enumerate(kinds):
        rows = [
            (_code(_signature(f)), f.summary, _code(f.example))
            for f in FUNCTIONS.values()
            if _kind(f) == kind
        ]
        parts.append(f"### {title}\n\n{_table(('function', 'gives', 'example'), rows)}")
    return "\n".join(parts)


def _kind(function: Function) -> int:
    """Which of the tables a function belongs in."""
    if function.gives == "series":
        return 0
    return 1 if function.over else 2 if function.group else 3


def _signature(function: Function) -> str:
    shown = []
    for parameter in function.parameters:
        default = "" if parameter.default is None else f"={parameter.default:g}"
        shown.append(f"{parameter.name}{', ...' if parameter.repeated else ''}{default}")
    if function.over:
        shown.append("over=window")
    return f"{function.name}({', '.join(shown)})"


def names_tables() -> str:
    """Units, device constants and bit masks that expressions may name."""
    units = [(_code(name), f"{value:g} {unit}") for name, (value, unit) in CONSTANTS.items()]
    devices = [(_code(name), f"{summary} ({unit})") for name, (unit, summary) in DEVICE_CONSTANTS.items()]
    masks = [(_code(name), f"0x{bit:02x}") for name, bit in MASKS.items()]
    return "\n".join(_table(("name", "is"), rows) for rows in (units, devices, masks))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
