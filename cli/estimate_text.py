"""What `gpudiag estimate` prints: sums with their formulas, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpudiag.cli.messages import Speaker
from gpudiag.cli.render import labels
from gpudiag.cli.render.columns import aligned
from gpudiag.message import Message
from gpudiag.rules.estimate import USABLE, Memory, Method, Plan, Precision, inference_memory, training_memory
from gpudiag.rules.gpu_models import GPU_MODELS, GpuModel
from gpudiag.rules.language_models import KNOWN, LanguageModel
from gpudiag.rules.throughput import Cost, TokenTime, training_flop_per_token

if TYPE_CHECKING:
    from gpudiag.cli.job_energy import Peak, Used

_GIB = 2.0**30
_ADAPTERS: tuple[Method, ...] = ("lora", "qlora")
_SERVED: tuple[Precision, ...] = ("bf16", "int4")


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f}"


def memory_document(memory: Memory, gpu: GpuModel) -> dict[str, object]:
    """The sum as JSON, in bytes."""
    return {
        "per_gpu_bytes": {part.name: round(part.bytes) for part in (*memory.fixed, memory.per_sequence)},
        "batch": memory.batch,
        "total_bytes": round(memory.total_bytes),
        "capacity_bytes": round(gpu.memory_bytes),
        "usable_bytes": round(USABLE * gpu.memory_bytes),
        "fits": memory.total_bytes <= USABLE * gpu.memory_bytes,
        "largest_batch": memory.largest_batch(gpu.memory_bytes),
    }


def _sum(memory: Memory, words: Speaker) -> list[str]:
    rows = [(words("per GPU"), "GiB", words("formula [source]"))]
    rows += [
        (f"  {words(part.name)}", _gib(part.bytes), words(part.formula))
        for part in (*memory.fixed, memory.per_sequence)
    ]
    total = words("total, batch {batch}", batch=str(memory.batch))
    rows.append((f"  {total}", _gib(memory.total_bytes), ""))
    return aligned(rows, right=(1,))


def _verdict(memory: Memory, gpu: GpuModel, words: Speaker) -> list[str]:
    usable = USABLE * gpu.memory_bytes
    spare = usable - memory.total_bytes
    largest = memory.largest_batch(gpu.memory_bytes)
    room = words(
        "{usable} GiB usable of {all} GiB ({gpu})",
        usable=_gib(usable),
        all=_gib(gpu.memory_bytes),
        gpu=gpu.name,
    )
    if spare >= 0:
        first = words("fits: yes, {size} GiB to spare in {room}", size=_gib(spare), room=room)
    else:
        first = words("fits: no, {size} GiB too much for {room}", size=_gib(-spare), room=room)
    if largest:
        return [first, words("largest batch per GPU: {batch}", batch=str(largest))]
    return [first, words("no batch fits: what does not depend on the batch, and one sequence, are too much")]


def training(model: LanguageModel, plan: Plan, memory: Memory, gpu: GpuModel, words: Speaker) -> str:
    """Memory of training, the verdict, and the same model trained and served in other ways."""
    return "\n".join(
        (
            words(
                "{model}, {how}, sequences of {tokens} tokens",
                model=_name(model, words),
                how=_how(plan, words),
                tokens=str(plan.sequence),
            ),
            "",
            *_sum(memory, words),
            "",
            *_verdict(memory, gpu, words),
            "",
            *_alternatives(model, plan, gpu, words),
        )
    )


def _name(model: LanguageModel, words: Speaker) -> str:
    return words(
        "{model}, {billions} B parameters", model=model.name, billions=f"{model.parameters / 1e9:.3g}"
    )


_RECOMPUTATION = {
    "full": Message("full recomputation"),
    "selective": Message("selective recomputation"),
}


def _how(plan: Plan, words: Speaker) -> str:
    parts = [words("full training") if plan.method == "full" else _adapter(plan.method, plan.rank, words)]
    parts.append(
        words(
            "{optimizer} in {precision}",
            optimizer=plan.optimizer,
            precision=words(labels.PRECISIONS[plan.precision]),
        )
    )
    parts += [words("{count} GPUs", count=str(plan.gpus))] if plan.gpus > 1 else []
    parts += [f"ZeRO {plan.zero}"] if plan.zero else []
    parts += [words(_RECOMPUTATION[plan.recompute])] if plan.recompute != "none" else []
    return words(", ").join(parts)


def _adapter(method: Method, rank: int, words: Speaker) -> str:
    name = {"lora": "LoRA", "qlora": "QLoRA", "full": ""}[method]
    return words("{adapter} rank {rank}", adapter=name, rank=str(rank))


def _alternatives(model: LanguageModel, plan: Plan, gpu: GpuModel, words: Speaker) -> list[str]:
    full = replace(plan, method="full", zero=0, recompute="none")
    ways = [(words("full training"), training_memory(model, full))]
    recomputed = training_memory(model, replace(full, recompute="full"))
    ways.append(("  " + words("with full recomputation"), recomputed))
    for stage in (1, 2, 3) if plan.gpus > 1 else ():
        name = words("with ZeRO {stage}", stage=str(stage))
        ways.append((f"  {name}", training_memory(model, replace(full, zero=stage))))
    for method in _ADAPTERS:
        memory = training_memory(model, replace(full, method=method))
        ways.append((_adapter(method, plan.rank, words), memory))
    for precision in _SERVED:
        served = inference_memory(model, batch=plan.batch, tokens=plan.sequence, precision=precision)
        ways.append((words("inference, {precision} weights", precision=precision), served))
    rows = [(words("other ways, the same batch"), "GiB", words("fits"), words("largest batch"))]
    for name, memory in ways:
        fits = memory.total_bytes <= USABLE * gpu.memory_bytes
        largest = memory.largest_batch(gpu.memory_bytes)
        rows.append(
            (
                f"  {name}",
                _gib(memory.total_bytes),
                words("yes") if fits else words("no"),
                str(largest or "-"),
            )
        )
    return aligned(rows, right=(1, 3))


def inference(
    model: LanguageModel,
    memory: Memory,
    gpu: GpuModel,
    time: TokenTime,
    batch: int,
    gpus: int,
    words: Speaker,
) -> str:
    """Memory of inference, the verdict, and the least time per token."""
    name = _name(model, words)
    return "\n".join(
        (
            words("{model}, inference on {count} GPUs", model=name, count=str(gpus))
            if gpus > 1
            else words("{model}, inference", model=name),
            "",
            *_sum(memory, words),
            "",
            *_verdict(memory, gpu, words),
            "",
            *_token_time(time, batch, words),
        )
    )


def _token_time(time: TokenTime, batch: int, words: Speaker) -> list[str]:
    first = words(
        "least time per token: {milliseconds} ms, {rate} tokens/s in all, bound by {bound}",
        milliseconds=f"{time.seconds * 1000:.3g}",
        rate=f"{batch / time.seconds:.0f}",
        bound=words("memory bandwidth") if time.bound == "memory" else words("compute"),
    )
    memory, compute = (f"{part * 1000:.3g} ms" for part in (time.memory_seconds, time.compute_seconds))
    rows = [
        ("  " + words("read memory"), memory, words("(weights + cache) / bandwidth")),
        ("  " + words("compute"), compute, words("2 P batch / dense peak [Scaling]")),
    ]
    return [first, *aligned(rows, right=(1,))]


def utilisation(
    model: LanguageModel,
    gpu: GpuModel,
    gpus: int,
    sequence: int,
    ratio: float,
    hours: float | None,
    words: Speaker,
) -> str:
    """MFU with what it was computed from and what others reach."""
    attention = " + 12 L a d s" if sequence else ""
    head = words(
        "MFU {ratio} %: {model} on {gpus}",
        ratio=f"{ratio * 100:.1f}",
        model=_name(model, words),
        gpus=f"{gpus} x {gpu.name}",
    )
    flop = f"{training_flop_per_token(model, sequence):.3g}   6 P{attention} [Scaling, PaLM]"
    rows = [("  " + words("FLOP per token"), flop)]
    rows.append(("  " + words("dense 16-bit peak"), f"{gpus * gpu.half_flops:.3g} FLOP/s"))
    rows += [("  " + words("training takes"), f"{hours:.1f} h")] if hours is not None else []
    lines = [head, *aligned(rows)]
    if ratio > 1:
        lines.append(
            words("more than the hardware can do: check the tokens per second and the number of GPUs")
        )
    lines.append(
        words("published: {values}", values="Llama 3 405B 38-43 %, PaLM 540B 46 %, MegaScale 175B 55 %")
    )
    return "\n".join(lines)


def growth(peaks: Sequence[Peak], factors: Sequence[float], fixed: float, words: Speaker) -> str:
    """Per device: peak, capacity and factor; the smallest factor counts."""
    rows = [("GPU", words("peak GiB"), words("of GiB"), words("batch x"))]
    rows += [
        (peak.device, _gib(peak.used_bytes), _gib(peak.capacity_bytes), f"{factor:.2f}")
        for peak, factor in zip(peaks, factors, strict=True)
    ]
    lowest = min(factors)
    formula = words(
        "(0.9 memory - {fixed}) / (peak - {fixed}), the smallest over the GPUs", fixed=_gib(fixed)
    )
    if lowest > 1:
        verdict = words(
            "about {factor} times the batch fits: {formula}", factor=f"{lowest:.1f}", formula=formula
        )
    else:
        verdict = words("no larger batch fits: {formula}", formula=formula)
    return "\n".join((*aligned(rows, right=(1, 2, 3)), "", verdict))


def cost(used: Used, pue: float, kwh: float, price: Cost, yearly: Cost | None, words: Speaker) -> str:
    """Energy and money."""
    rows = [
        (words("GPU-hours"), f"{used.gpu_hours:.2f}", words(used.source)),
        (words("energy of the GPUs"), f"{used.gpu_kwh:.2f} kWh", ""),
        (
            words("energy of the building"),
            f"{kwh:.2f} kWh",
            words("x PUE {pue}; the mean of surveyed sites is 1.54", pue=f"{pue:g}"),
        ),
    ]
    if price.total:
        parts = words(
            "GPU-hours {hardware} + energy {energy}",
            hardware=f"{price.hardware:.2f}",
            energy=f"{price.energy:.2f}",
        )
        rows.append((words("cost in all"), f"{price.total:.2f}", parts))
    if yearly is not None:
        formula = words("price / years + P 8760 h PUE price of energy")
        rows.append((words("one GPU, per year"), f"{yearly.total:.2f}", formula))
    return "\n".join(aligned(rows, right=(1,)))


def models(words: Speaker) -> str:
    """Known GPUs and models."""
    gpus = [("GPU", "GiB", "GB/s", words("dense 16-bit TFLOP/s"), "W")]
    gpus += [
        (
            gpu.name,
            _gib(gpu.memory_bytes),
            f"{gpu.bandwidth_bytes_per_second / 1e9:.0f}",
            f"{gpu.half_flops / 1e12:g}",
            f"{gpu.power_watts:g}",
        )
        for gpu in GPU_MODELS
    ]
    shapes = [tuple(words(name) for name in labels.MODEL_COLUMNS)]
    shapes += [
        (
            model.name,
            f"{model.parameters / 1e9:.3g} B",
            str(model.layers),
            str(model.hidden),
            str(model.heads),
            str(model.kv_heads),
        )
        for model in KNOWN.values()
    ]
    return "\n".join((*aligned(gpus, right=(1, 2, 3, 4)), "", *aligned(shapes, right=(1, 2, 3, 4, 5))))
