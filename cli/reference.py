"""Reference made from the code: docs/cli.md, the man page, and the tables of the README.

`python -m gpudiag.cli.reference man` prints the man page, `... markdown` docs/cli.md.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import gpudiag
from gpudiag.cli.main import COMMANDS

EXIT_CODES = (
    (0, "all is well"),
    (1, "an error"),
    (2, "a mistake in the arguments, or in a file that a person wrote"),
    (3, "findings at or above --fail-on"),
    (4, "no such job, or no data for it"),
    (5, "the store or the driver cannot be reached"),
    (130, "interrupted by Ctrl-C"),
)
VARIABLES = (
    ("GPUDIAG_DB", "database URL, unless --db says otherwise"),
    ("GPUDIAG_SECTION__KEY", "any key of the configuration, such as GPUDIAG_AGENT__INTERVAL=2s"),
    ("NO_COLOR, FORCE_COLOR", "no colour ever, colour even when not on a terminal"),
)
FILES = (
    ("/etc/gpudiag/gpudiag.toml", "configuration of the agent; conf.d/*.toml beside it is read after it"),
    ("/var/lib/gpudiag/gpudiag.db", "database of the service"),
    ("~/.local/share/gpudiag/gpudiag.db", "database when there is no service"),
)


@dataclass(frozen=True)
class Entry:
    """A command as it is documented: path (`rules check`), usage, help paragraphs, arguments and options."""

    path: str
    usage: str
    paragraphs: tuple[str, ...]
    options: tuple[tuple[str, str], ...]


def entries() -> Iterator[Entry]:
    """Every command and subcommand, by name."""
    for name, (module, _) in sorted(COMMANDS.items()):
        yield from _walk(name, importlib.import_module(module).command)


def _walk(path: str, command: click.Command) -> Iterator[Entry]:
    if command.hidden:
        return
    yield Entry(path, _usage(path, command), _paragraphs(command.help or ""), tuple(_options(command)))
    if isinstance(command, click.Group):
        for name, subcommand in sorted(command.commands.items()):
            yield from _walk(f"{path} {name}", subcommand)


def _usage(path: str, command: click.Command) -> str:
    words = ["gpudiag", path]
    if any(isinstance(parameter, click.Option) for parameter in command.params):
        words.append("[OPTIONS]")
    words += [_argument(parameter) for parameter in command.params if isinstance(parameter, click.Argument)]
    if isinstance(command, click.Group):
        words.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
    return " ".join(words)


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or str(argument.name).upper()
    name += "..." if argument.nargs != 1 else ""
    return name if argument.required else f"[{name}]"


def _paragraphs(help: str) -> tuple[str, ...]:
    text = inspect.cleandoc(help).replace("\b\n", "")
    return tuple(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


def _options(command: click.Command) -> Iterator[tuple[str, str]]:
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            yield _option_names(option), _option_help(option)


def _option_names(option: click.Option) -> str:
    names = ", ".join(option.opts)
    if option.secondary_opts:
        return f"{names} / {', '.join(option.secondary_opts)}"
    return names if option.is_flag or option.count else f"{names} {_value(option)}"


def _value(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.split()[0].upper()


def _option_help(option: click.Option) -> str:
    notes = [] if not option.multiple else ["repeatable"]
    if option.required:
        notes.append("required")
    if isinstance(option.default, int | float | str) and option.default not in (False, True, ""):
        notes.append(f"default {option.default}")
    return " ".join(filter(None, (option.help or "", f"({', '.join(notes)})" if notes else "")))


def markdown() -> str:
    """The whole of docs/cli.md."""
    found = list(entries())
    lines = [
        "# Command line",
        "",
        "Made from the commands themselves by `make golden`. `gpudiag COMMAND --help` says the same.",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`{name}`](#gpudiag-{name}) | {text} |" for name, (_, text) in sorted(COMMANDS.items())),
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES),
        "",
        "`gpudiag check` is for schedulers and uses their codes: 0 healthy, 1 warning, 2 critical.",
        "",
        "## Environment",
        "",
        "| variable | meaning |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in VARIABLES),
    ]
    for entry in found:
        lines += ["", *_section(entry)]
    return "\n".join(lines) + "\n"


def _section(entry: Entry) -> Iterator[str]:
    yield "#" * (2 + entry.path.count(" ")) + f" gpudiag {entry.path}"
    yield from ("", f"    {entry.usage}")
    for paragraph in entry.paragraphs:
        yield from ("", paragraph)
    if entry.options:
        yield from ("", "| option | meaning |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_cell(help)} |" for names, help in entry.options)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def manual() -> str:
    """The man page, gpudiag(1), in the man macros."""
    lines = [
        f'.TH GPUDIAG 1 "" "gpudiag {gpudiag.__version__}" "User Commands"',
        ".SH NAME",
        "gpudiag \\- where the GPU time of a job went, what proves it, what to change first",
        ".SH SYNOPSIS",
        ".B gpudiag",
        ".I COMMAND",
        "[\\fIOPTIONS\\fR]",
        ".SH COMMANDS",
    ]
    for entry in entries():
        lines += _manual_section(entry)
    lines += [".SH EXIT STATUS", *_definitions((str(code), meaning) for code, meaning in EXIT_CODES)]
    lines += [".SH ENVIRONMENT", *_definitions(VARIABLES), ".SH FILES", *_definitions(FILES)]
    return "\n".join(lines) + "\n"


def _manual_section(entry: Entry) -> Iterator[str]:
    yield f".SS {_roff(entry.usage)}"
    for at, paragraph in enumerate(entry.paragraphs):
        yield from ((".PP",) if at else ())
        yield _roff(paragraph)
    yield from _definitions(entry.options)


def _definitions(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, text in items:
        yield from (".TP", f".B {_roff(term)}", _roff(text))


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def collectors_table() -> str:
    """The collectors, one file each: name and what it reads, from their docstrings."""
    folder = Path(gpudiag.__file__).parent / "agent" / "collectors"
    rows = [row for path in sorted(folder.glob("*.py")) for row in _collectors(path)]
    return _table(("collector", "reads"), rows)


def _collectors(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (name := _class_name(node)):
            yield f"[`{name}`](agent/collectors/{path.name})", summary


def _class_name(node: ast.ClassDef) -> str:
    for statement in node.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id == "name"
            and isinstance(statement.value, ast.Constant)
        ):
            return str(statement.value.value)
    return ""


def rules_table() -> str:
    """The built-in rules: id, severity, maturity, what each says."""
    from gpudiag.rules.loader import builtin

    rows = [
        (f"`{rule.id}`", rule.severity, rule.maturity, re.sub(r"\{\w+\}", "…", rule.summary))
        for rule in sorted(builtin(), key=lambda rule: rule.id)
    ]
    return _table(("rule", "severity", "maturity", "says"), rows)


def pages_table(folder: Path) -> str:
    """The pages of the manual: title, and the first sentence of prose."""
    rows = []
    for path in sorted(folder.glob("*.md")):
        if path.name != "index.md":
            title, _, rest = path.read_text(encoding="utf-8").partition("\n")
            rows.append((f"[{path.name}]({path.name})", title.lstrip("# "), _first_sentence(rest)))
    return _table(("page", "title", "begins"), rows)


def _first_sentence(text: str) -> str:
    for paragraph in text.split("\n\n"):
        words = paragraph.strip("\n")
        if words and not words.startswith((" ", "#", "|", "<", "`" * 3)):
            return re.split(r"(?<=[.:])\s", " ".join(words.split()))[0].rstrip(":")
    return ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else "markdown"
    print(manual() if wanted == "man" else markdown(), end="")
