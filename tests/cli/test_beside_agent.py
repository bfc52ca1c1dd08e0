"""`check`, `top` and `doctor` beside a real agent on the fake driver: they ask the agent, not the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from agent_process import AgentProcess
from fake_nvml.control import FakeNvml

pytestmark = pytest.mark.integration


@pytest.fixture
def agent(start_agent: Callable[..., AgentProcess], fake_nvml: FakeNvml) -> AgentProcess:
    for gpu in range(8):
        fake_nvml.fail(gpu, "nvmlDeviceGetTemperature", "no_permission")
    started = start_agent({**fake_nvml.environ})
    started.wait_for(lambda: len(started.values("gpudiag_gpu_sm_active_ratio")) == 8)
    started.environ["GPUDIAG_METRICS__LISTEN"] = started.address.removeprefix("http://")
    started.environ["GPUDIAG_AGENT__NODE"] = "node-a"
    # whoever asks the driver instead finds none
    del started.environ["LD_LIBRARY_PATH"]
    started.environ["GPUDIAG_SOURCES__NVML_LIBRARY"] = "/nonexistent/libnvidia-ml.so.1"
    return started


def _json(agent: AgentProcess, *arguments: str) -> dict[str, Any]:
    ran = agent.command(*arguments)
    assert ran.stderr == ""
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def test_commands_ask_the_agent(agent: AgentProcess, fake_nvml: FakeNvml) -> None:
    ran = agent.command("check", "--gpus", "8", "--require-agent")
    assert (ran.returncode, ran.stdout) == (0, "OK: 8 GPUs, asked the agent\n")

    top = _json(agent, "top", "--json")
    assert top["seen_by"] == "agent"
    assert [gpu["index"] for gpu in top["gpus"]] == list(range(8))
    assert top["gpus"][0]["values"]["sm_active_ratio"] == pytest.approx(0.8)

    items = {f"{item['area']}/{item['name']}": item for item in _json(agent, "doctor", "--json")["items"]}
    assert items["agent/agent"]["state"] == "ok"
    assert items["driver/devices"]["text"] == "8 devices: NVIDIA H200; driver 580.105.08"
    assert "no permission" in items["gpu metrics/temperature_celsius"]["text"]
    assert items["store/database"]["state"] == "ok"

    fake_nvml.fail(2, "*", "gpu_is_lost")
    agent.wait_for(lambda: bool(agent.values("gpudiag_gpu_lost")))
    ran = agent.command("check")
    assert ran.returncode == 2
    assert "GPU lost" in ran.stdout

    agent.stop()
    ran = agent.command("check", "--require-agent")
    assert (ran.returncode, "no agent runs" in ran.stdout) == (1, True), ran.stdout
    items = {f"{item['area']}/{item['name']}": item for item in _json(agent, "doctor", "--json")["items"]}
    assert items["agent/agent"]["state"] == "missing"
    assert items["store/newest sample"]["state"] == "ok"
