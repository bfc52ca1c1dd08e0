"""Rules of thumb that widely read articles repeat, and what the formulas say instead; every figure is computed."""

from __future__ import annotations

from gpudiag.message import Message
from gpudiag.rules.estimate import Plan, inference_memory, kv_bytes_per_token, state_bytes, training_memory
from gpudiag.rules.gpu_models import find
from gpudiag.rules.language_models import KNOWN
from gpudiag.rules.throughput import DEFAULT_PUE, forward_flop_per_token, token_time, yearly_cost

_GIB = 2.0**30


def myths() -> list[tuple[Message, Message]]:
    """(what is claimed, what is right)."""
    return [
        (
            Message(
                "Training takes 1.5 to 2 GB per billion parameters, gradients as much again, Adam twice as much."
            ),
            _per_parameter(),
        ),
        (Message("7B needs 24 GB, 13B needs 40 GB, 70B needs 4 x 80 GB."), _three_columns()),
        (
            Message("Memory = P (2 + 4 seq / 1024) q with q = 2 for FP16: 13B takes 130 GB."),
            _no_quantised_activations(),
        ),
        (Message("GPT-3 needs 350 TFLOPs for one forward pass of a sequence."), _gpt3()),
        (Message("The key-value cache of LLaMA-7B at 2048 tokens is 5 GB."), _kv_cache()),
        (Message("A token of LLaMA-7B takes 9 ms for memory and 2 ms for compute on an A100."), _decode()),
        (Message("Activations grow with the square of the sequence length."), _attention()),
        (Message("The A100 80GB has 1555 GB/s."), _a100()),
        (
            Message("TF32 is 4 times and FP16 8 times FP32."),
            Message("A100 dense peaks: FP32 19.5, TF32 156 (8 x), 16-bit 312 (16 x)."),
        ),
        (Message("Total cost = hardware + power x PUE x 3 years, quoted per year."), _yearly()),
        (
            Message("A PUE of 1.2 to 1.5 is typical."),
            Message("The surveyed mean is 1.54; the default here is {pue}.", pue=f"{DEFAULT_PUE:g}"),
        ),
        (
            Message("Raise the batch when utilisation is below 70 %."),
            Message(
                "Only when both mean utilisation and peak memory are at most 50 % is the batch too small; low "
                "utilisation with memory above 80 % is a lack of memory, and an input-bound job gains nothing."
            ),
        ),
        (
            Message("bf16 needs a GradScaler, as fp16 does."),
            Message("bf16 has the range of fp32, so nothing underflows: scaling is for fp16 alone."),
        ),
    ]


def _per_parameter() -> Message:
    weight, gradient, optimizer = state_bytes("mixed", "adam")
    return Message(
        "Mixed-precision Adam keeps {weight} + {gradient} + {optimizer} = {total} bytes per parameter, "
        "{total} GB per billion, before activations [ZeRO].",
        weight=f"{weight:g}",
        gradient=f"{gradient:g}",
        optimizer=f"{optimizer:g}",
        total=f"{weight + gradient + optimizer:g}",
    )


def _three_columns() -> Message:
    lines = []
    for name in ("llama-7b", "llama-13b", "llama-2-70b"):
        model = KNOWN[name]
        served = inference_memory(model, batch=1, tokens=1).fixed[0].bytes
        adapter = sum(part.bytes for part in training_memory(model, Plan(method="qlora")).fixed[:-1])
        full = sum(part.bytes for part in training_memory(model, Plan()).fixed[:-1])
        lines.append(f"  {name:12} {served / 1e9:5.0f} / {adapter / 1e9:3.0f} / {full / 1e9:5.0f}")
    return Message(
        "True for 16-bit inference only. Weights and optimizer alone, GB (inference / QLoRA / full):\n{table}",
        table="\n".join(lines),
    )


def _no_quantised_activations() -> Message:
    literal = 13 * (2 + 4 * 2) * 2
    model = KNOWN["llama-13b"]
    full = training_memory(model, Plan(sequence=2048, recompute="full"))
    return Message(
        "With its own q = 2 that formula gives {literal} GB, and it scales activations by the precision of the "
        "weights. Full training: 16 P = {states} GB, and {activations} GB per sequence of 2048 tokens with full "
        "recomputation.",
        literal=str(literal),
        states=f"{16 * model.parameters / 1e9:.0f}",
        activations=f"{full.per_sequence.bytes / 1e9:.1f}",
    )


def _gpt3() -> Message:
    return Message(
        "2 P = {each} TFLOP per token, {sequence} TFLOP for 2048 tokens, three times that for training [Scaling]. "
        "TFLOP is an amount; TFLOP/s is a rate.",
        each=f"{forward_flop_per_token(KNOWN['gpt-3']) / 1e12:.2f}",
        sequence=f"{2 * 175e9 * 2048 / 1e12:.0f}",
    )


def _kv_cache() -> Message:
    each = kv_bytes_per_token(KNOWN["llama-7b"])
    return Message(
        "2 x 32 layers x 4096 x 2 bytes = {each} MiB per token, {sequence} GiB per sequence of 2048 tokens; 5 GB is "
        "a batch of five.",
        each=f"{each / 2**20:.2g}",
        sequence=f"{each * 2048 / _GIB:.1f}",
    )


def _decode() -> Message:
    gpu = find("A100-40GB")
    assert gpu is not None
    time = token_time(KNOWN["llama-7b"], gpu)
    return Message(
        "{memory} ms to read the weights, but {compute} ms to compute: decoding one sequence is {times} times memory "
        "bound.",
        memory=f"{time.memory_seconds * 1e3:.1f}",
        compute=f"{time.compute_seconds * 1e3:.3f}",
        times=f"{time.memory_seconds / time.compute_seconds:.0f}",
    )


def _attention() -> Message:
    model = KNOWN["llama-7b"]

    def size(tokens: int, flash: bool) -> str:
        each = training_memory(model, Plan(sequence=tokens, flash=flash)).per_sequence
        return f"{each.bytes / 1e9:.0f}"

    return Message(
        "Only the attention scores do. LLaMA-7B, 2048 to 4096 tokens: {stored} to {stored_double} GB with stored "
        "scores, {flash} to {flash_double} GB (linear) with flash attention [Recompute].",
        stored=size(2048, False),
        stored_double=size(4096, False),
        flash=size(2048, True),
        flash_double=size(4096, True),
    )


def _a100() -> Message:
    found = [(name, find(name)) for name in ("A100-40GB", "A100-80GB-PCIe", "A100-80GB")]
    rates = [f"{name} {gpu.bandwidth_bytes_per_second / 1e9:.0f} GB/s" for name, gpu in found if gpu]
    return Message(", ".join(rates) + ".")


def _yearly() -> Message:
    example = yearly_cost(30_000, 500, 0.20)
    return Message(
        "The two terms are of different lengths. Per year: price / 3 + P x 8760 h x PUE x price of energy; 30 000 "
        "for the GPU, 500 W, 0.20 per kWh, PUE {pue}: {hardware} + {energy} a year.",
        pue=f"{DEFAULT_PUE:g}",
        hardware=f"{example.hardware:.0f}",
        energy=f"{example.energy:.0f}",
    )
