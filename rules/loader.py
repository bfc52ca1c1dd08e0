"""Reads rule files into a `RuleSet`: every mistake of every file at once, each with file, line and column."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gpudiag import __version__
from gpudiag.errors import InputError, LocatedError, Problem
from gpudiag.rules import document
from gpudiag.rules.document import Document, Mapping, Scalar, Value
from gpudiag.rules.override import Override, read_override
from gpudiag.rules.reading import Reading
from gpudiag.rules.rule_reader import RuleReader
from gpudiag.rules.ruleset import Rule, RuleSet

VERSION = "1"
TOP_KEYS = ("gpudiag", "rules", "override", "tests")


def builtin() -> RuleSet:
    """The rules that come with gpudiag."""
    return load(())


@cache
def _builtin_documents() -> tuple[tuple[str, str], ...]:
    folder = resources.files("gpudiag.rules") / "builtin"
    files = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda e: e.name
    )
    return tuple((f"builtin/{entry.name}", entry.read_text(encoding="utf-8")) for entry in files)


def load(paths: Iterable[Path | str], *, with_builtin: bool = True) -> RuleSet:
    """Built-in rules, then those of `paths` (files, or folders of *.yaml) in order: a later id replaces an earlier one.

    `override` entries change what was read so far. Raises `LocatedError` with all mistakes, `InputError` when a
    path cannot be read.
    """
    loader = _Loader()
    if with_builtin:
        for name, text in _builtin_documents():
            loader.add(document.parse(name, text))
    for path in files([Path(path) for path in paths]):
        loader.add_file(path)
    return loader.finish()


def check(paths: Iterable[Path | str]) -> RuleSet:
    """As `load`, giving only the rules that the files themselves define."""
    names = [str(file) for file in files([Path(path) for path in paths])]
    whole = load(names)
    return RuleSet({rule.id: rule for rule in whole if rule.file in names})


def files(paths: Iterable[Path]) -> list[Path]:
    """The rule files of `paths`, folders looked into; raises `InputError` for one that is not there."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path}: no such rule file or folder")
    return found


class _Loader:
    """Gathers rules and problems over several files."""

    def __init__(self) -> None:
        self._rules: dict[str, tuple[Rule, RuleReader]] = {}
        self._fields: dict[str, dict[str, Any]] = {}
        self._problems: list[Problem] = []

    def add_file(self, path: Path) -> None:
        try:
            self.add(document.read(path))
        except LocatedError as error:
            self._problems += error.problems

    def add(self, read: Document) -> None:
        """Take in one file."""
        self._read(read)
        self._problems += sorted(read.problems, key=lambda p: (p.line, p.column))

    def _read(self, read: Document) -> None:
        root = read.root
        if not isinstance(root, Mapping) or "gpudiag" not in root.items:
            place = root.place if root else document.Place(0, 0, 0, 0)
            read.complain(place, "not a rule file: it must begin with 'gpudiag: 1'")
            return
        version = root.items["gpudiag"]
        if not isinstance(version, Scalar) or version.text != VERSION:
            read.complain(version.place, f"this program reads version {VERSION} of rule files")
            return
        for key, scalar in root.keys.items():
            if key not in TOP_KEYS:
                read.complain(scalar.place, f"unknown key '{key}'{meant(key, TOP_KEYS)}")
        for entry in self._entries(read, root, "rules"):
            self._rule(read, entry)
        for entry in self._entries(read, root, "override"):
            self._override(read, entry)

    def _entries(self, read: Document, root: Mapping, key: str) -> list[Mapping]:
        value = root.items.get(key)
        if value is None:
            return []
        if not isinstance(value, document.Sequence):
            read.complain(value.place, f"'{key}' must be a list")
            return []
        for item in value.items:
            if not isinstance(item, Mapping):
                read.complain(item.place, f"an entry of '{key}' must be keys and values")
        return [item for item in value.items if isinstance(item, Mapping)]

    def _rule(self, read: Document, entry: Mapping) -> None:
        reader = RuleReader(Reading(read, entry))
        rule = reader.rule()
        if rule is None:
            return
        before = self._rules.get(rule.id)
        if before is not None and before[0].file == read.name:
            read.complain(
                entry.keys["id"].place, f"rule '{rule.id}' is defined twice; first in line {before[0].line}"
            )
        self._rules[rule.id] = replace(rule, version=f"{__version__}:{read.digest}"), reader
        self._fields.pop(rule.id, None)

    def _override(self, read: Document, entry: Mapping) -> None:
        override = read_override(Reading(read, entry))
        if override is None:
            return
        known = self._rules.get(override.id)
        if known is None:
            place: Value = entry.items["id"]
            read.complain(
                place.place, f"no rule '{override.id}' to override{meant(override.id, self._rules)}"
            )
            return
        self._rules[override.id] = self._changed(read, known, override), known[1]

    def _changed(self, read: Document, known: tuple[Rule, RuleReader], override: Override) -> Rule:
        rule, reader = known
        for name, (_, unit, place) in override.params.items():
            if name not in rule.params:
                read.complain(place, f"rule '{rule.id}' has no parameter '{name}'{meant(name, rule.params)}")
            elif not unit.literal and unit.dimensions != rule.params[name][1].dimensions:
                read.complain(place, f"parameter '{name}' is in {rule.params[name][1]}, not in {unit}")
        params = {
            name: (override.params[name][0] if name in override.params else value, unit)
            for name, (value, unit) in rule.params.items()
        }
        fields = self._fields.setdefault(rule.id, {})
        fields.update(override.fields)
        window = override.fields.get("window", rule.window)
        again = override.params or window != rule.window
        changed = reader.changed(rule, params, window) if again else rule
        return replace(changed, **fields, version=f"{rule.version}+{read.digest}")

    def finish(self) -> RuleSet:
        """The rules, or all problems."""
        if self._problems:
            raise LocatedError(self._problems)
        return RuleSet({rule_id: rule for rule_id, (rule, _) in self._rules.items()})


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
