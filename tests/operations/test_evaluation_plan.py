"""`hmm-datasets plan` of pretrained models from their configuration: published sizes, memory, FLOPs, what fits."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.commands.plan import PlanCommand, plan_command
from hmm_datasets.errors import InputError
from hmm_datasets.operations.evaluation_plan import plan_measurement
from hmm_datasets.operations.planning import plan_recipe, planned, weight_bytes
from hmm_datasets.training.plan.accelerators import USABLE, find_device
from hmm_datasets.training.plan.forecast import peak_activations
from hmm_datasets.training.precision import set_type_of_weights
from hmm_datasets.training.pretrained import load_pretrained
from hmm_datasets.training.settings import SFTSettings

# Llama 3.2 1B, 3.1 8B and 3.1 70B: width, layers, heads, width of the feed-forward layers, tied embeddings.
SHAPES = {
    "1b": (2048, 16, 32, 8192, True),
    "8b": (4096, 32, 32, 14336, False),
    "70b": (8192, 80, 64, 28672, False),
}
NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "tie_word_embeddings")
SHARED = {"model_type": "llama", "dtype": "bfloat16", "vocab_size": 128256, "num_key_value_heads": 8}
PUBLISHED = {"1b": "1.24", "8b": "8.03", "70b": "70.6"}  # billions of parameters
SFT = ("--max_steps", "10", "--max_length", "128", "--global_batch_size", "8", "--per_device_train_batch_size", "1")


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    for name, values in SHAPES.items():
        content = SHARED | dict(zip(NAMES, values, strict=True)) | {"max_position_embeddings": 131072}
        (folder / f"{name}.json").write_text(json.dumps(content))
    return {name: str(folder / f"{name}.json") for name in SHAPES}


def evaluation(model: str, *flags: str, **how):
    return plan_measurement(planned("evaluate", ["--model", model, *flags]), **how)[0]


def test_the_parameters_of_llama_are_those_published(configs):
    found = plan_measurement(planned("benchmark"), models=list(configs.values()), devices=["H100"])
    for name, row in zip(configs, found, strict=True):
        assert f"{row['parameters'] / 1e9:.3g}" == PUBLISHED[name]
        assert row["weights"] == 2 * row["parameters"]
        assert row["memory"] == row["weights"] + row["activations"]
    fits = [row["memory"] <= row["devices"][0]["usable"] for row in found]
    assert fits == [True, True, False]


@pytest.mark.launch
def test_the_flops_of_an_evaluation_are_two_per_weight_and_those_of_attention(configs):
    row = evaluation(configs["8b"], "--window", "257", "--stride", "64", devices=["A100"], ranks=[1, 4])
    matrices = row["parameters"] - 128256 * 4096  # the input embedding is looked up
    assert (row["length"], row["tokens"]) == (256, 256 * 15_625)
    assert row["flops"] == row["tokens"] * (2 * matrices + 4 * 32 * 4096 * 256)
    (found,) = row["devices"]
    assert found["usable"] == round(USABLE * find_device("A100").memory)
    assert found["seconds"][1] == pytest.approx(row["flops"] / (0.4 * 312e12))
    assert found["seconds"][4] == pytest.approx(found["seconds"][1] / 4)


def test_weights_in_float32_have_no_known_time(tmp_path):
    LlamaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2).save_pretrained(tmp_path)
    row = evaluation(str(tmp_path), "--window", "9", devices=["H100"])
    assert row["precision"] == "float32"
    assert row["weights"] == 4 * row["parameters"]
    assert row["devices"][0]["seconds"] == {1: None}


def test_weights_in_bfloat16_have_no_known_time_where_there_are_no_units_for_it(configs):
    row = evaluation(configs["1b"], "--window", "65", devices=["T4", "A100"])
    assert [one["seconds"][1] is None for one in row["devices"]] == [True, False]


@pytest.mark.launch
def test_activations_of_scoring_do_not_grow_with_the_layers_and_those_of_answers_do():
    def peak(layers: int, use: str, rows: int = 4) -> int:
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = LlamaConfig(vocab_size=100, num_hidden_layers=layers, **sizes)
        return peak_activations(config, micro_batch_size=rows, length=128, chunked_loss=True, use=use)

    assert peak(2, "score") == peak(8, "score") < peak(8, "train")
    cache = 2 * 4 * 128 * 2 * 16 * 4  # keys and values, rows, tokens, heads, their features, bytes
    assert peak(8, "generate") - peak(5, "generate") == 3 * cache


def test_memory_of_answers_includes_their_keys_and_values(configs):
    flags = ("--window", "65", "--batch_size", "8")
    plain, chat = evaluation(configs["1b"], *flags), evaluation(configs["1b"], *flags, "--chat_data", "a.jsonl")
    assert plain["memory"] < chat["memory"] + 2**28  # of logits, which only scoring has
    assert chat["activations"] >= 2 * 16 * 8 * 64 * 8 * 64 * 2  # both, layers, rows, tokens, heads, features, bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_bfloat16_is_planned_as_it_is_trained(dtype, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_pretrained(AutoModelForCausalLM, str(tmp_path))
    assert model.dtype.itemsize == weight_bytes(model.config) == 2
    flags = ["--dtype", dtype] if dtype == "bfloat16" else []
    set_type_of_weights(model, SFTSettings(str(tmp_path / "run"), dtype=dtype if flags else None))
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.zeros(1, 4, dtype=torch.int64), labels=torch.zeros(1, 4, dtype=torch.int64)).loss.backward()
    optimizer.step()
    plan = plan_recipe("sft", ["--model", str(tmp_path / "config.json"), *SFT, *flags])
    assert plan["precision"] == {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    found = plan["memory"]["ddp"]
    kept = [tensor for state in optimizer.state.values() for tensor in state.values() if tensor.dim()]
    for name, tensors in (
        ("weights", list(model.parameters())),
        ("gradients", [weight.grad for weight in model.parameters()]),
        ("optimizer", kept),
    ):
        assert found[name] == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.launch
def test_fine_tuning_is_planned_from_a_configuration_alone_and_an_adapter_needs_less(configs, capsys):
    pytest.importorskip("peft")
    command = ["plan", "sft", "--model", configs["8b"], *SFT, "--bf16", "true", "--devices", "A100", "--json"]
    found = []
    for flags in (["--ranks", "1", "--dtype", "bfloat16"], ["--ranks", "1", "--use_peft", "true"]):
        assert main([*command, *flags]) == 0
        found += json.loads(capsys.readouterr().out)
    full, adapter = found
    assert full["memory"] > 8 * 8.03e9 > 2 * adapter["memory"] > 4 * 8.03e9
    assert adapter["hours"] < full["hours"]
    planned_run = plan_recipe("sft", ["--model", configs["1b"], *SFT])
    assert planned_run["tokens"] == 10 * 8 * 128
    assert planned_run["assumed_vocab_size"] == 128256


def test_a_large_model_does_not_fit_and_the_table_says_so(configs, capsys):
    command = ["plan", "evaluate", "--window", "65"]
    assert main([*command, "--models", configs["1b"], configs["70b"], "--devices", "H100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    small, large = (next(line for line in lines if f"{name}.json" in line) for name in ("1b", "70b"))
    assert "yes, of 68.55" in small
    assert "NO, of 68.55" in large
    assert main([*command, "--model", configs["1b"]]) == 0
    assert "device" not in capsys.readouterr().out.splitlines()[0]


def test_what_cannot_be_planned_is_refused(configs, tmp_path):
    with pytest.raises(InputError, match="give a MODEL"):
        plan_measurement(planned("benchmark"))
    with pytest.raises(InputError, match="device 'H999' is unknown"):
        plan_measurement(planned("benchmark", [configs["1b"]]), devices=["H999"])
    with pytest.raises(InputError, match="finds nothing to load"):
        plan_measurement(planned("benchmark", [str(tmp_path)]))
    with pytest.raises(InputError, match="--launch: has no effect on a plan of evaluate"):
        plan_command(PlanCommand(settings="evaluate", launch="ddp", flags=["--model", configs["1b"]]))
