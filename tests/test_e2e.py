"""The main job end to end: the real agent on the fake driver, a real job, /metrics and the report as golden files.

Numbers that vary from run to run are normalised; the shapes, names, labels and sentences are not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from agent_process import AgentProcess
from fake_nvml.control import FakeNvml

pytestmark = pytest.mark.integration

SECONDS = 14
# what a host may have or not: PSI, disks, NFS, InfiniBand, a cgroup of the job's own; their series differ per machine
_OF_THE_HOST = re.compile(
    r"^(# (HELP|TYPE) )?(gpudiag_node_|process_|python_)"
    r"|collector=\"(pressure|disk|network|infiniband|nfs|kernel_log|shm)\""
    r"|gpudiag_job_(cpu|memory|oom|pressure|read|write|pss)"
)
# the fake driver holds these still; everything else that is measured varies
_CONSTANT = re.compile(
    r"^gpudiag_(gpu_(info|power|temperature|memory|sm_|tensor|fp|dram|gpu_util|graphics|clock|pcie_link|ecc|remap|recovery|processes)"
    r"|job_info|driver_state|driver_entry|store_up|collector_success|collector_failures|events_total|build_info)"
)
_KEY = re.compile(r"local/42/\d+")
_NUMBER = re.compile(r" -?[0-9][0-9.e+-]*$")
_VERSION = re.compile(r'version="[^"]*"')


def normalised_metrics(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if _OF_THE_HOST.search(line):
            continue
        line = _VERSION.sub('version="V"', _KEY.sub("local/42/START", line))
        if not line.startswith("#") and not _CONSTANT.match(line):
            line = _NUMBER.sub(" N", line)
        lines.append(line)
    return "\n".join(lines) + "\n"


def normalised_report(text: str) -> str:
    """Digits, sparklines, runs of spaces and a missed second differ; words and order do not."""
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("  not measured"))
    text = re.sub(r"[▁▂▃▄▅▆▇█░▒▓■·]+", "~", text)
    text = re.sub(r"\d+(?:[.,:]\d+)*", "N", text)
    text = re.sub(r"N-N-N", "DATE", text)
    text = re.sub(r" {2,}", "  ", re.sub(r"not evaluated: [\w/, …-]+: ", "not evaluated: RULES: ", text))
    lines = re.sub(r"(  N){4,}", "  N ...", text).splitlines()
    reasons = sorted({line for line in lines if "not evaluated: RULES" in line})
    return "\n".join([*(line for line in lines if "not evaluated: RULES" not in line), *reasons]) + "\n"


@pytest.fixture(scope="module")
def job_environ() -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": "0,1", "USER": "ada"}


@pytest.fixture
def busy_agent(
    start_agent: Callable[..., AgentProcess], fake_nvml: FakeNvml, job_environ: dict[str, str]
) -> tuple[AgentProcess, str]:
    """An agent that watched job 42 from start to end, and its /metrics in the middle of the job."""
    agent = start_agent({**fake_nvml.environ, "COLUMNS": "200"})
    agent.wait_for(lambda: len(agent.values("gpudiag_gpu_power_watts")) == 8)
    command = [sys.executable, "-m", "gpudiag", "run", "--job", "42", "--quiet", "--"]
    work = f"import time; end = time.time() + {SECONDS}\nwhile time.time() < end: time.sleep(0.05)"
    with subprocess.Popen(
        [*command, sys.executable, "-c", work], env={**agent.environ, **job_environ}
    ) as job:
        agent.wait_for(lambda: len(agent.values("gpudiag_job_info")) == 2)
        agent.wait_for(lambda: bool(agent.values("gpudiag_job_processes")))
        agent.wait_for_ticks(4)
        metrics = agent.metrics()
        assert job.wait(timeout=120) == 0
    agent.wait_for(lambda: not agent.values("gpudiag_job_info"))
    return agent, metrics


def test_golden_metrics_and_report(
    busy_agent: tuple[AgentProcess, str], golden: Callable[[str, str], None], promtool: str
) -> None:
    agent, metrics = busy_agent
    golden("tests/golden/e2e_metrics.txt", normalised_metrics(metrics))
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert {"gpudiag_node_cpu_busy_ratio", "gpudiag_node_memory_total_bytes"} <= set(
        re.findall(r"^\w+", metrics, re.MULTILINE)
    )

    assert agent.stop() == 0
    assert "Traceback" not in agent.log.read_text()
    report = agent.command("report", "--job", "42")
    assert (report.returncode, report.stderr) == (0, "")
    golden("tests/golden/e2e_report.txt", normalised_report(report.stdout))

    document = json.loads(agent.command("report", "--job", "42", "--json").stdout)
    shares = sum(bucket["ratio"] for bucket in document["waterfall"]["buckets"])
    assert shares == pytest.approx(1.0, abs=0.001)
    assert document["coverage"]["devices_allocated"] == 2
    assert document["coverage"]["ratio"] > 0.8
    assert document["job"]["state"] == "completed"
