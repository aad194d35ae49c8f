"""`hmm-datasets plan` of pretrained models from their configuration: published sizes, memory, FLOPs, what fits."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.operations.planning import plan_recipe
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


@pytest.mark.thorough
def test_the_parameters_of_llama_are_those_published(configs):
    for name, model in configs.items():
        assert f"{plan_recipe('sft', ['--model', model, *SFT])['parameters'] / 1e9:.3g}" == PUBLISHED[name]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_bfloat16_is_planned_as_it_is_trained(dtype, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_pretrained(AutoModelForCausalLM, str(tmp_path))
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


@pytest.mark.thorough
def test_fine_tuning_is_planned_from_a_configuration_alone_and_an_adapter_needs_less(configs, capsys):
    pytest.importorskip("peft")
    command = ["plan", "sft", "--model", configs["8b"], *SFT, "--bf16", "true", "--assumed_rate", "A100", "--json"]
    found = []
    for flags in (["--dtype", "bfloat16"], ["--use_peft", "true"]):
        assert main([*command, *flags]) == 0
        found.append(json.loads(capsys.readouterr().out))
    full, adapter = (plan["memory"]["ddp"]["total"] for plan in found)
    assert full > 8 * 8.03e9 > 2 * adapter > 4 * 8.03e9
    assert found[1]["time"]["seconds"] < found[0]["time"]["seconds"]
    planned_run = plan_recipe("sft", ["--model", configs["1b"], *SFT])
    assert planned_run["tokens"] == 10 * 8 * 128
    assert planned_run["assumed_vocab_size"] == 128256


@pytest.mark.parametrize("name", ["fit", "grpo", "evaluate", "benchmark", "demo/pretrain_hmm.yaml"])
def test_what_has_no_plan_is_refused_with_those_that_have_one(name, capsys):
    with pytest.raises(SystemExit):
        main(["plan", name])
    said = capsys.readouterr().err
    assert f"plan {name}: no recipe that has a plan; expected one of pretrain, midtrain, sft, dpo" in said
    assert ("as in: hmm-datasets plan pretrain --config demo/pretrain_hmm.yaml" in said) == name.endswith(".yaml")


@pytest.mark.thorough
def test_memory_is_named_by_its_optimizer(capsys):
    for optimizer, name in (("muon", "Muon"), ("adamw", "AdamW")):
        words = ["--hmm", "process:mess3", "--model", "1m", "--max_steps", "10", "--optimizer", optimizer]
        assert main(["plan", "pretrain", *words]) == 0
        assert f"Memory per rank in GiB, fp32, {name}; " in capsys.readouterr().out
