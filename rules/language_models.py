"""Shapes of transformer language models: a few well-known ones, and any with a Hugging Face `config.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpudiag.errors import InputError

# these have an MLP of two matrices; all later families gate it with a third
_PLAIN_MLP = frozenset(
    ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "bert", "roberta")
)
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True)
class LanguageModel:
    """A decoder: number of parameters, layers, width, heads, key-value heads, head size, MLP width, vocabulary."""

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    gated: bool = True
    tied: bool = False

    @property
    def embedding_parameters(self) -> float:
        """Input embedding and output head."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden


def _llama(
    name: str, billions: float, layers: int, hidden: int, heads: int, kv: int, mlp: int, vocabulary: int
) -> LanguageModel:
    return LanguageModel(name, billions * 1e9, layers, hidden, heads, kv, hidden // heads, mlp, vocabulary)


# fmt: off
# published configurations: parameters (billions), layers, width, heads, key-value heads, MLP width, vocabulary
KNOWN = {model.name: model for model in (
    _llama("llama-7b", 6.738, 32, 4096, 32, 32, 11008, 32000),
    _llama("llama-13b", 13.016, 40, 5120, 40, 40, 13824, 32000),
    _llama("llama-2-70b", 68.977, 80, 8192, 64, 8, 28672, 32000),
    _llama("llama-3-8b", 8.030, 32, 4096, 32, 8, 14336, 128256),
    _llama("llama-3-70b", 70.554, 80, 8192, 64, 8, 28672, 128256),
    _llama("llama-3-405b", 405.853, 126, 16384, 128, 8, 53248, 128256),
    _llama("mistral-7b", 7.242, 32, 4096, 32, 8, 14336, 32000),
    _llama("qwen2.5-7b", 7.616, 28, 3584, 28, 4, 18944, 152064),
    replace(_llama("gpt-3", 175, 96, 12288, 96, 96, 49152, 50257), gated=False, tied=True),
    replace(_llama("gpt2-xl", 1.558, 48, 1600, 25, 25, 6400, 50257), gated=False, tied=True),
)}
# fmt: on


def parse_count(text: str) -> float:
    """`7B`, `350M`, `1.5e9` or `7000000000`; raises `InputError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)\s*", text.lower())
    if match is None or not float(match[1]):
        raise InputError(f"{text!r} is no number of parameters; expected one such as 7B or 350M")
    return float(match[1]) * _SUFFIXES[match[2]]


def by_size(parameters: float) -> LanguageModel:
    """The usual shape for a number of parameters: that of the nearest known model, scaled in depth and width.

    Good enough for activations and the key-value cache to about a third; give a `config.json` to be exact.
    """
    nearest = min(KNOWN.values(), key=lambda model: abs(_log_ratio(model.parameters, parameters)))
    scale = (parameters / nearest.parameters) ** (1 / 3)
    heads = max(1, round(nearest.heads * scale))
    return replace(
        nearest,
        name=f"{parameters / 1e9:g}B",
        parameters=parameters,
        layers=max(1, round(nearest.layers * scale)),
        heads=heads,
        kv_heads=min(heads, nearest.kv_heads),
        hidden=heads * nearest.head_size,
        mlp=round(nearest.mlp * heads / nearest.heads),
    )


def _log_ratio(left: float, right: float) -> float:
    return max(left, right) / min(left, right)


def from_config(path: Path) -> LanguageModel:
    """The model a Hugging Face `config.json` describes; raises `InputError`."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no readable config.json ({error})") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object such as a model's config.json")
    return _shape(path, config.get("text_config", config))


def _shape(path: Path, config: Mapping[str, Any]) -> LanguageModel:
    hidden = _whole(path, config, "hidden_size", "n_embd", "d_model")
    heads = _whole(path, config, "num_attention_heads", "n_head")
    plain = config.get("model_type") in _PLAIN_MLP
    model = LanguageModel(
        name=str(config.get("model_type", path.stem)),
        parameters=0.0,
        layers=_whole(path, config, "num_hidden_layers", "n_layer", "num_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_whole(path, config, "num_key_value_heads", default=heads),
        head_size=_whole(path, config, "head_dim", default=hidden // heads),
        mlp=_whole(path, config, "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden),
        vocabulary=_whole(path, config, "vocab_size"),
        gated=not plain,
        tied=bool(config.get("tie_word_embeddings", plain)),
    )
    return replace(model, parameters=count_parameters(model))


def _whole(path: Path, config: Mapping[str, Any], *names: str, default: int = 0) -> int:
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise InputError(f"{path}: {' or '.join(names)} is {value!r}; expected a positive whole number")
    return value


def count_parameters(model: LanguageModel) -> float:
    """Matrices of attention and MLP, norms and embeddings; biases and positions are left out (below 0.1 %)."""
    return (
        model.layers * (sum(i * o for i, o in matrices(model)) + 2 * model.hidden)
        + model.embedding_parameters
    )


def matrices(model: LanguageModel, attention_only: bool = False) -> list[tuple[int, int]]:
    """(inputs, outputs) of every linear map of one layer: query, key, value, output, MLP."""
    query, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    attention = [(model.hidden, query), (model.hidden, kv), (model.hidden, kv), (query, model.hidden)]
    if attention_only:
        return attention
    inward = [(model.hidden, model.mlp)] * (2 if model.gated else 1)
    return [*attention, *inward, (model.mlp, model.hidden)]
