"""What `gpudiag top` shows: rows of a view, sorted and filtered, as a table, as plain text, and as JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.cli.messages import ENGLISH, Speaker
from gpudiag.cli.node_view import Gpu, NodeView
from gpudiag.cli.render.style import Style
from gpudiag.cli.render.units import harmless, quantity
from gpudiag.message import Message

HISTORY = 40
_COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_RANK = {"info": 0, "warning": 1, "critical": 2}
_MARKS = {"critical": "!!", "warning": "!", "info": "i"}
HELP = Message("q quit   s sort   r reverse   / filter   p pause   h help")
_HELP_LINES = (
    Message(
        "SM      share of cycles with work on the SMs; with a star: GPU utilisation, where SM activity is not measured"
    ),
    Message("TENSOR  share of cycles in which tensor cores worked      PCIE, NVLINK  to / from the device"),
    Message("FINDING the most severe rule that fires now; gpudiag rules explain ID"),
    Message(
        "/text   only rows in which job, user, model, index, UUID or finding has the text; Enter ends, Esc clears"
    ),
)


@dataclass(frozen=True)
class Screen:
    """What the person has chosen."""

    sort: str = "index"
    reverse: bool = False
    filter: str = ""
    typing: bool = False
    paused: bool = False
    help: bool = False
    quit: bool = False

    def key(self, key: str) -> Screen:
        """The screen after one key."""
        if self.typing:
            return self._typed(key)
        if key in ("q", "Q", "\x1b", "\x03"):
            return replace(self, quit=True)
        if key == "s":
            names = list(SORTS)
            return replace(self, sort=names[(names.index(self.sort) + 1) % len(names)])
        if key == "r":
            return replace(self, reverse=not self.reverse)
        if key in ("p", " "):
            return replace(self, paused=not self.paused)
        if key in ("h", "?"):
            return replace(self, help=not self.help)
        return replace(self, typing=True, filter="") if key == "/" else self

    def _typed(self, key: str) -> Screen:
        if key in ("\r", "\n"):
            return replace(self, typing=False)
        if key == "\x1b":
            return replace(self, typing=False, filter="")
        if key in ("\x7f", "\b"):
            return replace(self, filter=self.filter[:-1])
        return replace(self, filter=self.filter + key) if key.isprintable() else self


def activity(gpu: Gpu) -> tuple[float | None, bool]:
    """SM activity, else utilisation; and whether it is only the latter."""
    if "sm_active_ratio" in gpu.values:
        return gpu.values["sm_active_ratio"], False
    return gpu.values.get("gpu_util_ratio"), True


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


SORTS: Mapping[str, Callable[[Gpu], tuple[float, str]]] = {
    "index": lambda gpu: (gpu.index if gpu.index is not None else 1 << 20, gpu.uuid),
    "sm": lambda gpu: (-_known(activity(gpu)[0]), gpu.uuid),
    "memory": lambda gpu: (-_known(gpu.values.get("memory_used_bytes")), gpu.uuid),
    "power": lambda gpu: (-_known(gpu.values.get("power_watts")), gpu.uuid),
    "job": lambda gpu: (0.0 if gpu.job else 1.0, gpu.job.id if gpu.job else gpu.uuid),
    "finding": lambda gpu: (-max([_RANK[one.severity] for one in gpu.findings], default=-1), gpu.uuid),
}


def rows(gpus: Iterable[Gpu], screen: Screen) -> list[Gpu]:
    """Those that the filter lets through, in the order chosen."""
    wanted = screen.filter.lower()
    found = [gpu for gpu in gpus if wanted in _searched(gpu)]
    return sorted(found, key=SORTS[screen.sort], reverse=screen.reverse)


def _searched(gpu: Gpu) -> str:
    job = gpu.job
    words = [gpu.uuid, gpu.model, "" if gpu.index is None else f"gpu {gpu.index}"]
    words += [job.id, job.user, job.name] if job else []
    words += [one.rule for one in gpu.findings]
    return " ".join(words).lower()


@dataclass
class History:
    """Activity of each device over the latest views."""

    values: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, view: NodeView) -> None:
        for gpu in view.gpus:
            line = self.values.setdefault(gpu.uuid, deque(maxlen=HISTORY))
            value, _ = activity(gpu)
            line.append(float("nan") if value is None else value)


# name, unit; a header of two lines keeps the columns narrow
COLUMNS = (
    ("GPU", ""), ("JOB", ""), ("USER", ""), ("SM", "%"), ("TENSOR", "%"), ("MEMORY", "GiB"), ("PCIE", "GB/s"),
    ("NVLINK", "GB/s"), ("POWER", "W"), ("TEMP", "°C"), ("FINDING", ""),
)  # fmt: skip
_LEFT = ("JOB", "USER", "FINDING")
_DISPENSABLE = (
    "NVLINK",
    "PCIE",
    "TENSOR",
    "TEMP",
    "USER",
)  # what a narrow terminal goes without, in this order
_LEAST_FINDING, _LEAST_HISTORY, _GAP = 22, 8, 2


def cells(gpu: Gpu) -> tuple[str, ...]:
    """One device as texts, in the order of `COLUMNS`; a dash where nothing was measured."""
    values = gpu.values
    busy, utilisation = activity(gpu)
    worst = max(gpu.findings, key=lambda one: _RANK[one.severity], default=None)
    return (
        "MIG" if gpu.uuid.startswith("MIG-") else "?" if gpu.index is None else str(gpu.index),
        harmless(gpu.job.id) if gpu.job else "-",
        harmless(gpu.job.user) if gpu.job and gpu.job.user else "-",
        _number(busy, 0.01, 0) + ("*" if utilisation and busy is not None else ""),
        _number(values.get("tensor_active_ratio"), 0.01, 0),
        _pair(values, "memory_used_bytes", "memory_total_bytes", 2.0**30),
        _pair(values, "pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second", 1e9, 1),
        _pair(values, "nvlink_rx_bytes_per_second", "nvlink_tx_bytes_per_second", 1e9, 1),
        _pair(values, "power_watts", "power_limit_watts"),
        _number(values.get("temperature_celsius"), 1, 0),
        f"{_MARKS[worst.severity]} {worst.rule}" if worst else "",
    )


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value / scale:.{digits}f}"


def _pair(values: Mapping[str, float], left: str, right: str, scale: float = 1, digits: int = 0) -> str:
    if left not in values and right not in values:
        return "-"
    return "/".join(_number(values.get(name), scale, digits) for name in (left, right))


def fitted(texts: Sequence[Sequence[str]], width: int, words: Speaker = ENGLISH) -> list[int]:
    """The positions of the columns that fit beside a short history and a finding, the dispensable ones last."""
    names = [name for name, _ in COLUMNS]
    widths = [max(cell_len(words(name)), len(unit)) for name, unit in COLUMNS]
    for row in texts:
        widths = [max(old, cell_len(cell)) for old, cell in zip(widths, row, strict=True)]
    kept = list(range(len(COLUMNS) - 1))
    for name in (*_DISPENSABLE, ""):
        needed = sum(widths[at] + _GAP for at in kept) + _LEAST_HISTORY + _GAP + _LEAST_FINDING
        if needed <= width or not name:
            break
        kept.remove(names.index(name))
    return [*kept, len(COLUMNS) - 1]


def host_line(view: NodeView, words: Speaker = ENGLISH) -> str:
    """The host in one line, of what is measured."""
    parts = [
        (words(name), quantity(view.host[metric], unit))
        for name, metric, unit in (
            (Message("CPU"), "cpu_busy_ratio", "ratio"),
            (Message("waiting for I/O"), "cpu_iowait_ratio", "ratio"),
            (Message("memory free"), "memory_available_bytes", "bytes"),
            (Message("I/O pressure"), "pressure_io_some_ratio", "ratio"),
            (Message("disk"), "disk_read_bytes_per_second", "bytes_per_second"),
        )
        if metric in view.host
    ]
    return "   ".join(f"{name} {value}" for name, value in parts)


def frame(
    view: NodeView, history: History, screen: Screen, style: Style, words: Speaker = ENGLISH
) -> RenderableType:
    """Everything on the screen."""
    shown = rows(view.gpus, screen)
    table = _table(shown, history, style, words)
    parts: list[RenderableType] = [Text(_title(view, screen, len(shown), words), style="bold"), table]
    if not view.gpus:
        parts.append(Text(words(view.trouble or Message("no GPU"))))
    if host := host_line(view, words):
        parts.append(Text("\n" + words("host: {values}", values=host)))
    for one in view.findings:
        told = words("node: {finding}", finding=f"{_MARKS[one.severity]} {one.rule}")
        parts.append(Text(told, style=_COLOURS[one.severity]))
    lines = [*(_HELP_LINES if screen.help else ()), HELP]
    parts.append(Text("\n" + "\n".join(words(line) for line in lines), style="dim"))
    return Group(*parts)


def _table(shown: Sequence[Gpu], history: History, style: Style, words: Speaker) -> Table:
    texts = [_shortened(cells(gpu)) for gpu in shown]
    kept = fitted(texts, style.width, words)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", expand=False)
    for at in kept:
        name, unit = COLUMNS[at]
        if name == "FINDING":
            table.add_column("", no_wrap=True)
        said = words(name)
        header = f"{said}\n{unit}" if any(COLUMNS[one][1] for one in kept) else said
        table.add_column(header, no_wrap=True, justify="left" if name in _LEFT else "right")
    used = sum(
        max(cell_len(words(COLUMNS[at][0])), *(cell_len(row[at]) for row in (*texts, [""] * len(COLUMNS))))
        + _GAP
        for at in kept
    )
    length = max(_LEAST_HISTORY, min(HISTORY, style.width - used - _GAP))
    for gpu, row in zip(shown, texts, strict=True):
        line = style.sparkline(list(history.values.get(gpu.uuid, ()))[-length:]).rjust(length)
        worst = max((one.severity for one in gpu.findings), key=_RANK.__getitem__, default="")
        table.add_row(*(row[at] for at in kept[:-1]), line, Text(row[-1], style=_COLOURS.get(worst, "")))
    return table


def _shortened(row: tuple[str, ...]) -> tuple[str, ...]:
    """Names cut to a width that leaves room for the numbers."""
    lengths = {"JOB": 12, "USER": 10, "FINDING": 34}
    return tuple(
        cell if len(cell) <= (most := lengths.get(name, len(cell))) else cell[: most - 1] + "~"
        for (name, _), cell in zip(COLUMNS, row, strict=True)
    )


def _title(view: NodeView, screen: Screen, shown: int, words: Speaker) -> str:
    parts = [
        words("{shown} of {all} GPUs", shown=str(shown), all=str(len(view.gpus))),
        words("seen by the {source}", source=words(view.seen_by)),
        words("by {column}", column=words(screen.sort)),
    ]
    parts += [words("reversed")] if screen.reverse else []
    parts += (
        [words("filter /{text}", text=screen.filter + ("_" if screen.typing else ""))]
        if screen.filter or screen.typing
        else []
    )
    parts += [words("PAUSED")] if screen.paused else []
    return "  ".join(parts)


def plain(view: NodeView, screen: Screen, words: Speaker = ENGLISH) -> str:
    """One frame for a pipe: tab-separated, one line per device, no decoration."""
    lines = ["\t".join(" ".join(filter(None, (words(name), unit))) for name, unit in COLUMNS)]
    lines += ["\t".join(cells(gpu)) for gpu in rows(view.gpus, screen)]
    return "\n".join(lines)


def document(view: NodeView, screen: Screen) -> dict[str, object]:
    """One frame as JSON, values in base units under the catalog's names."""
    return {
        "schema_version": 1,
        "seen_by": view.seen_by,
        "time_ms": view.time_ms,
        "gpus": [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "model": gpu.model,
                "job": gpu.job.id if gpu.job else None,
                "user": gpu.job.user if gpu.job else None,
                "values": dict(gpu.values),
                "findings": [{"rule": one.rule, "severity": one.severity} for one in gpu.findings],
            }
            for gpu in rows(view.gpus, screen)
        ],
        "host": dict(view.host),
        "findings": [{"rule": one.rule, "severity": one.severity} for one in view.findings],
    }
