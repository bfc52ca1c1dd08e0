"""How many operations, how long, how much energy and money: FLOP, MFU, time per token, cost.

FLOP is an amount, FLOP/s a rate. Sources: [Scaling] Kaplan et al., arXiv 2001.08361, section 2.1: 2P forward, 6P
training per token. [PaLM] Chowdhery et al., arXiv 2204.02311, appendix B: attention term and MFU.
[Recompute] Korthikanti et al., arXiv 2205.05198: a second forward pass. [Uptime] survey of data centres 2025: PUE.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpudiag.rules.estimate import WEIGHT_BYTES, Precision, Recompute, kv_bytes_per_token
from gpudiag.rules.gpu_models import GpuModel
from gpudiag.rules.language_models import LanguageModel

# mean of the survey is 1.54; hyperscale sites reach 1.1 to 1.2
DEFAULT_PUE = 1.5
HOURS_PER_YEAR = 8760.0


def forward_flop_per_token(model: LanguageModel, sequence: int = 0) -> float:
    """2 P [Scaling], and 4 L a d s for the attention over `sequence` tokens [PaLM]."""
    return 2 * model.parameters + 4.0 * model.layers * model.heads * model.head_size * sequence


def training_flop_per_token(
    model: LanguageModel, sequence: int = 0, recompute: Recompute = "none", *, useful: bool = True
) -> float:
    """6 P + 12 L a d s: the backward pass costs two forward passes [Scaling, PaLM].

    With `useful=False` also what full recomputation does again: 8 P in all [Recompute].
    """
    passes = 4 if recompute == "full" and not useful else 3
    return passes * forward_flop_per_token(model, sequence)


def model_flops_utilization(
    model: LanguageModel, tokens_per_second: float, gpus: int, peak_flops: float, sequence: int = 0
) -> float:
    """Useful FLOP/s over the dense peak of all GPUs [PaLM]; recomputation does not count as useful."""
    return training_flop_per_token(model, sequence) * tokens_per_second / (gpus * peak_flops)


def training_hours(model: LanguageModel, tokens: float, gpus: int, peak_flops: float, mfu: float) -> float:
    """6 P D / (N peak MFU), in hours."""
    return training_flop_per_token(model) * tokens / (gpus * peak_flops * mfu) / 3600


@dataclass(frozen=True)
class TokenTime:
    """Seconds to make one token for every sequence of a batch: to read the memory, and to compute."""

    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """The larger of the two: a lower bound of what can be reached."""
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound(self) -> str:
        """`memory` or `compute`, whichever takes longer."""
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def token_time(
    model: LanguageModel,
    gpu: GpuModel,
    *,
    batch: int = 1,
    context: int = 0,
    precision: Precision = "bf16",
    gpus: int = 1,
) -> TokenTime:
    """Decoding: (weights + cache of the batch) / bandwidth, against 2 P batch / peak, split over `gpus`."""
    read = WEIGHT_BYTES[precision] * model.parameters + batch * context * kv_bytes_per_token(model)
    flop = batch * forward_flop_per_token(model, context)
    return TokenTime(
        read / (gpus * gpu.bandwidth_bytes_per_second),
        flop / (gpus * gpu.half_flops),
    )


def energy_kwh(mean_watts: float, hours: float, gpus: int = 1, pue: float = DEFAULT_PUE) -> float:
    """What the meter of the building sees: P N t PUE."""
    return mean_watts * gpus * hours * pue / 1000


@dataclass(frozen=True)
class Cost:
    """Money, in whatever currency the prices were given: hardware share and energy."""

    hardware: float
    energy: float

    @property
    def total(self) -> float:
        return self.hardware + self.energy


def job_cost(
    gpu_hours: float, kwh: float, price_per_gpu_hour: float = 0.0, price_per_kwh: float = 0.0
) -> Cost:
    """GPU-hours and energy at their prices. A rented GPU-hour has its energy in it: leave the second price 0."""
    return Cost(gpu_hours * price_per_gpu_hour, kwh * price_per_kwh)


def yearly_cost(
    hardware_price: float,
    mean_watts: float,
    price_per_kwh: float,
    years: float = 3.0,
    pue: float = DEFAULT_PUE,
) -> Cost:
    """Per year: price / years + P 8760 h PUE price of energy. Both terms per year, unlike the sum often quoted."""
    return Cost(hardware_price / years, energy_kwh(mean_watts, HOURS_PER_YEAR, pue=pue) * price_per_kwh)
