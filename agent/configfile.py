"""Reads the configuration: defaults, the file, conf.d, environment, flags; later ones win, all mistakes are told at once."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpudiag.agent.config import Config, Key, keys, sections
from gpudiag.agent.values import duration, positive_duration
from gpudiag.errors import InputError, LocatedError, Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/gpudiag/gpudiag.toml")
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
_ASSIGNMENT = re.compile(r"\s*([\w.\"'-]+)\s*=")
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True)
class _Given:
    """A value somebody wrote: its key as written, and where."""

    path: str
    value: object
    file: str
    line: int = 0
    column: int = 0
    text: str = ""

    def problem(self, message: str) -> Problem:
        return Problem(self.file, self.line, self.column, message, self.text)

    @property
    def origin(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """The merged configuration.

    `path` must exist when given; the default file need not. `conf.d/*.toml` beside it are read after it.
    `flags` maps `section.key` to text. Raises `LocatedError` with every mistake, `InputError` for a missing file.
    """
    problems: list[Problem] = []
    given: list[_Given] = []
    for file in _files(path):
        given += _read(file, problems)
    given += _from_environment(environ or {})
    given += [_Given(name, value, "command line") for name, value in (flags or {}).items()]
    config = _merge(given, problems)
    if problems:
        raise LocatedError(problems)
    return config


def dump(config: Config) -> str:
    """The configuration as TOML, each value with the place it comes from; secrets are not shown."""
    lines = []
    for section in sections():
        lines.append(f"[{section}]")
        for item in (item for item in keys() if item.section == section):
            lines.append(
                f"{item.name} = {shown(item, _value(config, item))}  # {config.origins.get(item.path, 'default')}"
            )
        lines.append("")
    return "\n".join(lines)


def changed(before: Config, after: Config) -> list[Key]:
    """The keys whose values differ."""
    return [item for item in keys() if _value(before, item) != _value(after, item)]


def _value(config: Config, item: Key) -> Any:
    return getattr(getattr(config, item.section), item.name)


def shown(item: Key, value: Any) -> str:
    """A value as it is written in the file; a secret only as being set."""
    if item.secret and value:
        return '"(set)"'
    if item.parse in (duration, positive_duration):
        if value >= 86_400 and value % 86_400 == 0:
            return f'"{value / 86_400:g}d"'
        return f'"{value * 1000:g}ms"' if 0 < value < 1 else f'"{value:g}s"'
    return _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _files(path: Path | None) -> Iterator[Path]:
    if path is not None and not path.is_file():
        raise InputError(f"{path}: no such configuration file")
    main = path or DEFAULT_PATH
    if main.is_file():
        yield main
    yield from sorted((main.parent / "conf.d").glob("*.toml"))


def _read(file: Path, problems: list[Problem]) -> list[_Given]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot read the configuration: {error}") from None
    lines = content.splitlines()
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        problems.append(_syntax_problem(file, str(error), lines))
        return []
    places = _places(lines)
    return [_locate(name, value, file, lines, places) for name, value in _flatten(document)]


def _syntax_problem(file: Path, message: str, lines: list[str]) -> Problem:
    place = _PLACE.search(message)
    line = int(place[1]) if place and place[1] else max(len(lines), 1)
    column = int(place[2]) if place and place[2] else 1
    shown = lines[line - 1] if line <= len(lines) else ""
    return Problem(str(file), line, column, f"not valid TOML: {_PLACE.sub('', message)}", shown)


def _flatten(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for section, body in document.items():
        if not isinstance(body, Mapping) or section not in sections():
            yield section, body
            continue
        for name, value in body.items():
            yield f"{section}.{name}", value


def _places(lines: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Line and column of each `section.key`, and of each `[section]`."""
    places: dict[str, tuple[int, int]] = {}
    table = ""
    for number, line in enumerate(lines, 1):
        if match := _HEADER.match(line):
            table = match[1].strip()
            places.setdefault(table, (number, match.start(1) + 1))
        elif match := _ASSIGNMENT.match(line):
            name = match[1].replace('"', "").replace("'", "")
            full = f"{table}.{name}" if table else name
            places.setdefault(full, (number, match.start(1) + 1))
            places.setdefault(full.split(".")[0], (number, match.start(1) + 1))
    return places


def _locate(
    name: str, value: object, file: Path, lines: list[str], places: Mapping[str, tuple[int, int]]
) -> _Given:
    line, column = places.get(name) or places.get(name.split(".")[0]) or (1, 1)
    return _Given(name, value, str(file), line, column, lines[line - 1] if lines else "")


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    if environ.get("GPUDIAG_DB"):
        yield _Given("storage.url", environ["GPUDIAG_DB"], "environment variable GPUDIAG_DB")
    for name, value in sorted(environ.items()):
        if name.startswith("GPUDIAG_") and "__" in name:
            section, _, item = name.removeprefix("GPUDIAG_").lower().partition("__")
            yield _Given(f"{section}.{item}", value, f"environment variable {name}")


def _merge(given: Iterable[_Given], problems: list[Problem]) -> Config:
    known = {item.path: item for item in keys()}
    chosen: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    origins: dict[str, str] = {}
    for one in given:
        item = known.get(one.path)
        if item is None:
            problems.append(one.problem(_unknown(one.path, known)))
            continue
        try:
            chosen[item.section][item.name] = item.parse(one.value)
        except ValueError as error:
            problems.append(one.problem(f"{item.path}: {error}, found {one.value!r}"))
            continue
        origins[item.path] = one.origin
    config = Config(origins=origins)
    return replace(
        config, **{name: replace(getattr(config, name), **found) for name, found in chosen.items()}
    )


def _unknown(path: str, known: Mapping[str, Key]) -> str:
    section, _, _ = path.partition(".")
    if section not in sections():
        return _suggest(f"unknown section [{section}]", section, sections())
    return _suggest(f"unknown key {path}", path, known)


def _suggest(message: str, word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(words), 1)
    return f"{message}; did you mean {close[0]}?" if close else f"{message}; see docs/agent.md"
