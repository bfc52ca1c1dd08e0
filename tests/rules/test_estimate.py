"""The formulas against published figures, and against what the wrong rules of thumb claim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import InputError
from gpudiag.rules.estimate import (
    CONTEXT_BYTES,
    USABLE,
    Plan,
    activations,
    adapter_parameters,
    batch_growth,
    batch_reduction,
    inference_memory,
    kv_bytes_per_token,
    state_bytes,
    training_memory,
)
from gpudiag.rules.gpu_models import GPU_MODELS, find
from gpudiag.rules.language_models import KNOWN, by_size, count_parameters, from_config, parse_count
from gpudiag.rules.throughput import (
    energy_kwh,
    forward_flop_per_token,
    job_cost,
    model_flops_utilization,
    token_time,
    training_flop_per_token,
    training_hours,
    yearly_cost,
)

LLAMA = KNOWN["llama-7b"]
GPT3 = KNOWN["gpt-3"]
GIB = 2.0**30


def _states(name: str, plan: Plan) -> float:
    """Bytes of weights, gradients and optimizer per parameter."""
    model = KNOWN[name]
    return sum(part.bytes for part in training_memory(model, plan).fixed[:3]) / model.parameters


def test_mixed_precision_adam_takes_sixteen_bytes_per_parameter() -> None:
    assert state_bytes("mixed", "adam") == (2, 2, 12)
    assert _states("llama-7b", Plan()) == pytest.approx(16)


@pytest.mark.parametrize(
    ("precision", "optimizer", "total"),
    [("fp32", "adam", 16), ("bf16", "adam", 8), ("mixed", "adam8bit", 10), ("mixed", "sgd", 8), ("mixed", "momentum", 12)],
)  # fmt: skip
def test_other_optimizers(precision: str, optimizer: str, total: float) -> None:
    assert sum(state_bytes(precision, optimizer)) == total  # type: ignore[arg-type]


@pytest.mark.parametrize(("stage", "expected"), [(1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_zero_partitions_as_in_table_1_of_the_paper(stage: int, expected: float) -> None:
    assert _states("llama-7b", Plan(gpus=64, zero=stage)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("llama-7b", 108), ("llama-13b", 208), ("llama-2-70b", 1104)]
)
def test_full_training_is_not_what_inference_takes(name: str, gigabytes: float) -> None:
    assert _states(name, Plan()) * KNOWN[name].parameters / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_activations_of_a_gpt_layer_without_recomputation() -> None:
    # s h (34 + 5 a s / h) bytes per layer, equation 1; GPT-3: 34 + 5 * 96 * 2048 / 12288 = 114
    plan = Plan(sequence=2048, flash=False)
    logits = 4 * 2048 * (GPT3.hidden + GPT3.vocabulary)
    per_layer = (activations(GPT3, plan).bytes - logits) / GPT3.layers
    assert per_layer == pytest.approx(2048 * 12288 * (34 + 80))


def test_selective_recomputation_and_flash_attention_drop_the_scores() -> None:
    logits = 4 * 2048 * (GPT3.hidden + GPT3.vocabulary)
    for plan in (Plan(recompute="selective", flash=False), Plan(flash=True)):
        per_layer = (activations(GPT3, plan).bytes - logits) / GPT3.layers
        assert per_layer == pytest.approx(2048 * 12288 * 34)


def test_full_recomputation_keeps_the_inputs_of_the_layers_and_one_layer() -> None:
    logits = 4 * 2048 * (GPT3.hidden + GPT3.vocabulary)
    kept = activations(GPT3, Plan(recompute="full")).bytes - logits
    assert kept == pytest.approx(2048 * 12288 * (2 * 96 + 34))


def test_activations_are_linear_in_the_sequence_with_flash_attention_only() -> None:
    def growth(flash: bool) -> float:
        short, long = (activations(LLAMA, Plan(sequence=s, flash=flash)).bytes for s in (2048, 8192))
        return long / short

    assert growth(True) == pytest.approx(4)
    assert growth(False) > 10


def test_tensor_parallelism_divides_weights_and_activations() -> None:
    one, four = (training_memory(LLAMA, Plan(gpus=4, tensor_parallel=tp)) for tp in (1, 4))
    assert four.fixed[0].bytes == one.fixed[0].bytes / 4
    assert four.per_sequence.bytes == pytest.approx(one.per_sequence.bytes / 4)


def test_qlora_fits_thirteen_billion_on_a_small_card_and_sixty_five_on_one_of_48_gb() -> None:
    fixed = training_memory(KNOWN["llama-13b"], Plan(method="qlora", rank=16)).fixed_bytes / 1e9
    assert 8 < fixed < 12
    large = training_memory(
        KNOWN["llama-2-70b"], Plan(method="qlora", rank=16, recompute="full", sequence=512)
    )
    assert large.total_bytes < USABLE * 48e9 * 1.1


def test_an_adapter_on_attention_alone_is_r_times_inputs_and_outputs() -> None:
    # 4 square maps of 4096 over 32 layers at rank 8
    assert adapter_parameters(LLAMA, 8, attention_only=True) == 32 * 4 * 8 * (4096 + 4096)


def test_key_value_cache_of_a_token_is_half_a_mebibyte_and_an_eighth_with_grouped_heads() -> None:
    assert kv_bytes_per_token(LLAMA) == 0.5 * 2**20
    assert inference_memory(LLAMA, batch=1, tokens=2048).per_sequence.bytes == GIB
    assert kv_bytes_per_token(KNOWN["llama-3-8b"]) == 128 * 2**10


def test_inference_weights_by_precision() -> None:
    sizes = [
        inference_memory(LLAMA, batch=1, tokens=1, precision=precision).fixed[0].bytes / 1e9
        for precision in ("fp32", "bf16", "int8", "int4")  # type: ignore[assignment]
    ]
    assert sizes == pytest.approx([26.95, 13.48, 6.74, 3.37], abs=0.01)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    memory = training_memory(KNOWN["llama-3-8b"], Plan(gpus=8, zero=3))
    capacity = 80 * GIB
    largest = memory.largest_batch(capacity)
    assert largest > 0
    assert memory.fixed_bytes + largest * memory.per_sequence.bytes <= USABLE * capacity
    assert memory.fixed_bytes + (largest + 1) * memory.per_sequence.bytes > USABLE * capacity


def test_no_batch_fits_when_the_states_alone_are_too_large() -> None:
    assert training_memory(KNOWN["llama-2-70b"], Plan()).largest_batch(80 * GIB) == 0


def test_batch_growth_from_measured_numbers() -> None:
    # 80 GiB card, 30 GiB peak of which 10 do not depend on the batch: (72 - 10) / (30 - 10)
    assert batch_growth(80 * GIB, 30 * GIB, 10 * GIB) == pytest.approx(3.1)
    assert batch_growth(80 * GIB, 79 * GIB) == 1.0
    assert batch_growth(80 * GIB, 0.1 * GIB) == 1.0


@given(st.floats(1, 200), st.floats(0.01, 1), st.floats(0.01, 1))
def test_growth_never_promises_more_than_fits(capacity: float, peak_share: float, fixed_share: float) -> None:
    capacity *= GIB
    peak = capacity * peak_share
    fixed = peak * fixed_share * 0.99
    growth = batch_growth(capacity, peak, fixed)
    if growth > 1:
        assert fixed + growth * (peak - fixed) <= USABLE * capacity * (1 + 1e-9)
    assert batch_growth(capacity, peak, 0.0) >= 1


def test_without_a_fixed_part_growth_is_too_small_rather_than_too_large() -> None:
    assert batch_growth(80 * GIB, 30 * GIB) < batch_growth(80 * GIB, 30 * GIB, 10 * GIB)


def test_batch_reduction_is_the_inverse_of_growth() -> None:
    share = batch_reduction(80 * GIB, 100 * GIB, CONTEXT_BYTES)
    assert CONTEXT_BYTES + share * (100 * GIB - CONTEXT_BYTES) == pytest.approx(USABLE * 80 * GIB)
    assert batch_reduction(80 * GIB, 20 * GIB) == 1.0
    assert batch_reduction(80 * GIB, 90 * GIB, 85 * GIB) == 0.0


def test_flop_of_gpt3() -> None:
    assert forward_flop_per_token(GPT3) == pytest.approx(0.35e12)
    assert forward_flop_per_token(GPT3) * 2048 == pytest.approx(717e12, rel=0.001)
    assert training_flop_per_token(GPT3) == 6 * GPT3.parameters
    assert training_flop_per_token(GPT3, recompute="full", useful=False) == 8 * GPT3.parameters
    assert training_flop_per_token(GPT3, recompute="full") == 6 * GPT3.parameters


def test_mfu_of_palm_as_published() -> None:
    # 540 B parameters, 118 layers, 48 heads of 256, 2048 tokens; 238.3 k tokens/s on 6144 chips of 275 TFLOP/s
    from dataclasses import replace

    palm = replace(GPT3, name="palm", parameters=540.35e9, layers=118, heads=48, head_size=256)
    assert model_flops_utilization(palm, 238.3e3, 6144, 275e12, 2048) == pytest.approx(0.462, abs=0.002)
    assert model_flops_utilization(palm, 238.3e3, 6144, 275e12) == pytest.approx(0.457, abs=0.002)


def test_training_time_follows_from_flop_and_mfu() -> None:
    hours = training_hours(LLAMA, 1e12, 2048, 312e12, 0.4)
    assert hours == pytest.approx(6 * LLAMA.parameters * 1e12 / (2048 * 312e12 * 0.4) / 3600)


def test_decoding_one_sequence_is_bound_by_memory_two_hundred_fold() -> None:
    gpu = find("A100-40GB")
    assert gpu is not None
    time = token_time(LLAMA, gpu)
    assert (time.bound, round(time.memory_seconds * 1e3, 1)) == ("memory", 8.7)
    assert 190 < time.memory_seconds / time.compute_seconds < 210


def test_a_large_batch_is_bound_by_compute() -> None:
    gpu = find("H100")
    assert gpu is not None
    assert token_time(LLAMA, gpu, batch=1024).bound == "compute"


def test_energy_and_cost_have_one_time_base() -> None:
    assert energy_kwh(500, 24, gpus=8, pue=1.5) == pytest.approx(144)
    assert job_cost(192, 144, 2.0, 0.2).total == pytest.approx(384 + 28.8)
    cost = yearly_cost(30_000, 500, 0.20, years=3, pue=1.5)
    assert cost.hardware == 10_000
    assert cost.energy == pytest.approx(0.5 * 8760 * 1.5 * 0.20)


@pytest.mark.parametrize("name", [name for name in KNOWN if not name.startswith("gpt")])
def test_shapes_give_the_published_number_of_parameters(name: str) -> None:
    assert count_parameters(KNOWN[name]) == pytest.approx(KNOWN[name].parameters, rel=0.001)


def test_a_config_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
            }
        )
    )  # fmt: skip
    model = from_config(path)
    assert model.parameters == pytest.approx(8.03e9, rel=0.001)
    assert kv_bytes_per_token(model) == 128 * 2**10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no readable"),
        ("[]", "JSON object"),
        ("{}", "num_hidden_layers|hidden_size"),
        ('{"hidden_size": "many"}', "hidden_size"),
    ],
)
def test_a_broken_config_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        from_config(path)


@pytest.mark.parametrize(("text", "count"), [("7B", 7e9), ("350m", 350e6), ("1.5e9", 1.5e9), ("7000", 7000)])
def test_sizes_as_people_write_them(text: str, count: float) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "seven", "-1B", "0", "7Q", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected one such as 7B"):
        parse_count(text)


@given(st.floats(1e7, 2e12))
def test_the_usual_shape_of_a_size_is_near_it(parameters: float) -> None:
    model = by_size(parameters)
    body = count_parameters(model) - model.embedding_parameters
    assert 0.3 < body / parameters < 3


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H100 PCIe", "H100-PCIe"), ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"), ("Tesla V100S-PCIE-32GB", "V100S"), ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA L4", "L4"), ("NVIDIA L40S", "L40S"), ("NVIDIA A10G", "A10G"), ("NVIDIA A10", "A10"), ("Tesla T4", "T4"),
        ("NVIDIA A40", "A40"), ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("NVIDIA B200", "B200"),
    ],
)  # fmt: skip
def test_gpus_are_found_by_what_the_driver_prints(printed: str, name: str) -> None:
    found = find(printed)
    assert found is not None
    assert found.name == name


def test_an_unknown_gpu_is_unknown() -> None:
    assert find("Voodoo 2") is None
    assert len({model.name for model in GPU_MODELS}) == len(GPU_MODELS)


def test_the_hint_about_a_larger_batch_uses_this_very_formula() -> None:
    import numpy as np

    from gpudiag.rules import value_functions
    from gpudiag.rules.loader import builtin

    assert builtin()["util/batch-can-grow"].lets["growth"].value == "batch_growth"
    values = iter([np.array([30.0, 79.0, np.nan]) * GIB, np.array([80.0, 80.0, 80.0]) * GIB])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_functions, "_child", lambda *_: next(values))
        grown = value_functions.PLAIN["batch_growth"](None, None, None)  # type: ignore[arg-type]
    assert grown[0] == batch_growth(80 * GIB, 30 * GIB)
    assert grown[1] == 1.0
    assert np.isnan(grown[2])
