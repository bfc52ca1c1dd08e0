"""Takes typed fields out of one mapping of a document and remembers what is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection

from gpudiag.rules.document import Document, Mapping, Place, Scalar, Sequence, Value
from gpudiag.rules.node import ERROR, Node
from gpudiag.rules.units import Unit, duration, quantity

LONGEST_TEXT = 2000


class Reading:
    """Fields of `entry`; every getter gives `None` (or empty) after reporting a mistake."""

    def __init__(self, document: Document, entry: Mapping) -> None:
        self.document = document
        self.entry = entry
        self.ok = True

    def complain(self, place: Place, message: str, offset: int = 0) -> None:
        """Report a mistake; the entry is not usable."""
        self.ok = False
        self.document.complain(place, message, offset)

    def only(self, known: Collection[str]) -> None:
        """Report every key that is none of `known`."""
        for key, scalar in self.entry.keys.items():
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                self.complain(
                    scalar.place, f"unknown key '{key}'" + (f"; did you mean '{close[0]}'?" if close else "")
                )

    def need(self, keys: Collection[str]) -> None:
        """Report every key that is not there."""
        for key in keys:
            if key not in self.entry.items:
                self.complain(self.entry.place, f"'{key}' is missing")

    def value(self, key: str) -> Value | None:
        """The value as it stands in the file."""
        return self.entry.items.get(key)

    def text(self, key: str) -> str:
        """A single text."""
        value = self.value(key)
        return "" if value is None else self.as_text(value, key)

    def as_text(self, value: Value, key: str) -> str:
        """`value` as text; `key` is for the message."""
        if not isinstance(value, Scalar):
            self.complain(value.place, f"'{key}' must be text")
            return ""
        if not value.text.strip():
            self.complain(value.place, f"'{key}' is empty")
        if len(value.text) > LONGEST_TEXT:
            self.complain(value.place, f"'{key}' is longer than {LONGEST_TEXT} characters")
            return ""
        return " ".join(value.text.split())

    def choice(self, key: str, allowed: Collection[str], default: str) -> str:
        """One word of `allowed`."""
        if key not in self.entry.items:
            return default
        text = self.text(key)
        if text and text not in allowed:
            close = difflib.get_close_matches(text, allowed, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else f": one of {', '.join(allowed)}"
            self.complain(self.entry.items[key].place, f"'{text}' is no {key}{hint}")
            return default
        return text or default

    def words(self, key: str, allowed: Collection[str] = ()) -> tuple[str, ...]:
        """A list of words, each of `allowed` unless that is empty."""
        return tuple(text for text, _ in self.word_places(key, allowed))

    def word_places(self, key: str, allowed: Collection[str] = ()) -> list[tuple[str, Place]]:
        """As `words`, with the place of each."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, Sequence):
            self.complain(
                value.place, f"'{key}' must be a list, such as [{', '.join(list(allowed)[:2]) or 'a, b'}]"
            )
            return []
        found = [(self.as_text(item, key), item.place) for item in value.items]
        for text, place in found:
            if allowed and text and text not in allowed:
                close = difflib.get_close_matches(text, allowed, n=1)
                self.complain(
                    place, f"unknown {key} '{text}'" + (f"; did you mean '{close[0]}'?" if close else "")
                )
        return found

    def seconds(
        self, key: str, default: int, *, least: int = 0, most: int = 7 * 86400, multiple: int = 1
    ) -> int:
        """A duration such as `5m`."""
        value = self.value(key)
        if value is None:
            return default
        seconds = duration(value.text) if isinstance(value, Scalar) else None
        if seconds is None:
            self.complain(value.place, f"'{key}' must be a duration such as 90s, 5m or 1h")
            return default
        if not least <= seconds <= most or seconds % multiple:
            self.complain(
                value.place, f"'{key}' must lie between {least}s and {most}s, in steps of {multiple}s"
            )
            return default
        return seconds

    def ratio(self, key: str, default: float) -> float:
        """A share between 0 and 1, or a percentage."""
        value = self.value(key)
        if value is None:
            return default
        parsed = quantity(value.text) if isinstance(value, Scalar) else None
        if parsed is None or not 0 <= parsed[0] <= 1:
            self.complain(value.place, f"'{key}' must lie between 0 and 1")
            return default
        return parsed[0]

    def flag(self, key: str, default: bool) -> bool:
        """`true` or `false`."""
        return self.choice(key, ("true", "false"), str(default).lower()) == "true"

    def quantities(self, key: str) -> dict[str, tuple[float, Unit, Place]]:
        """Named numbers with units."""
        value = self.value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.complain(value.place, f"'{key}' must be names and numbers")
            return {}
        found = {}
        for name, item in value.items.items():
            parsed = quantity(item.text) if isinstance(item, Scalar) else None
            if parsed is None:
                self.complain(item.place, f"'{name}' must be a number such as 0.5, 30s, 2GiB, 85C or 10%")
            else:
                found[name] = (*parsed, item.place)
        return found

    def entries(self, key: str) -> list[Reading]:
        """A list of mappings."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, Sequence):
            self.complain(value.place, f"'{key}' must be a list")
            return []
        for item in value.items:
            if not isinstance(item, Mapping):
                self.complain(item.place, f"an entry of '{key}' must be keys and values")
        return [Reading(self.document, item) for item in value.items if isinstance(item, Mapping)]

    def expression(
        self, value: Value | None, key: str, parse: Callable[[str, Callable[[str, int], None]], Node]
    ) -> Node | None:
        """`value` read by `parse(text, complain)`; None when there is none or it is wrong."""
        if value is None:
            return None
        if not isinstance(value, Scalar):
            self.complain(value.place, f"'{key}' must be an expression")
            return None
        place, lead = value.place, 0 if value.plain else _lead(self.document.text, value.place)
        before = len(self.document.problems)
        node = parse(value.text, lambda message, offset: self.complain(place, message, offset + lead))
        return None if node is ERROR or len(self.document.problems) > before else node


def _lead(text: str, place: Place) -> int:
    """Visible characters before the content of a quoted or block scalar: the quote, or `>-`."""
    raw = text[place.start : place.end]
    if raw[:1] in "'\"":
        return 1
    head = raw.split("\n", 1)[0]
    return sum(1 for character in head if not character.isspace())
