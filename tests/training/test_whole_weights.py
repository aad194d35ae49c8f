"""A model with missing, unexpected, reshaped or changed weights ends a command in one line with their names."""

import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_chat import save_tiny_chat
from tiny_gguf import save_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import DIGESTS_NAME, write_digests
from hmm_datasets.training.pretrained import load_pretrained

SIZES = {"vocab_size": 290, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


@pytest.fixture
def folder(tmp_path):
    save_tiny_chat(tmp_path / "model")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(path, **weights):
    """Change weights of a file; those that are None are removed."""
    found = load_file(path)
    for name, weight in weights.items():
        found.pop(name, None)
        if weight is not None:
            found[name] = weight
    save_file(found, path, {"format": "pt"})


def refusal(name, auto_class=AutoModelForCausalLM) -> str:
    with pytest.raises(InputError) as caught:
        load_pretrained(auto_class, str(name))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, "1 missing weights: model.layers.1.mlp.up_proj.weight;"),
        ({"model.layers.7.bias": torch.zeros(2)}, "1 unexpected weights: model.layers.7.bias;"),
        ({"model.norm.weight": torch.zeros(2)}, "1 weights of another shape: model.norm.weight (2,), not (32,);"),
        ({"lm_head.weight": None, "head.weight": torch.zeros(2)}, "lm_head.weight; 1 unexpected weights: head.weight"),
    ],
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/46620",
    "no model with random weights from `from_pretrained` without an error",
    "missing, unexpected and reshaped weights are refused by name (not if transformers itself reports none)",
)
def test_weights_that_are_not_those_of_the_configuration_are_named(weights, words, folder, caplog):
    change(folder / "model.safetensors", **weights)
    message = refusal(folder)
    assert words in message
    assert message.startswith(str(folder))
    assert "LOAD REPORT" not in caplog.text


def test_what_old_versions_saved_too_is_no_fault(folder):
    change(folder / "model.safetensors", **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    load_pretrained(AutoModelForCausalLM, str(folder))
    tied = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2, tie_word_embeddings=True))
    tied.save_pretrained(folder)
    change(folder / "model.safetensors", **{"lm_head.weight": tied.lm_head.weight.detach().clone()})
    load_pretrained(AutoModelForCausalLM, str(folder))


def test_weights_of_an_adapter_are_compared_too(folder, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = load_pretrained(AutoModelForCausalLM, str(folder))
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapter = tmp_path / "adapter"
    get_peft_model(base, config).save_pretrained(adapter)
    described = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(described | {"base_model_name_or_path": str(folder)}))
    load_pretrained(AutoModelForCausalLM, str(adapter))
    names = list(load_file(adapter / "adapter_model.safetensors"))
    change(adapter / "adapter_model.safetensors", **{names[0]: None, "base_model.model.x.weight": torch.zeros(1)})
    message = refusal(adapter)
    assert f"1 missing weights: {names[0].removeprefix('base_model.model.')}" in message
    assert "1 unexpected weights: x.weight" in message


def test_files_are_compared_with_the_digests_beside_them(folder):
    write_digests(folder)
    load_pretrained(AutoModelForCausalLM, str(folder))
    weights = load_file(folder / "model.safetensors")
    change(folder / "model.safetensors", **{"model.norm.weight": weights["model.norm.weight"] + 1})
    assert "model.safetensors: SHA-256 is" in refusal(folder)
    load_pretrained(AutoTokenizer, str(folder))
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    assert "tokenizer.json" in refusal(folder, AutoTokenizer)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert "config.json" in refusal(folder, AutoConfig)
    (folder / DIGESTS_NAME).unlink()
    load_pretrained(AutoModelForCausalLM, str(folder))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["missing", "unexpected", "reshaped", "digest"])
def test_a_gguf_file_has_all_weights_too(fault, folder, tmp_path, monkeypatch):
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    added = gguf.GGUFWriter.add_tensor

    def add_tensor(self, name, values):
        if name == "blk.1.ffn_up.weight" and fault == "missing":
            return
        if name == "blk.1.ffn_up.weight" and fault == "reshaped":
            values = np.ascontiguousarray(values[:32])
        added(self, name, values)
        if name == "blk.1.ffn_up.weight" and fault == "unexpected":
            added(self, "blk.7.ffn_up.weight", values)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_tensor)
    path = tmp_path / "tiny.gguf"
    save_gguf(LlamaForCausalLM(config), load_pretrained(AutoTokenizer, str(folder)), path)
    if fault == "digest":
        write_digests(tmp_path, ["tiny.gguf"])
        load_pretrained(AutoModelForCausalLM, str(path))
        with open(path, "r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x7f")
        assert "tiny.gguf: SHA-256 is" in refusal(path)
        return
    message = refusal(path)
    layer = 7 if fault == "unexpected" else 1
    assert f"model.layers.{layer}.mlp.up_proj.weight" in message or f"blk.{layer}.ffn_up.weight" in message
