import json
import time

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.hmm import processes
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.plan.accelerators import find_device, peak_flops
from hmm_datasets.training.plan.flops import _multiplying, flops_per_token, sequence_lengths, unit_flops
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.step.throughput import Stopwatch
from hmm_datasets.training.trainer import Pretrainer


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
        ("AMD Instinct MI250X", "bf16", 191.5),  # one of the two devices of a card
    ],
)
def test_a_known_device_has_the_peak_of_its_data_sheet(name, precision, teraflops):
    assert peak_flops(name, precision) == teraflops * 1e12


@pytest.mark.parametrize(
    ("name", "precision"),
    [("NVIDIA X9000", "bf16"), ("Tesla T4", "bf16"), ("NVIDIA H100 80GB HBM3", "fp32"), ("NVIDIA A1000", "bf16")],
)
def test_an_unknown_device_or_precision_has_no_peak(name, precision):
    assert peak_flops(name, precision) is None


def test_names_with_a_common_beginning_are_distinguished():
    assert find_device("NVIDIA A10").name != find_device("NVIDIA A100 80GB PCIe").name
    assert find_device("NVIDIA GeForce RTX 3090 Ti") is None


@pytest.mark.parametrize("tied", [False, True])
def test_flops_are_those_that_torch_counts_in_the_matrix_products(tied):
    """Compared with torch's own counter, over all products of a row in the forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    length = 32
    config = model_config("1m", vocab_size=300, max_length=length, tie_embeddings=tied)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    tokens = torch.arange(2 * length).reshape(2, length)
    with FlopCounterMode(display=False) as counter:
        model(tokens, labels=tokens).loss.backward()
    assert sum(size for size, _ in _multiplying(model)) == sum(
        weight.numel() for name, weight in model.named_parameters() if tied or "embed_tokens" not in name
    )
    # Norms' weights multiply no matrix; rotary angles are a product with one.
    assert counter.get_total_flops() == pytest.approx(flops_per_token(model, length) * 2 * length, rel=2e-3)


@pytest.mark.parametrize("tied", [False, True])
def test_a_frozen_embedding_saves_a_third_of_its_flops_only_where_it_is_the_output_layer(tied):
    model = LlamaForCausalLM(model_config("1m", vocab_size=300, max_length=8, tie_embeddings=tied))
    before = flops_per_token(model, 8)
    embedding = model.get_input_embeddings().weight.requires_grad_(False)
    assert before - flops_per_token(model, 8) == (2 * embedding.numel() if tied else 0)


def test_a_stopwatch_adds_up_its_parts_and_starts_again():
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        watch.begin("work")
        time.sleep(0.02)
        watch.add("data", 0.02)
        watch.end("work")
    found = watch.collect()
    assert found["work"] >= found["data"] >= 0.04
    assert watch.collect() == {}


SAVING = {"save_strategy": "steps", "save_steps": 3}


def settings(folder, **changes) -> PretrainSettings:
    common = {"max_steps": 6, "global_batch_size": 8, "per_device_train_batch_size": 4, "logging_steps": 1}
    return PretrainSettings(str(folder), **common | {"save_strategy": "no"} | changes)


def trainer(folder, rows, kind=Pretrainer, **changes) -> Pretrainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return kind(model=LlamaForCausalLM(config), args=settings(folder, **changes), train_dataset=rows)


def history(folder) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row]


def test_the_counts_of_a_run_add_up(tmp_path):
    run = trainer(tmp_path, HMMSequences(processes.mess3(0.15, 0.6), 15), logging_steps=2, price_per_hour=3.0)
    train_and_save(run, settings={}, data={})
    logged = history(tmp_path)
    assert [row["step"] for row in logged] == [2, 4, 6]
    for row in logged:
        assert row["flops"] == row["tokens"] * flops_per_token(run.model, 16)
        assert row["tokens_per_second"] == pytest.approx(8 * 16 / row["step_seconds"])
        assert row["samples_per_second"] == pytest.approx(8 / row["step_seconds"])
        parts = [row[f"{name}_seconds"] for name in ("data", "forward", "backward", "optimizer")]
        assert min(parts) > 0
        assert sum(parts) < row["step_seconds"]
        assert row["fraction"] == row["step"] / 6
        assert row["skipped_steps"] == 0
        assert "mfu" not in row, "a CPU has no peak here"
    passed = np.cumsum([2 * row["step_seconds"] for row in logged])
    left = [seconds * (1 / row["fraction"] - 1) for seconds, row in zip(passed, logged, strict=True)]
    assert [row["seconds_left"] for row in logged] == pytest.approx(left)
    assert [row["cost"] for row in logged] == pytest.approx(passed / 3600 * 3.0)


def test_the_fraction_of_a_plan_with_a_growing_batch_is_of_its_rows(tmp_path):
    run = trainer(tmp_path, HMMSequences(processes.mess3(0.15, 0.6), 15), batch_ramp=["4:2"])
    train_and_save(run, settings={}, data={})
    assert [row["fraction"] for row in history(tmp_path)] == [n / 40 for n in (4, 8, 16, 24, 32, 40)]
    assert [row["tokens"] for row in history(tmp_path)] == [16 * n for n in (4, 8, 16, 24, 32, 40)]


# FLOPs of rows of different lengths


def ragged_rows(count: int = 64) -> list[dict[str, list[int]]]:
    """Rows of 3 to 20 tokens, padded to 20, some tokens without a label."""
    random = np.random.default_rng(0)
    rows = []
    for length in random.integers(3, 21, count):
        tokens = random.integers(0, 8, length).tolist()
        labels = [-100 if index < length // 3 else token for index, token in enumerate(tokens)]
        padding = 20 - length
        rows.append(
            {
                "input_ids": tokens + [0] * padding,
                "attention_mask": [1] * length + [0] * padding,
                "labels": labels + [-100] * padding,
            }
        )
    return rows


@pytest.mark.parametrize("length", [3, 20])
def test_flops_of_a_sequence_do_not_depend_on_the_padding_beside_it(length):
    """Compared with torch's counter for each row alone, without padding."""
    from torch.utils.flop_counter import FlopCounterMode

    config = LlamaConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96
    )
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    of_token, of_pair = unit_flops(model)
    mask = torch.tensor([[1] * length + [0] * 10, [1] * (length + 10)])
    tokens, squares = sequence_lengths({"input_ids": mask, "attention_mask": mask})
    total = 0
    for row in mask:
        alone = row[row == 1].unsqueeze(0)
        with FlopCounterMode(display=False) as counter:
            model(alone, labels=alone).loss.backward()
        total += counter.get_total_flops()
    norms = 6 * tokens * sum(weight.numel() for weight in model.parameters() if weight.dim() == 1)
    # Norms' weights multiply no matrix; rotary angles are a product with one.
    assert of_token * tokens + of_pair * squares - norms == pytest.approx(total, rel=5e-4)


def test_packed_documents_cost_as_much_as_separate_ones():
    packed = {
        "input_ids": torch.zeros(1, 9, dtype=torch.int64),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 1, 8, 8]]),
        "labels": torch.tensor([[-100, 5, 5, -100, 5, -100, 5, -100, -100]]),
    }
    assert sequence_lengths(packed) == (3 + 2 + 2, 9 + 4 + 4)


@pytest.mark.thorough
def test_flops_of_ragged_rows_are_exact_and_survive_a_resume(tmp_path):
    rows = ragged_rows()
    whole = trainer(tmp_path / "whole", rows)
    train_and_save(whole, settings={}, data={})
    for steps in (3, 6):
        train_and_save(trainer(tmp_path / "halves", rows, max_steps=steps, **SAVING), settings={}, data={})
    of_token, of_pair = unit_flops(whole.model)
    lengths = [sum(row["attention_mask"]) for row in rows]
    expected = np.cumsum([of_token * n + of_pair * n * n for n in lengths]).tolist()
    flops = [expected[8 * step - 1] for step in range(1, 7)]
    assert [row["flops"] for row in history(tmp_path / "whole")] == flops
    assert [row["flops"] for row in history(tmp_path / "halves")] == flops


# The loss of a step


@pytest.mark.thorough
def test_the_loss_of_a_step_is_the_mean_over_its_labelled_tokens_however_rows_are_divided(tmp_path):
    rows = ragged_rows()
    one = trainer(tmp_path / "8", rows, per_device_train_batch_size=8, max_steps=1)
    columns = {name: torch.tensor([row[name] for row in rows[:8]]) for name in rows[0]}
    with torch.no_grad():
        expected = one.model(**columns).loss.item()
    means = [one.model(**{k: v[n : n + 2] for k, v in columns.items()}).loss.item() for n in range(0, 8, 2)]
    assert np.mean(means) != pytest.approx(expected, rel=1e-4), "the case must tell the two apart"
    for micro_batch in (8, 2, 1):
        run = trainer(tmp_path / f"{micro_batch}", rows, per_device_train_batch_size=micro_batch, max_steps=1)
        train_and_save(run, settings={}, data={})
        (row,) = history(tmp_path / f"{micro_batch}")
        assert row["loss"] == pytest.approx(expected, rel=1e-6)


def test_devices_have_the_memory_of_their_data_sheets():
    assert [find_device(name).memory for name in ("NVIDIA H200", "Tesla T4", "A100")] == [141e9, 16e9, 80e9]


def test_boards_have_the_peaks_of_their_units():
    assert find_device("T4").peak("bf16") == 65e12
    for name in ("Tesla T4", "Tesla V100-SXM2-32GB", "Tesla P100-PCIE-16GB"):  # no TF32: 8, 8 and 2 times slower
        device = find_device(name)
        assert device.fp16 / device.peak("fp32") == pytest.approx(2 if "P100" in name else 8, rel=0.02)
    assert find_device("H100").peak("fp32") == find_device("H100").peak("bf16")
    boards = map(find_device, ("V100", "V100 PCIe", "Tesla V100-SXM2-16GB"))
    assert [board.peak("fp16") for board in boards] == [125e12, 112e12, 125e12]
