import json
import time

import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.data.views import HMMSequences
from hmm_datasets.hmm import processes
from hmm_datasets.training.accounting import Stopwatch
from hmm_datasets.training.devices import find_device, peak_flops
from hmm_datasets.training.flops import flops_per_token, matrix_parameters
from hmm_datasets.training.models import llama_config
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainers import Pretrainer


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A40", "bf16", 149.7),
        ("NVIDIA L40S", "fp16", 362),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", 181),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("Tesla T4", "fp16", 65),
        ("Tesla P100-PCIE-16GB", "fp16", 18.7),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
    ],
)
def test_a_known_device_has_the_peak_of_its_data_sheet(name, precision, teraflops):
    assert peak_flops(name, precision) == teraflops * 1e12


@pytest.mark.parametrize(
    ("name", "precision"),
    [("NVIDIA X9000", "bf16"), ("Tesla T4", "bf16"), ("NVIDIA H100 80GB HBM3", "fp32"), ("NVIDIA A1000", "bf16")],
)
def test_what_is_not_known_has_no_peak(name, precision):
    assert peak_flops(name, precision) is None


def test_names_that_begin_alike_are_told_apart():
    assert find_device("NVIDIA A10").name != find_device("NVIDIA A100 80GB PCIe").name
    assert find_device("NVIDIA GeForce RTX 3090 Ti") is None


@pytest.mark.parametrize("tied", [False, True])
def test_flops_are_those_that_torch_counts_in_the_matrix_products(tied):
    """All products of a row, forward and backward, as torch's own counter sees them dispatched."""
    from torch.utils.flop_counter import FlopCounterMode

    length = 32
    config = llama_config("1m", vocab_size=300, max_length=length, tie_embeddings=tied)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    tokens = torch.arange(2 * length).reshape(2, length)
    with FlopCounterMode(display=False) as counter:
        model(tokens, labels=tokens).loss.backward()
    assert matrix_parameters(model) == sum(
        weight.numel() for name, weight in model.named_parameters() if tied or "embed_tokens" not in name
    )
    # Norms' weights multiply no matrix; rotary angles are a product with one.
    assert counter.get_total_flops() == pytest.approx(flops_per_token(model, length) * 2 * length, rel=2e-3)


def test_a_stopwatch_adds_up_its_parts_and_starts_anew():
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        with watch.part("work"), watch.waiting("data"):
            time.sleep(0.02)
    found = watch.collect()
    assert found["work"] >= found["data"] >= 0.04
    assert watch.collect() == {}


def test_the_accounts_of_a_run_add_up(tmp_path):
    rows = HMMSequences(processes.mess3(), 15)
    settings = PretrainSettings(
        str(tmp_path),
        max_steps=6,
        global_batch_size=8,
        per_device_train_batch_size=4,
        logging_steps=2,
        price_per_hour=3.0,
        report_to="none",
    )
    model = LlamaForCausalLM(llama_config("1m", vocab_size=rows.vocab_size, max_length=16))
    trainer = Pretrainer(model=model, args=settings, train_dataset=rows)
    train_and_save(trainer, settings={}, data={}, row_length=16)
    logged = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    logged = [row for row in logged if "loss" in row]
    assert [row["step"] for row in logged] == [2, 4, 6]
    for row in logged:
        assert row["flops"] == row["tokens"] * flops_per_token(model, 16)
        assert row["tokens_per_second"] == pytest.approx(8 * 16 / row["step_seconds"])
        assert row["samples_per_second"] == pytest.approx(8 / row["step_seconds"])
        parts = [row[f"{name}_seconds"] for name in ("data", "forward", "backward", "optimizer")]
        assert min(parts) > 0
        assert sum(parts) < row["step_seconds"]
        assert row["seconds_left"] == pytest.approx((6 - row["step"]) * row["step_seconds"])
        assert "mfu" not in row, "a CPU has no peak here"
    costs = [row["cost"] for row in logged]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(sum(2 * row["step_seconds"] for row in logged) / 3600 * 3.0)
