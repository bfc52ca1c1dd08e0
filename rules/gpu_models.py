"""What GPU models can do: memory, bandwidth, dense peak rates, board power. Vendor data sheets, without sparsity.

Rates are FLOP/s of the tensor cores with 16-bit inputs and 32-bit accumulation; a marketing number "with
sparsity" is twice that and no dense network reaches it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MIB = 2.0**20
_GB = 1e9
_TERA = 1e12


@dataclass(frozen=True)
class GpuModel:
    """One product: memory in bytes, bandwidth in bytes/s, dense 16-bit and 8-bit peaks in FLOP/s, power in watts."""

    name: str
    pattern: str
    memory_bytes: float
    bandwidth_bytes_per_second: float
    half_flops: float
    power_watts: float
    fp8_flops: float | None = None
    bf16: bool = True


def _model(
    name: str, pattern: str, mib: float, bandwidth: float, half: float, watts: float, fp8: float = 0.0
) -> GpuModel:
    fp8_flops = fp8 * _TERA or None
    bf16 = not name.startswith(("V100", "T4"))
    return GpuModel(name, pattern, mib * _MIB, bandwidth * _GB, half * _TERA, watts, fp8_flops, bf16)


# fmt: off
# name, how the driver spells it, MiB as the driver counts them, GB/s, dense 16-bit TFLOP/s, W, dense FP8 TFLOP/s; the first match counts
GPU_MODELS = (
    _model("B200", r"B200", 183359, 8000, 2250, 1000, 4500),
    _model("H200", r"H200", 143771, 4800, 989, 700, 1979),
    _model("H100-NVL", r"H100 NVL", 95830, 3900, 835, 400, 1671),
    _model("H100-PCIe", r"H100 PCIe", 81559, 2000, 756, 350, 1513),
    _model("H100", r"H100", 81559, 3350, 989, 700, 1979),
    _model("A100-80GB-PCIe", r"A100 80GB PCIe", 81920, 1935, 312, 300),
    _model("A100-80GB", r"A100.*80GB", 81920, 2039, 312, 400),
    _model("A100-40GB", r"A100", 40960, 1555, 312, 400),
    _model("A30", r"A30\b", 24576, 933, 165, 165),
    _model("A40", r"A40\b", 46068, 696, 149.7, 300),
    _model("A10G", r"A10G", 23028, 600, 70, 300),
    _model("A10", r"A10\b", 23028, 600, 125, 150),
    _model("L40S", r"L40S", 46068, 864, 362, 350, 733),
    _model("L4", r"L4\b", 23034, 300, 121, 72, 242),
    _model("V100S", r"V100S", 32768, 1134, 130, 250),
    _model("V100-32GB", r"V100.*32GB", 32768, 900, 125, 300),
    _model("V100-16GB", r"V100", 16384, 900, 125, 300),
    _model("T4", r"T4\b", 15360, 320, 65, 70),
    _model("RTX-4090", r"RTX 4090", 24564, 1008, 165, 450, 330),
    _model("RTX-3090", r"RTX 3090", 24576, 936, 71, 350),
)
# fmt: on


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def find(name: str) -> GpuModel | None:
    """By our name (`h100`, `A100-80GB`) or by what the driver prints (`NVIDIA H100 80GB HBM3`)."""
    for model in GPU_MODELS:
        if _plain(model.name) == _plain(name):
            return model
    return next((model for model in GPU_MODELS if re.search(model.pattern, name, re.IGNORECASE)), None)
