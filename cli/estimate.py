"""`gpudiag estimate`: will it fit, what batch, how fast, what does it cost; each number with its formula and source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpudiag.cli.language import speaks
from gpudiag.errors import InputError
from gpudiag.message import Message

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words
    from gpudiag.rules.estimate import Optimizer, Precision, Recompute, Training
    from gpudiag.rules.gpu_models import GpuModel
    from gpudiag.rules.language_models import LanguageModel

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _model_options(function: Decorated) -> Decorated:
    for option in (
        click.option("--config", type=click.Path(path_type=Path), help="A model's config.json."),
        click.option(
            "--params", metavar="N", help="Only the size, such as 7B; the shape is then a usual one."
        ),
        click.option("--model", metavar="NAME", help="A known model, such as llama-3-8b."),
    ):
        function = option(function)
    return function


_gpu_option = click.option(
    "--gpu", default="H100", show_default=True, metavar="NAME", help="Model of the GPU."
)
_gpus_option = click.option("--gpus", default=1, show_default=True, type=click.IntRange(1), help="How many.")
_json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")


def _model(name: str | None, params: str | None, config: Path | None) -> LanguageModel:
    from gpudiag.rules.language_models import KNOWN, by_size, from_config, parse_count

    if sum(given is not None for given in (name, params, config)) != 1:
        raise InputError("expected one of --model NAME, --params 7B and --config config.json")
    if config is not None:
        return from_config(config)
    if params is not None:
        return by_size(parse_count(params))
    if name not in KNOWN:
        raise InputError(f"model {name!r} is not known; expected one of {', '.join(KNOWN)}, or use --params")
    return KNOWN[name]


def _gpu(name: str) -> GpuModel:
    from gpudiag.rules.gpu_models import GPU_MODELS, find

    found = find(name)
    if found is None:
        known = ", ".join(model.name for model in GPU_MODELS)
        raise InputError(f"GPU {name!r} is not known; expected one of {known}")
    return found


def _print(document: Mapping[str, object], text: str, as_json: bool) -> None:
    click.echo(json.dumps({"schema_version": 1, **document}) if as_json else text)


@click.group("estimate")
def command() -> None:
    """Will it fit, what batch, how fast, at what cost? By published formulas, each printed with its source."""


@command.command("train")
@_model_options
@_gpu_option
@_gpus_option
@click.option(
    "--batch", default=1, show_default=True, type=click.IntRange(1), help="Sequences per GPU and step."
)
@click.option("--seq", default=2048, show_default=True, type=click.IntRange(1), help="Tokens per sequence.")
@click.option(
    "--precision", default="mixed", show_default=True, type=click.Choice(["mixed", "fp32", "bf16"]),
    help="Mixed keeps an fp32 copy of the weights.",
)  # fmt: skip
@click.option(
    "--optimizer",
    default="adam",
    show_default=True,
    type=click.Choice(["adam", "adam8bit", "momentum", "sgd"]),
)
@click.option(
    "--zero", default=0, show_default=True, type=click.IntRange(0, 3), help="ZeRO stage; FSDP is 3."
)
@click.option(
    "--recompute", default="none", show_default=True, type=click.Choice(["none", "selective", "full"]),
    help="Activation checkpointing.",
)  # fmt: skip
@click.option("--flash/--no-flash", default=True, show_default=True, help="Flash or fused attention.")
@click.option(
    "--tensor-parallel", default=1, show_default=True, type=click.IntRange(1), metavar="T",
    help="GPUs that share each layer, with sequence parallelism.",
)  # fmt: skip
@click.option("--lora", "lora_rank", type=click.IntRange(1), metavar="RANK", help="Train adapters only.")
@click.option("--qlora", "qlora_rank", type=click.IntRange(1), metavar="RANK", help="... over 4-bit weights.")
@_json_option
@speaks
def train(
    model: str | None,
    params: str | None,
    config: Path | None,
    gpu: str,
    gpus: int,
    batch: int,
    seq: int,
    precision: Training,
    optimizer: Optimizer,
    zero: int,
    recompute: Recompute,
    flash: bool,
    tensor_parallel: int,
    lora_rank: int | None,
    qlora_rank: int | None,
    as_json: bool,
    words: Words,
) -> None:
    """Memory of training, per GPU: weights, gradients, optimizer, activations; and the largest batch."""
    from gpudiag.cli import estimate_text
    from gpudiag.rules.estimate import Plan, training_memory

    if lora_rank and qlora_rank:
        raise InputError("expected --lora or --qlora, not both")
    if gpus % tensor_parallel:
        raise InputError(f"--gpus {gpus} is no multiple of --tensor-parallel {tensor_parallel}")
    plan = Plan(
        gpus, batch, seq, precision, optimizer, zero, recompute, flash, tensor_parallel,
        "lora" if lora_rank else "qlora" if qlora_rank else "full", lora_rank or qlora_rank or 16,
    )  # fmt: skip
    shape, device = _model(model, params, config), _gpu(gpu)
    memory = training_memory(shape, plan)
    _print(
        estimate_text.memory_document(memory, device),
        estimate_text.training(shape, plan, memory, device, words),
        as_json,
    )


@command.command("infer")
@_model_options
@_gpu_option
@_gpus_option
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1), help="Sequences at a time.")
@click.option("--tokens", default=2048, show_default=True, type=click.IntRange(1), help="Prompt and answer.")
@click.option(
    "--weights", default="bf16", show_default=True, type=click.Choice(["fp32", "bf16", "int8", "int4"]),
    help="Precision of the weights.",
)  # fmt: skip
@click.option(
    "--kv",
    default="bf16",
    show_default=True,
    type=click.Choice(["fp32", "bf16", "int8"]),
    help="Precision of the cache.",
)
@_json_option
@speaks
def infer(
    model: str | None,
    params: str | None,
    config: Path | None,
    gpu: str,
    gpus: int,
    batch: int,
    tokens: int,
    weights: Precision,
    kv: Precision,
    as_json: bool,
    words: Words,
) -> None:
    """Memory of inference and the least time per token: weights, key-value cache, bandwidth against compute."""
    from gpudiag.cli import estimate_text
    from gpudiag.rules.estimate import inference_memory
    from gpudiag.rules.throughput import token_time

    shape, device = _model(model, params, config), _gpu(gpu)
    memory = inference_memory(
        shape, batch=batch, tokens=tokens, precision=weights, kv_precision=kv, gpus=gpus
    )
    time = token_time(shape, device, batch=batch, context=tokens, precision=weights, gpus=gpus)
    document = {
        **estimate_text.memory_document(memory, device),
        "seconds_per_token": time.seconds,
        "bound": time.bound,
        "tokens_per_second": batch / time.seconds,
    }
    _print(document, estimate_text.inference(shape, memory, device, time, batch, gpus, words), as_json)


@command.command("mfu")
@_model_options
@_gpu_option
@_gpus_option
@click.option(
    "--tokens-per-second", required=True, type=click.FloatRange(0, min_open=True), help="Over all GPUs."
)
@click.option("--seq", default=0, type=click.IntRange(0), help="Sequence length, to count attention too.")
@click.option("--total-tokens", metavar="N", help="Also: how long training on so many tokens takes.")
@_json_option
@speaks
def mfu(
    model: str | None,
    params: str | None,
    config: Path | None,
    gpu: str,
    gpus: int,
    tokens_per_second: float,
    seq: int,
    total_tokens: str | None,
    as_json: bool,
    words: Words,
) -> None:
    """Model FLOPs utilisation from a training job's tokens per second."""
    from gpudiag.cli import estimate_text
    from gpudiag.rules.language_models import parse_count
    from gpudiag.rules.throughput import model_flops_utilization, training_flop_per_token

    shape, device = _model(model, params, config), _gpu(gpu)
    ratio = model_flops_utilization(shape, tokens_per_second, gpus, device.half_flops, seq)
    tokens = parse_count(total_tokens) if total_tokens else None
    hours = tokens / tokens_per_second / 3600 if tokens else None
    document = {
        "mfu_ratio": ratio,
        "training_flop_per_token": training_flop_per_token(shape, seq),
        "peak_flop_per_second": gpus * device.half_flops,
        "training_hours": hours,
    }
    _print(document, estimate_text.utilisation(shape, device, gpus, seq, ratio, hours, words), as_json)


@command.command("batch")
@click.option("--job", "job_id", required=True, metavar="ID", help="A stored job.")
@click.option("--db", metavar="URL", help="Database (default: GPUDIAG_DB, then the configured one).")
@click.option("--model", metavar="NAME", help="What was trained, to know what does not grow with the batch.")
@click.option("--params", metavar="N", help="... or its size, such as 7B.")
@_gpus_option
@click.option(
    "--zero", default=0, show_default=True, type=click.IntRange(0, 3), help="ZeRO stage; FSDP is 3."
)
@_json_option
@speaks
def batch(
    job_id: str,
    db: str | None,
    model: str | None,
    params: str | None,
    gpus: int,
    zero: int,
    as_json: bool,
    words: Words,
) -> None:
    """By what factor the batch of a stored job could have grown, from its measured peak of memory.

    Only what depends on the batch grows. Without --model or --params nothing but the context is taken as fixed, which
    makes the answer too small, never too large.
    """
    from gpudiag.cli import estimate_text
    from gpudiag.cli.job_energy import memory_peaks
    from gpudiag.rules.estimate import CONTEXT_BYTES, Plan, batch_growth, training_memory

    fixed = CONTEXT_BYTES
    if model or params:
        fixed = training_memory(_model(model, params, None), Plan(gpus=gpus, zero=zero)).fixed_bytes
    peaks = memory_peaks(job_id, db, os.environ, words)
    growth = [batch_growth(peak.capacity_bytes, peak.used_bytes, fixed) for peak in peaks]
    document = {
        "fixed_bytes": round(fixed),
        "growth": min(growth),
        "devices": [
            {
                "device": peak.device,
                "peak_bytes": peak.used_bytes,
                "capacity_bytes": peak.capacity_bytes,
                "growth": factor,
            }
            for peak, factor in zip(peaks, growth, strict=True)
        ],
    }
    _print(document, estimate_text.growth(peaks, growth, fixed, words), as_json)


@command.command("cost")
@click.option("--job", "job_id", metavar="ID", help="Use the measured energy and time of a stored job.")
@click.option("--db", metavar="URL", help="Database of --job.")
@_gpus_option
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="Without --job: hours of each GPU.")
@click.option("--watts", type=click.FloatRange(0, min_open=True), help="Without --job: mean power of a GPU.")
@click.option(
    "--pue", default=1.5, show_default=True, type=click.FloatRange(1), help="Power usage effectiveness."
)
@click.option("--price-kwh", default=0.0, type=click.FloatRange(0), help="Price of a kWh.")
@click.option("--price-gpu-hour", default=0.0, type=click.FloatRange(0), help="Price of a GPU-hour.")
@click.option(
    "--hardware-price", type=click.FloatRange(0), help="Also per year: price of a GPU, written off ..."
)
@click.option(
    "--years", default=3.0, show_default=True, type=click.FloatRange(0, min_open=True), help="... over."
)
@_json_option
@speaks
def cost(
    job_id: str | None,
    db: str | None,
    gpus: int,
    hours: float | None,
    watts: float | None,
    pue: float,
    price_kwh: float,
    price_gpu_hour: float,
    hardware_price: float | None,
    years: float,
    as_json: bool,
    words: Words,
) -> None:
    """Energy and cost of a job, measured or assumed, with the overhead of the building (PUE)."""
    from gpudiag.cli import estimate_text
    from gpudiag.cli.job_energy import Used, measured
    from gpudiag.rules.throughput import job_cost, yearly_cost

    if job_id is not None:
        used = measured(job_id, db, os.environ, words)
    elif hours is None or watts is None:
        raise InputError("expected --job ID, or --hours and --watts")
    else:
        used = Used(hours * gpus, watts * gpus * hours / 1000, Message("assumed"))
    kwh = used.gpu_kwh * pue
    price = job_cost(used.gpu_hours, kwh, price_gpu_hour, price_kwh)
    mean_watts = used.gpu_kwh / used.gpu_hours * 1000 if used.gpu_hours else 0.0
    yearly = (
        None if hardware_price is None else yearly_cost(hardware_price, mean_watts, price_kwh, years, pue)
    )
    document = {
        "gpu_hours": used.gpu_hours,
        "gpu_kwh": used.gpu_kwh,
        "building_kwh": kwh,
        "source": used.source,
        "cost": price.total,
        "cost_per_gpu_year": yearly.total if yearly else None,
    }
    _print(document, estimate_text.cost(used, pue, kwh, price, yearly, words), as_json)


@command.command("myths")
@_json_option
@speaks
def myths(as_json: bool, words: Words) -> None:
    """Rules of thumb that are often repeated and wrong, and what is right, computed."""
    from gpudiag.cli.estimate_myths import myths as claims

    document = {"myths": [{"claim": claim, "right": right} for claim, right in claims()]}
    text = "\n\n".join(
        words("claim: {claim}", claim=words(claim)) + "\n" + words("right: {right}", right=words(right))
        for claim, right in claims()
    )
    _print(document, text, as_json)


@command.command("models")
@_json_option
@speaks
def models(as_json: bool, words: Words) -> None:
    """The GPUs and models known by name."""
    from gpudiag.cli import estimate_text
    from gpudiag.rules.gpu_models import GPU_MODELS
    from gpudiag.rules.language_models import KNOWN

    document = {"gpus": [gpu.name for gpu in GPU_MODELS], "models": list(KNOWN)}
    _print(document, estimate_text.models(words), as_json)
