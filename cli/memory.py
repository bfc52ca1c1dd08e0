"""`gpudiag memory SNAPSHOT`: how a PyTorch memory snapshot is fragmented, and which allocations pin it."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import click

from gpudiag.cli.language import speaks
from gpudiag.cli.messages import ENGLISH, Speaker, Words
from gpudiag.cli.oom import size
from gpudiag.cli.render import labels
from gpudiag.cli.render.columns import aligned
from gpudiag.rules.memory_snapshot import Fragmentation, Pin, Segment, fragmentation, pins
from gpudiag.rules.snapshot_process import load

_TOP = 10


@click.command("memory")
@click.argument("snapshot", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page with a picture of the segments.")  # fmt: skip
@speaks
def command(snapshot: BinaryIO, as_json: bool, html_path: Path | None, words: Words) -> None:
    """Read SNAPSHOT, a file of torch.cuda.memory._dump_snapshot(); it is data only, code in it is refused."""
    from gpudiag.cli.progress import busy

    with busy(words("reading {file}", file=snapshot.name)):
        segments = load(snapshot, snapshot.name)
        rows, sites = fragmentation(segments), pins(segments)
        if html_path:
            html_path.write_text(page(snapshot.name, segments, rows, sites, words), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(document(rows, sites), indent=2))
    else:
        click.echo(render(rows, sites, words))


def document(rows: Sequence[Fragmentation], sites: Sequence[Pin]) -> dict[str, object]:
    """The JSON form; all numbers are bytes except counts and ratios."""
    return {
        "schema_version": 1,
        "reserved_bytes": sum(row.reserved for row in rows),
        "allocated_bytes": sum(row.allocated for row in rows),
        "inactive_split_bytes": sum(row.inactive_split for row in rows),
        "largest_free_bytes": max((row.largest_free for row in rows), default=0),
        "pools": [
            {
                "device": row.device,
                "pool": row.pool,
                "stream": row.stream,
                "segments": row.segments,
                "reserved_bytes": row.reserved,
                "allocated_bytes": row.allocated,
                "inactive_split_bytes": row.inactive_split,
                "largest_free_bytes": row.largest_free,
                "fragmentation_ratio": row.ratio,
            }
            for row in rows
        ],
        "pins": [
            {"where": pin.where, "blocks": pin.blocks, "held_bytes": pin.held, "pinned_bytes": pin.pinned}
            for pin in sites
        ],
    }


def render(rows: Sequence[Fragmentation], sites: Sequence[Pin], words: Speaker = ENGLISH) -> str:
    """Totals, a line per pool, and the sites that pin the most."""
    head = tuple(words(name) for name in labels.POOL_COLUMNS)
    cells = [
        (
            str(row.device),
            words(row.pool),
            str(row.stream),
            str(row.segments),
            size(row.reserved),
            size(row.allocated),
            size(row.inactive_split),
            f"{row.ratio:.0%}",
        )
        for row in rows
    ]
    lines = [_total(rows, words), "", *aligned([(*head, ""), *cells], right=range(2, 8))]
    if sites:
        lines += ["", words("What keeps half-empty segments alive:")]
        pinned = [
            (
                size(pin.pinned),
                words(
                    "pinned by {held} in {blocks} blocks: {where}",
                    held=size(pin.held),
                    blocks=str(pin.blocks),
                    where=words(pin.where),
                ),
            )
            for pin in sites[:_TOP]
        ]
        lines += [f"  {line}" for line in aligned(pinned, right=(0,), gap=1)]
    return "\n".join(lines)


def _total(rows: Sequence[Fragmentation], words: Speaker) -> str:
    reserved, split = sum(row.reserved for row in rows), sum(row.inactive_split for row in rows)
    return words(
        "reserved {reserved}, allocated {allocated}, stuck in split segments {stuck} ({share}), "
        "largest free block {largest}",
        reserved=size(reserved),
        allocated=size(sum(row.allocated for row in rows)),
        stuck=size(split),
        share=f"{split / reserved if reserved else 0:.0%}",
        largest=size(max((row.largest_free for row in rows), default=0)),
    )


_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;color-scheme:light dark}"
    "h2{font-size:1em;margin:1.2em 0 .2em}p{margin:.2em 0}"
    "table{border-collapse:collapse;margin-top:1.5em}td,th{padding:.2em .8em;text-align:right}td:first-child,th:first-child{text-align:left}"
    ".used{fill:#2a78c8;background:#2a78c8}.stuck{fill:#e08a2a;background:#e08a2a}.free{fill:#8887;background:#8887}"
    "i{display:inline-block;width:1em;height:.8em;margin:0 .4em 0 1em}"
    "svg{width:100%;max-width:1400px;height:auto;display:block}text{font:10px system-ui,sans-serif;fill:currentColor}"
)
_WIDTH, _LABEL, _ROW, _BAR = 1000.0, 90, 14, 10
_ROWS_PER_POOL, _ROWS = 40, 600
_THINNEST = 0.4  # a block narrower than that is not seen anyway


def page(
    name: str,
    segments: Sequence[Segment],
    rows: Sequence[Fragmentation],
    sites: Sequence[Pin],
    words: Speaker = ENGLISH,
) -> str:
    """One self-contained page without scripts: each segment a bar, its used blocks filled."""
    table = "".join(
        f"<tr><td>{html.escape(words(pin.where))}</td><td>{size(pin.held)}</td><td>{size(pin.pinned)}</td></tr>"
        for pin in sites[:50]
    )
    heads = "".join(f"<th>{html.escape(words(head))}</th>" for head in labels.PIN_COLUMNS)
    return (
        "<!doctype html><meta charset=utf-8>"
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{html.escape(name)}</title><style>{_STYLE}</style><h1>{html.escape(name)}</h1>"
        f"<pre>{html.escape(render(rows, [], words))}</pre>{picture(segments, rows, words)}"
        f"<table><tr>{heads}</tr>{table}</table>"
    )


def picture(segments: Sequence[Segment], rows: Sequence[Fragmentation], words: Speaker = ENGLISH) -> str:
    """A drawing per pool in the order of `rows`, its longest segments first, each pool with its own scale."""
    pools: dict[tuple[int, str, int], list[Segment]] = defaultdict(list)
    for segment in segments:
        pools[segment.device, str(segment.pool), segment.stream].append(segment)
    drawn, left = [_legend(words)], _ROWS
    for row in rows:
        members = sorted(pools[row.device, str(row.pool), row.stream], key=lambda segment: -segment.size)
        shown = members[: min(_ROWS_PER_POOL, left)]
        left -= len(shown)
        drawn.append(_pool(row, shown, len(members) - len(shown), words))
    return "".join(drawn)


def _legend(words: Speaker) -> str:
    kinds = {
        "used": words("in use"),
        "stuck": words("stuck: free, but what it lies in is in use"),
        "free": words("free, and can go back to the driver"),
    }
    return (
        "<p>" + "".join(f"<i class={name}></i>{html.escape(kind)}" for name, kind in kinds.items()) + "</p>"
    )


def _pool(row: Fragmentation, shown: Sequence[Segment], others: int, words: Speaker) -> str:
    title = words(
        "GPU {device}, {pool}, stream {stream}: {segments} segments, {stuck} of {reserved} stuck",
        device=str(row.device), pool=words(row.pool), stream=str(row.stream), segments=str(row.segments),
        stuck=size(row.inactive_split), reserved=size(row.reserved),
    )  # fmt: skip
    rest = (
        f"<p>{html.escape(words('{count} more, not longer, are not drawn.', count=str(others)))}</p>"
        if others
        else ""
    )
    scale = (
        _WIDTH / max((segment.size for segment in shown), default=0)
        if any(one.size for one in shown)
        else 0.0
    )
    bars = "".join(_bar(segment, number * _ROW, scale) for number, segment in enumerate(shown))
    height = max(len(shown), 1) * _ROW
    svg = f'<svg viewBox="0 0 {_WIDTH + _LABEL:.0f} {height}">{bars}</svg>' if shown else ""
    return f"<h2>{html.escape(title)}</h2>{svg}{rest}"


def _bar(segment: Segment, y: int, scale: float) -> str:
    """The segment, free as far as nothing lies over it, and the size at its end."""
    width = segment.size * scale
    parts = [f"<rect class=free x=0 y={y} width={width:.2f} height={_BAR} />"]
    for block in segment.blocks:
        kind = "used" if block.used else "stuck" if 2 * segment.stuck(block) > block.size else ""
        if not kind or block.size * scale < _THINNEST:
            continue
        title = html.escape(f"{block.where} {size(block.size)}".strip())
        parts.append(
            f"<rect class={kind} x={(block.address - segment.address) * scale:.2f} y={y} width={block.size * scale:.2f} "
            f"height={_BAR}><title>{title}</title></rect>"
        )
    parts.append(f"<text x={width + 5:.2f} y={y + _BAR - 1}>{size(segment.size)}</text>")
    return "".join(parts)
