"""The same samples in Prometheus' TSDB and in VictoriaMetrics, read back to arrays over their HTTP APIs."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.storage.samples import GpuDay


@dataclass(frozen=True)
class TheirResult:
    """Bytes on disk, seconds to take the samples in and to read 24 h of all series back."""

    bytes: int
    ingest_seconds: float
    read_seconds: float
    read_values: int


def prometheus(folder: Path, samples: list[GpuDay]) -> TheirResult:
    """Blocks by promtool from OpenMetrics text, read through /api/v1/query of a Prometheus on them."""
    text, data = folder / "samples.om", folder / "prometheus"
    _write_openmetrics(text, samples)
    begun = time.perf_counter()
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(data)],
        check=True, capture_output=True,
    )  # fmt: skip
    ingest = time.perf_counter() - begun
    text.unlink()
    size = _size(data)
    port = _free_port()
    command = [
        "prometheus", f"--storage.tsdb.path={data}", f"--config.file={_empty_config(folder)}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y",
    ]  # fmt: skip
    with _running(command, f"http://127.0.0.1:{port}/-/ready"):
        begun, values = time.perf_counter(), 0
        for gpu in samples:
            query = {"query": f'{{gpu="{gpu.source.device}"}}[25h]', "time": str(gpu.times_ms[-1] / 1000 + 1)}
            url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode(query)}"
            for series in _get(url)["data"]["result"]:
                values += len(np.array(series["values"], dtype=np.float64))
        read = time.perf_counter() - begun
    return TheirResult(size, ingest, read, values)


def victoria(folder: Path, samples: list[GpuDay]) -> TheirResult:
    """JSON lines through /api/v1/import, merged by force, read through /api/v1/export."""
    data, port = folder / "victoria", _free_port()
    base = f"http://127.0.0.1:{port}"
    command = [
        "victoria-metrics", f"-storageDataPath={data}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=10y",
        "-search.maxUniqueTimeseries=10000",
    ]  # fmt: skip
    with _running(command, f"{base}/health"):
        begun = time.perf_counter()
        for gpu in samples:
            _post(f"{base}/api/v1/import", b"".join(_json_lines(gpu)))
        urllib.request.urlopen(f"{base}/internal/force_flush").close()
        ingest = time.perf_counter() - begun
        urllib.request.urlopen(f"{base}/internal/force_merge").close()
        _settle(data)
        begun, values = time.perf_counter(), 0
        for gpu in samples:
            match = urllib.parse.urlencode({"match[]": f'{{gpu="{gpu.source.device}"}}'})
            with urllib.request.urlopen(f"{base}/api/v1/export?{match}") as answer:
                for line in answer:
                    values += len(np.array(json.loads(line)["values"], dtype=np.float64))
        read = time.perf_counter() - begun
    return TheirResult(_size(data), ingest, read, values)


def _write_openmetrics(path: Path, samples: list[GpuDay]) -> None:
    names = list(samples[0].columns)
    with path.open("w") as out:
        for name in names:
            out.write(f"# TYPE {name} unknown\n")
            for gpu in samples:
                label = f'{name}{{node="{gpu.source.node}",gpu="{gpu.source.device}"}}'
                column, seconds = gpu.columns[name].tolist(), (gpu.times_ms / 1000).tolist()
                out.writelines(
                    f"{label} {value!r} {second:.3f}\n"
                    for value, second in zip(column, seconds, strict=True)
                    if not math.isnan(value)
                )
        out.write("# EOF\n")


def _json_lines(gpu: GpuDay) -> Iterator[bytes]:
    for name, column in gpu.columns.items():
        there = ~np.isnan(column)
        labels = {"__name__": name, "node": gpu.source.node, "gpu": gpu.source.device}
        line = {
            "metric": labels,
            "values": column[there].tolist(),
            "timestamps": gpu.times_ms[there].tolist(),
        }
        yield json.dumps(line).encode() + b"\n"


def _get(url: str) -> dict[str, dict[str, list[dict[str, list[list[float]]]]]]:
    with urllib.request.urlopen(url) as answer:
        found: dict[str, dict[str, list[dict[str, list[list[float]]]]]] = json.load(answer)
    return found


def _post(url: str, body: bytes) -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST")).close()


def _empty_config(folder: Path) -> Path:
    path = folder / "prometheus.yml"
    path.write_text("{}\n")
    return path


def _settle(data: Path) -> None:
    """Wait until a background merge no longer changes the size."""
    last, same = -1, 0
    while same < 4:
        time.sleep(0.5)
        size = _size(data)
        same = same + 1 if size == last else 0
        last = size


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[str], ready: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(ready).close()
                break
            except OSError:
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def available() -> list[str]:
    """What is missing to run the comparison."""
    return [name for name in ("promtool", "prometheus", "victoria-metrics") if shutil.which(name) is None]
