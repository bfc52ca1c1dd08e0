"""Text for people that can still be said in another language after its numbers were filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce


class Message(str):
    """English text that remembers its template (`msgid`) and what was filled in.

    It is an ordinary string for everybody who only stores or prints it; a renderer looks `msgid` up in a
    catalogue and fills `arguments` (already formatted text, or other messages) in again.
    """

    __slots__ = ("arguments", "msgid")

    msgid: str
    arguments: Mapping[str, str]

    def __new__(cls, msgid: str, /, **arguments: str) -> Message:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Fill `{name}` placeholders; a template without arguments is taken literally."""
        text = str.__new__(cls, msgid.format_map(arguments) if arguments else msgid)
        text.msgid = msgid
        text.arguments = arguments
        return text

    def __getnewargs_ex__(
        self,
    ) -> tuple[tuple[str], dict[str, str]]:  # copying and pickling keep the template
        return (self.msgid,), dict(self.arguments)


NOTHING = Message("")


def joined(messages: Sequence[Message], link: str) -> Message:
    """All of them as one, two at a time by the template `link`, such as `{one}; {other}`."""
    return reduce(lambda one, other: Message(link, one=one, other=other), messages)
