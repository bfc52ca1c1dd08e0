"""`gpudiag oom FILE|-`: which kind of out-of-memory it was, with its numbers and the ladder of what to do."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import BinaryIO

import click

from gpudiag.cli.language import speaks
from gpudiag.cli.messages import ENGLISH, Speaker, Words
from gpudiag.cli.render import labels
from gpudiag.cli.render.columns import aligned
from gpudiag.errors import NotFoundError
from gpudiag.rules.oom import EXPLANATIONS, LADDERS, Kind, OomMessage, fitting_share, read_stream


@click.command("oom")
@click.argument("log", type=click.File("rb", lazy=False))
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document; numbers the message lacks are null."
)
@speaks
def command(log: BinaryIO, as_json: bool, words: Words) -> None:
    """Explain the out-of-memory messages in the training log LOG (- reads standard input)."""
    from gpudiag.cli.progress import busy

    with busy(words("reading {file}", file=getattr(log, "name", "-"))):
        messages = read_stream(log)
    if as_json:
        document = {"schema_version": 1, "messages": [asdict(message) for message in messages]}
        click.echo(json.dumps(document, indent=2))
    elif messages:
        click.echo(render(messages, words))
    if not messages:
        raise NotFoundError(f"{log.name}: no out-of-memory message found")


def render(messages: list[OomMessage], words: Speaker = ENGLISH) -> str:
    """One paragraph per kind and GPU, the first message of each with its numbers."""
    seen: Counter[tuple[Kind, int | None]] = Counter()
    for message in messages:
        seen[message.kind, message.device] += message.told
    first = {(message.kind, message.device): message for message in reversed(messages)}
    return "\n\n".join(_paragraph(first[key], count, words) for key, count in seen.items())


def _paragraph(message: OomMessage, count: int, words: Speaker) -> str:
    lines = [_heading(message, count, words), f"  {words(EXPLANATIONS[message.kind])}"]
    numbers = [
        f"{words(name)} {size(value)}"
        for name in labels.OOM_NUMBERS
        if (value := getattr(message, f"{name}_bytes")) is not None
    ]
    if numbers:
        lines.append("  " + words(", ").join(numbers))
    if message.victim:
        lines.append("  " + _victim(message, words))
    rows = []
    if (share := fitting_share(message)) is not None:
        fits = words("about {share} of the present micro-batch, by these numbers", share=f"{share:.0%}")
        rows.append((words("fits"), fits))
    first, *others = LADDERS[message.kind]
    rows.append((words(labels.TIERS["quick"]), words(first.text)))
    rows += [
        (words(labels.TIERS["deep" if one.tier == "deep" else "medium"]), words(one.text)) for one in others
    ]
    return "\n".join([*lines, *(f"  {line}" for line in aligned(rows))])


def _heading(message: OomMessage, count: int, words: Speaker) -> str:
    where = [words("line {number}", number=str(message.text_line))]
    where += [f"GPU {message.device}"] if message.device is not None else []
    where += [words("{count} times", count=str(count))] if count > 1 else []
    return words(
        "{kind} ({where})", kind=words(labels.OOM_KINDS[message.kind]), where=words(", ").join(where)
    )


def _victim(message: OomMessage, words: Speaker) -> str:
    killed = words("killed {process} ({pid})", process=str(message.victim), pid=str(message.victim_pid))
    held = message.victim_resident_bytes
    return words("{killed}, {size} resident", killed=killed, size=size(held)) if held else killed


def size(value: float) -> str:
    """Bytes in the unit that PyTorch's own messages use."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
