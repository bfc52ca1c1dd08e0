"""One line of what `gpudiag doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpudiag.message import NOTHING, Message

State = Literal["ok", "missing", "problem"]


@dataclass(frozen=True)
class Item:
    """`ok`: works; `missing`: cannot be measured here, for a reason; `problem`: something a person should mend.

    `area` and `name` are said in the reader's language where they are words of ours.
    """

    area: str
    name: str
    state: State
    text: Message
    remedy: Message = NOTHING
