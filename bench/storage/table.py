"""The results as Markdown, and into their section of bench/RESULTS.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.storage.fleet import FleetResult
from bench.storage.others import TheirResult
from bench.storage.ours import OurResult

HEADING = "## Storage"
_NODES = 1000
_MIB = 2.0**20


def render(
    machine: str, hours: float, ours: OurResult, theirs: Mapping[str, TheirResult], fleet: FleetResult | None
) -> str:
    """The whole section."""
    parts = [
        HEADING,
        (
            f"`make bench-storage` on {machine}: 8 GPUs x 30 metrics x {hours:g} h x 1 s, {ours.values / 1e6:.2f} million "
            "values, the same for every store (bench/storage/samples.py), one run. Every value read back from gpudiag is "
            "compared with what was written. Bytes count everything on disk: head, chunks, indexes, per-minute rows."
        ),
        _stores(ours, theirs),
        _writing(ours, hours),
    ]
    if fleet is not None:
        parts += [_fleet(fleet), _projection(ours, fleet, hours)]
    return "\n\n".join(parts) + "\n"


def _stores(ours: OurResult, theirs: Mapping[str, TheirResult]) -> str:
    lines = [
        "| store | bytes per value | gpudiag is | 24 h of all series to arrays | gpudiag is |",
        "|---|---|---|---|---|",
        f"| gpudiag (SQLite) | {ours.file_bytes / ours.values:.2f} | | {ours.read_seconds:.2f} s | |",
    ]
    mine = ours.file_bytes / ours.values
    for name, other in theirs.items():
        size = other.bytes / other.read_values
        speed = other.read_seconds / ours.read_seconds
        lines.append(
            f"| {name} | {size:.2f} | 1/{size / mine:.2f} of it | {other.read_seconds:.2f} s | {speed:.0f}x faster |"
        )
    lines += [
        "",
        (
            f"gpudiag's bytes: chunks {ours.chunk_bytes / ours.values:.3f}, per-minute rows about "
            f"{ours.minute_bytes / ours.values:.3f}, the rest is the head's pages, indexes and free pages. One metric of "
            f"8 GPUs x 24 h is read in {ours.read_headline_seconds:.3f} s."
        ),
        "Read means: Prometheus `/api/v1/query` of a range per GPU, VictoriaMetrics `/api/v1/export` per GPU, both "
        "JSON to numpy; gpudiag `Reader.read` per GPU. Taking the samples in: "
        + ", ".join(f"{name} {other.ingest_seconds:.0f} s" for name, other in theirs.items())
        + " (from OpenMetrics text, from JSON lines).",
    ]
    return "\n".join(lines)


def _writing(ours: OurResult, hours: float) -> str:
    per_day = ours.written_bytes * 24 / hours / _MIB
    return "\n".join([
        "| writing, one node | measured | budget |",
        "|---|---|---|",
        f"| flush of 10 s (80 frames, 2400 values), CPU p50 / p99 | {ours.flush_cpu_p50:.2f} / {ours.flush_cpu_p99:.2f} ms | 1 ms |",
        f"| the same, wall p99 (fsync included) | {ours.flush_wall_p99:.1f} ms | |",
        f"| seal of a 15-minute window, CPU p50 / max | {ours.seal_cpu_p50:.0f} / {ours.seal_cpu_max:.0f} ms | 50 ms |",
        f"| both, share of one core | {100 * ours.cpu_share:.4f} % | |",
        f"| written to disk per day | {per_day:.0f} MiB | |",
    ])  # fmt: skip


def _fleet(fleet: FleetResult) -> str:
    return "\n".join([
        f"| {fleet.agents} agents, one Postgres 15 on the same machine, closed loop | measured |",
        "|---|---|",
        f"| sealed windows (8 chunks and their per-minute rows, one transaction) | {fleet.windows_per_second:.0f} windows/s |",
        f"| latency of a window p50 / p99 | {fleet.window_p50:.0f} / {fleet.window_p99:.0f} ms |",
        f"| flushes of running windows (one transaction each) | {fleet.flushes_per_second:.0f} flushes/s, p99 {fleet.flush_p99:.0f} ms |",
        (f"| Postgres grows per window / WAL per window / WAL per flush | {fleet.bytes_per_window / 1024:.0f} / "
        f"{fleet.wal_bytes_per_window / 1024:.0f} / {fleet.wal_bytes_per_flush / 1024:.0f} KiB |"),
    ])  # fmt: skip


def _projection(ours: OurResult, fleet: FleetResult, hours: float) -> str:
    windows, flushes = _NODES / 900, _NODES / 10
    load = windows / fleet.windows_per_second + flushes / fleet.flushes_per_second
    day = 96 * fleet.bytes_per_window * _NODES / 2**30
    wal = (96 * fleet.wal_bytes_per_window + 8640 * fleet.wal_bytes_per_flush) * _NODES / 2**30
    return (
        f"**{_NODES} nodes, by arithmetic from these rates**: {_NODES} / 900 s = {windows:.2f} windows/s, of "
        f"{fleet.windows_per_second:.0f}, and {_NODES} / 10 s = {flushes:.0f} flushes/s, of "
        f"{fleet.flushes_per_second:.0f}: {windows:.2f}/{fleet.windows_per_second:.0f} + "
        f"{flushes:.0f}/{fleet.flushes_per_second:.0f} = {100 * load:.0f} % of what this machine did while it also ran "
        f"the agents. Postgres grows by 96 x {fleet.bytes_per_window / 1024:.0f} KiB x {_NODES} = {day:.0f} GiB a day "
        f"and writes {wal:.0f} GiB of WAL; 14 days of samples are {14 * day / 1024:.2f} TiB. Connections: one per "
        "agent, so beyond some 300 nodes a pooler in transaction mode belongs in between."
    )


def put(path: Path, text: str) -> None:
    """Replace the section in the file, or append it."""
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results of the benchmarks\n\n"
    begin = old.find(HEADING + "\n")
    if begin < 0:
        path.write_text(old.rstrip() + "\n\n" + text, encoding="utf-8")
        return
    end = old.find("\n## ", begin + 1)
    path.write_text(old[:begin] + text + (old[end:] if end >= 0 else ""), encoding="utf-8")
