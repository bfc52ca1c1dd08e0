"""How much device memory training and inference of a transformer take, and what batch fits.

Sources of the formulas, by the short names used below and in what `gpudiag estimate` prints:
[ZeRO] Rajbhandari et al., arXiv 1910.02054, section 3 and table 1: bytes per parameter and per partition.
[Recompute] Korthikanti et al., arXiv 2205.05198, equations 1 to 4: activations of a layer.
[LoRA] Hu et al., arXiv 2106.09685, section 4.1. [QLoRA] Dettmers et al., arXiv 2305.14314, section 3.
[GQA] Ainslie et al., arXiv 2305.13245: heads that share keys and values.
All sizes are bytes on one GPU unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpudiag.message import Message
from gpudiag.rules.language_models import LanguageModel, matrices

Precision = Literal["fp32", "bf16", "int8", "int4"]
Training = Literal["mixed", "fp32", "bf16"]
Optimizer = Literal["adam", "adam8bit", "momentum", "sgd"]
Recompute = Literal["none", "selective", "full"]
Method = Literal["full", "lora", "qlora"]

WEIGHT_BYTES: Mapping[Precision, float] = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
# [QLoRA]: 4 bits and, with double quantisation, 0.127 bits of constants
NF4_BYTES = (4 + 0.127) / 8
# a CUDA context with its kernels and workspaces takes 0.3 to 2 GiB per process; the middle of what is reported
CONTEXT_BYTES = 0.75 * 2**30
# of the device's memory, what an allocator that also fragments can be expected to use
USABLE = 0.90


@dataclass(frozen=True)
class Plan:
    """How a model is trained. `batch` is sequences per GPU and step; `zero` the stage, over `gpus` GPUs."""

    gpus: int = 1
    batch: int = 1
    sequence: int = 2048
    precision: Training = "mixed"
    optimizer: Optimizer = "adam"
    zero: int = 0
    recompute: Recompute = "none"
    flash: bool = True
    tensor_parallel: int = 1
    method: Method = "full"
    rank: int = 16


@dataclass(frozen=True)
class Part:
    """One line of a sum: what, bytes, and the formula with its source."""

    name: Message
    bytes: float
    formula: Message


@dataclass(frozen=True)
class Memory:
    """Memory of one GPU: what does not depend on the batch, and what each sequence adds."""

    fixed: tuple[Part, ...]
    per_sequence: Part
    batch: int

    @property
    def fixed_bytes(self) -> float:
        return sum(part.bytes for part in self.fixed)

    @property
    def total_bytes(self) -> float:
        return self.fixed_bytes + self.batch * self.per_sequence.bytes

    def largest_batch(self, capacity_bytes: float) -> int:
        """Sequences per GPU that fit in `USABLE` of the capacity; 0: not even one."""
        return largest_batch(capacity_bytes, self.fixed_bytes, self.per_sequence.bytes)


def largest_batch(capacity_bytes: float, fixed_bytes: float, per_sequence_bytes: float) -> int:
    """floor((0.9 capacity - fixed) / per sequence), never below 0."""
    room = USABLE * capacity_bytes - fixed_bytes
    return max(0, math.floor(room / per_sequence_bytes))


def batch_growth(capacity_bytes: float, peak_bytes: float, fixed_bytes: float = CONTEXT_BYTES) -> float:
    """By what factor the batch of a running job can grow, from its measured peak; 1 when it cannot.

    (0.9 capacity - fixed) / (peak - fixed): only what depends on the batch grows. Without a better figure
    `fixed` is the context alone, which makes the answer too small, never too large.
    """
    if peak_bytes <= fixed_bytes:
        return 1.0
    return max(1.0, (USABLE * capacity_bytes - fixed_bytes) / (peak_bytes - fixed_bytes))


def batch_reduction(capacity_bytes: float, wanted_bytes: float, fixed_bytes: float = CONTEXT_BYTES) -> float:
    """To what share the batch must shrink when a job wants `wanted_bytes` (its peak and what was refused).

    The inverse of `batch_growth`; 0 when what does not depend on the batch alone is too much.
    """
    if wanted_bytes <= fixed_bytes:
        return 1.0
    share = (USABLE * capacity_bytes - fixed_bytes) / (wanted_bytes - fixed_bytes)
    return min(1.0, max(0.0, share))


def state_bytes(precision: Training, optimizer: Optimizer) -> tuple[float, float, float]:
    """Bytes per trained parameter: weights, gradients, optimizer with its fp32 copy. Mixed Adam: 2 + 2 + 12 [ZeRO]."""
    weight = 4.0 if precision == "fp32" else 2.0
    master = 4.0 if precision == "mixed" else 0.0
    moment = 2.0 if precision == "bf16" else 4.0
    moments = {"adam": 2 * moment, "adam8bit": 2.0, "momentum": moment, "sgd": 0.0}[optimizer]
    return weight, weight, master + moments


def training_memory(model: LanguageModel, plan: Plan) -> Memory:
    """Weights, gradients, optimizer, context, and activations per sequence, on each GPU."""
    if plan.method == "full":
        states = _partitioned(model.parameters, plan, "P")
    else:
        adapter = adapter_parameters(model, plan.rank)
        states = (_frozen(model, plan), *_partitioned(adapter, plan, "P_lora"))
    return Memory((*states, _context()), activations(model, plan), plan.batch)


def _context() -> Part:
    formula = Message("0.75 GiB assumed; 0.3 to 2 GiB per process are seen")
    return Part(Message("CUDA context"), CONTEXT_BYTES, formula)


def _partitioned(parameters: float, plan: Plan, symbol: str) -> tuple[Part, ...]:
    names = _ADAPTER_STATES if symbol != "P" else _STATES
    split_from = (3, 2, 1)  # the ZeRO stage that partitions each
    parts = []
    for name, size, stage in zip(names, state_bytes(plan.precision, plan.optimizer), split_from, strict=True):
        ranks = plan.gpus // plan.tensor_parallel if plan.zero >= stage else 1
        share = ranks * plan.tensor_parallel
        formula = f"{size:g} {symbol}" + (f" / {share}" if share > 1 else "")
        parts.append(Part(name, size * parameters / share, Message(f"{formula} [ZeRO]")))
    return tuple(parts)


_STATES = (Message("weights"), Message("gradients"), Message("optimizer"))
_ADAPTER_STATES = (Message("adapter weights"), Message("adapter gradients"), Message("adapter optimizer"))


def _frozen(model: LanguageModel, plan: Plan) -> Part:
    if plan.method == "lora":
        return Part(Message("frozen weights"), 2 * model.parameters, Message("2 P [LoRA]"))
    embeddings = model.embedding_parameters
    size = NF4_BYTES * (model.parameters - embeddings) + 2 * embeddings
    formula = Message("0.516 (P - embeddings) + 2 embeddings [QLoRA]")
    return Part(Message("frozen weights"), size, formula)


def adapter_parameters(model: LanguageModel, rank: int, attention_only: bool = False) -> float:
    """Parameters of low-rank adapters on every linear map of every layer: r (inputs + outputs) [LoRA]."""
    shapes = matrices(model, attention_only)
    return float(model.layers * rank * sum(inputs + outputs for inputs, outputs in shapes))


def activations(model: LanguageModel, plan: Plan) -> Part:
    """What one sequence keeps until its backward pass, 16-bit, over all layers, and the logits.

    Per layer s h (34 + 5 a s / h) without recomputation; the second term, the attention scores, is gone with
    flash attention or selective recomputation; 2 s h (the layer's input) with full recomputation, plus one
    layer while it is recomputed. Tensor parallelism is with sequence parallelism, which divides all of it
    [Recompute, equations 1, 4 and 6, section 4.3 for the logits]. A gated MLP counts its own matrices.
    """
    layer, layer_formula = _layer_bytes(model, plan)
    if plan.recompute == "full":
        kept = 2.0 * plan.sequence * model.hidden / plan.tensor_parallel
        body = model.layers * kept + layer
        formula = f"L 2 s h + {layer_formula}"
    else:
        body = model.layers * layer
        formula = f"L {layer_formula}"
    logits = 4.0 * plan.sequence * (model.hidden + model.vocabulary) / plan.tensor_parallel
    whole = Message(f"{formula} + 4 s (h + V) [Recompute]")
    return Part(Message("activations per sequence"), body + logits, whole)


def _layer_bytes(model: LanguageModel, plan: Plan) -> tuple[float, str]:
    sequence, hidden = plan.sequence, model.hidden
    norms_and_attention = 4 * hidden + _attention_bytes(model)
    linear = norms_and_attention + _mlp_bytes(model)
    materialised = not plan.flash and plan.recompute == "none"
    scores = 5.0 * model.heads * sequence if materialised else 0.0
    text = f"s h ({linear / hidden:.0f}" + (" + 5 a s / h)" if materialised else ")")
    if plan.tensor_parallel > 1:
        text += f" / {plan.tensor_parallel}"
    return sequence * (linear + scores) / plan.tensor_parallel, text


def _attention_bytes(model: LanguageModel) -> float:
    # input, query, key, value and the attention's output at 2 bytes, the dropout mask at 1: 11 h when the heads
    # have keys and values of their own
    query, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    return 2.0 * (model.hidden + query + 2 * kv + query) + 1.0 * model.hidden


def _mlp_bytes(model: LanguageModel) -> float:
    if model.gated:  # input; gate, up, activated gate and product
        return 2.0 * model.hidden + 8.0 * model.mlp
    return 3.0 * model.hidden + 4.0 * model.mlp  # input, dropout mask; before and after the activation


def kv_bytes_per_token(model: LanguageModel, precision: Precision = "bf16") -> float:
    """Keys and values of one token over all layers: 2 L kv_heads head_size bytes [GQA]."""
    return 2.0 * model.layers * model.kv_heads * model.head_size * WEIGHT_BYTES[precision]


def inference_memory(
    model: LanguageModel,
    *,
    batch: int,
    tokens: int,
    precision: Precision = "bf16",
    kv_precision: Precision = "bf16",
    gpus: int = 1,
) -> Memory:
    """Weights, context, and the key-value cache per sequence of `tokens` (prompt and answer), on each of `gpus`."""
    size = WEIGHT_BYTES[precision]
    split = f" / {gpus}" if gpus > 1 else ""
    cache = kv_bytes_per_token(model, kv_precision) * tokens / gpus
    return Memory(
        (
            Part(Message("weights"), size * model.parameters / gpus, Message(f"{size:g} P{split}")),
            _context(),
        ),
        Part(
            Message("key-value cache per sequence"),
            cache,
            Message(f"2 L kv_heads head_size bytes tokens{split} [GQA]"),
        ),
        batch,
    )
