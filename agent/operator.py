"""The commands of the control socket."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gpudiag.agent.collectors.nvml import NvmlCollector
from gpudiag.agent.control import Command, Message
from gpudiag.errors import GpudiagError, InputError

log = logging.getLogger(__name__)
_LONGEST = 86_400.0


def operator_commands(nvml: NvmlCollector | None) -> Mapping[str, Command]:
    """`release` (seconds) lets go of every device handle for a while, `resume` takes the driver up again."""

    def release(asked: Message) -> Message:
        seconds = asked.get("seconds")
        if not isinstance(seconds, (int, float)) or not 0 < seconds <= _LONGEST:
            raise InputError("release: expected seconds above 0 and up to a day")
        collector = _needed(nvml)
        if not collector.release(float(seconds)):
            reason = collector.status.reason
            raise GpudiagError(f"the probe is stuck in the driver and cannot be ended: {reason}")
        log.warning("every device handle is released for %g s on request", seconds)
        return {"released_seconds": seconds}

    def resume(_: Message) -> Message:
        _needed(nvml).resume()
        log.warning("the driver is taken up again on request")
        return {"resumed": True}

    return {"release": release, "resume": resume}


def _needed(nvml: NvmlCollector | None) -> NvmlCollector:
    if nvml is None:
        raise GpudiagError("this agent does not read NVML (sources.nvml is false): it holds no device")
    return nvml
