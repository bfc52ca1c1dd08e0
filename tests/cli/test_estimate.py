"""`gpudiag estimate`: what it prints, in text and JSON, and what it refuses."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from command_line import Gpudiag

from gpudiag.cli.job_energy import mean_watts
from gpudiag.rules.estimate import batch_growth
from gpudiag.storage.job import Allocation, Device, Job
from gpudiag.storage.open import open_store
from gpudiag.storage.sample import Block, Frame, Source


def test_training_that_fits_and_the_other_ways(gpudiag: Gpudiag) -> None:
    out = gpudiag("estimate", "train", "--model", "llama-3-8b", "--gpus", "8", "--zero", "3").out
    assert "fits: yes" in out
    assert "12 P / 8 [ZeRO]" in out
    assert "QLoRA rank 16" in out
    assert "inference, int4 weights" in out


def test_training_that_does_not_fit_says_what_is_too_much(gpudiag: Gpudiag) -> None:
    out = gpudiag("estimate", "train", "--params", "70B", "--gpu", "A100-80GB").out
    assert "fits: no" in out
    assert "no batch fits" in out


def test_json_holds_the_same_numbers_in_bytes(gpudiag: Gpudiag) -> None:
    document = json.loads(gpudiag("estimate", "train", "--model", "llama-7b", "--json").out)
    assert document["schema_version"] == 1
    parts = document["per_gpu_bytes"]
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == pytest.approx(16 * 6.738e9)
    assert document["fits"] is False


@pytest.mark.parametrize("adapter", ["--lora", "--qlora"])
def test_adapters(gpudiag: Gpudiag, adapter: str) -> None:
    document = json.loads(gpudiag("estimate", "train", "--model", "llama-7b", adapter, "8", "--json").out)
    assert document["per_gpu_bytes"]["adapter optimizer"] < 1e9
    assert document["fits"] is True


def test_inference_names_what_binds_it(gpudiag: Gpudiag) -> None:
    outcome = gpudiag("estimate", "infer", "--model", "llama-7b", "--gpu", "A100-40GB")
    assert "bound by memory bandwidth" in outcome.out
    document = json.loads(
        gpudiag("estimate", "infer", "--model", "llama-7b", "--gpu", "A100-40GB", "--json").out
    )
    assert document["seconds_per_token"] == pytest.approx(0.00936, rel=0.01)


def test_mfu_from_tokens_per_second(gpudiag: Gpudiag) -> None:
    arguments = ("estimate", "mfu", "--model", "llama-3-8b", "--gpus", "8", "--tokens-per-second", "70000")
    document = json.loads(gpudiag(*arguments, "--total-tokens", "1B", "--json").out)
    assert document["mfu_ratio"] == pytest.approx(6 * 8.03e9 * 70000 / (8 * 989e12))
    assert document["training_hours"] == pytest.approx(1e9 / 70000 / 3600)


def test_more_than_the_hardware_can_do_is_pointed_out(gpudiag: Gpudiag) -> None:
    assert "check the tokens" in gpudiag(
        "estimate", "mfu", "--model", "llama-3-8b", "--tokens-per-second", "1e6"
    ).out  # fmt: skip


def test_cost_of_assumed_hours(gpudiag: Gpudiag) -> None:
    arguments = ("estimate", "cost", "--hours", "24", "--watts", "500", "--gpus", "8", "--price-kwh", "0.2")
    document = json.loads(gpudiag(*arguments, "--json").out)
    assert document["building_kwh"] == pytest.approx(144)
    assert document["cost"] == pytest.approx(28.8)


def test_myths_are_answered_with_computed_figures(gpudiag: Gpudiag) -> None:
    out = gpudiag("estimate", "myths").out
    for figure in ("16 GB per billion", "260 GB", "717 TFLOP", "1.0 GiB", "8.7 ms", "16 x", "10000 + 1314"):
        assert figure in out, figure


def test_known_names_are_listed(gpudiag: Gpudiag) -> None:
    out = gpudiag("estimate", "models").out
    assert "H100-PCIe" in out
    assert "llama-3-405b" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "expected one of --model"),
        (("train", "--model", "llama-7b", "--params", "7B"), "expected one of --model"),
        (("train", "--model", "hal-9000"), "is not known"),
        (("train", "--params", "some"), "expected one such as 7B"),
        (("train", "--params", "7B", "--gpu", "voodoo"), "GPU 'voodoo' is not known"),
        (("train", "--params", "7B", "--lora", "4", "--qlora", "4"), "not both"),
        (("train", "--params", "7B", "--gpus", "6", "--tensor-parallel", "4"), "no multiple"),
        (("train", "--config", "/no/such/config.json"), "no readable config.json"),
        (("cost",), "--hours and --watts"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    gpudiag: Gpudiag, arguments: tuple[str, ...], message: str
) -> None:
    outcome = gpudiag("estimate", *arguments)
    assert (outcome.code, message in outcome.err) == (2, True)


GIB = 2.0**30


@pytest.fixture
def stored_job(gpudiag: Gpudiag) -> None:
    """Job 42: two GPUs for 100 s at 300 W, peaks of 30 and 50 of 80 GiB."""
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    job = Job("local/42/1", "42", 1_749_772_800_000, 1_749_772_900_000, state="completed")
    for index, peak in enumerate((30, 50)):
        source = Source("node01", f"GPU-0000000{index}-0000-0000-0000-000000000000")
        frames = [
            Frame(
                source, job.start_ms + second * 1000,
                {"power_watts": 300.0, "memory_used_bytes": (peak if second == 50 else 10) * GIB},
            )
            for second in range(100)
        ]  # fmt: skip
        store.append(frames)
        store.put_devices([Device(source, job.start_ms, index=index, memory_total_bytes=80 * GIB)])
        store.put_allocations([Allocation(job.key, source, job.start_ms, job.end_ms, "hook")])
    store.put_job(job)
    store.close()


@pytest.mark.usefixtures("stored_job")
def test_the_batch_of_a_stored_job_from_its_measured_peak(gpudiag: Gpudiag) -> None:
    document = json.loads(gpudiag("estimate", "batch", "--job", "42", "--json").out)
    assert document["growth"] == batch_growth(80 * GIB, 50 * GIB)
    assert [device["peak_bytes"] for device in document["devices"]] == [30 * GIB, 50 * GIB]
    with_model = json.loads(
        gpudiag(
            "estimate", "batch", "--job", "42", "--params", "1B", "--gpus", "2", "--zero", "3", "--json"
        ).out
    )
    assert with_model["growth"] > document["growth"]
    assert "about 1.4 times the batch fits" in gpudiag("estimate", "batch", "--job", "42").out


@pytest.mark.usefixtures("stored_job")
def test_the_cost_of_a_stored_job_from_its_measured_power(gpudiag: Gpudiag) -> None:
    document = json.loads(gpudiag("estimate", "cost", "--job", "42", "--price-kwh", "0.5", "--json").out)
    assert document["gpu_hours"] == pytest.approx(200 / 3600, rel=0.02)
    assert document["gpu_kwh"] == pytest.approx(300 * 200 / 3.6e6, rel=0.02)
    assert document["cost"] == pytest.approx(document["gpu_kwh"] * 1.5 * 0.5)
    assert "measured" in document["source"]


def test_a_job_without_measurements_exits_with_4(gpudiag: Gpudiag) -> None:
    store = open_store(os.environ["GPUDIAG_DB"], node="node01")
    store.put_job(Job("local/42/1", "42", 1_749_772_800_000, 1_749_772_900_000))
    store.close()
    assert gpudiag("estimate", "batch", "--job", "42").code == 4
    assert gpudiag("estimate", "cost", "--job", "42").code == 4
    assert gpudiag("estimate", "cost", "--job", "43").code == 4


def test_an_energy_counter_is_preferred_and_its_reset_left_out() -> None:
    times = np.arange(4) * 1000
    energy = np.array([100.0, 400.0, 50.0, 350.0])
    block = Block(
        Source("n", "GPU-a"), times, {"energy_joules_total": energy, "power_watts": np.full(4, 1.0)}
    )
    assert mean_watts(block) == 300
