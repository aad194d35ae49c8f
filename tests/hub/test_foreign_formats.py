"""What other libraries write is refused with what was expected, in one line."""

import json
import math
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.targets import open_target
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.training.pretrained import load_pretrained


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_mds(folder):
    shard = {"raw_data": {"basename": "shard.00000.mds"}, "zip_data": None, "samples": 3}
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    (folder / "shard.00000.mds").write_bytes(b"\x03\x00\x00\x00")


def write_litdata(folder):
    (folder / "index.json").write_text(json.dumps({"chunks": [{"filename": "chunk-0-0.bin"}], "config": {}}))
    (folder / "chunk-0-0.bin").write_bytes(b"\x00" * 9)


def write_megatron(folder):
    (folder / "text_document.idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 8))
    (folder / "text_document.bin").write_bytes(b"\x00" * 8)


def write_nanogpt(folder):
    for name in ("train", "val"):
        np.arange(9, dtype=np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(b"\x80\x04.")


def write_llm_c(folder):
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, 9
    (folder / "fineweb_train_000001.bin").write_bytes(head.tobytes() + np.arange(9, dtype=np.uint16).tobytes())


@pytest.mark.parametrize("write", [write_mds, write_litdata, write_megatron, write_nanogpt, write_llm_c])
def test_data_of_another_library_are_refused_with_what_was_expected(write, tmp_path):
    write(tmp_path)
    assert re.search(
        "expected .* tokenize_corpus|write the tokens with write_tokens", message(TokenStream, str(tmp_path))
    )
    assert "expected files that end in .txt, .jsonl" in message(load_corpus, str(tmp_path))
    assert "index.json" in message(open_target, str(tmp_path))


@pytest.mark.outside(
    "https://github.com/karpathy/nanoGPT/issues/202",
    "use the train.bin and val.bin of nanoGPT that somebody else has made",
    "cut at EOS and written with write_tokens, as the questions and answers show",
)
def test_tokens_of_nanogpt_become_a_stream_as_the_guide_shows(tmp_path):
    np.array([5, 6, 0, 7, 0], np.uint16).tofile(tmp_path / "train.bin")
    tokens = np.fromfile(tmp_path / "train.bin", dtype="<u2")
    documents = np.split(tokens, np.flatnonzero(tokens == 0) + 1)
    write_tokens(documents, tmp_path / "s", vocab_size=8, eos_id=0, tokenizer_hash="", corpus="c")
    assert TokenStream(tmp_path / "s").read(0, 5).tolist() == tokens.tolist()
    assert "numpy.split(tokens, numpy.flatnonzero(tokens == " in Path("docs/how_to/faq.md").read_text()


@pytest.mark.parametrize(
    "name", ["ckpt.pt", "lit_model.pth", "latest_checkpointed_iteration.txt", "model.safetensors", "tf_model.h5"]
)
def test_weights_of_another_library_are_refused_with_what_was_expected(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    for place in (tmp_path, tmp_path / name):
        error = message(load_pretrained, AutoModelForCausalLM, str(place))
        assert error.startswith(f"{place}: AutoModelForCausalLM finds nothing to load")
        assert error.endswith("; expected a folder with config.json and safetensors files, a GGUF file, or USER/NAME")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def changed(tiny, tmp_path, weights=None, **config):
    """A copy of the model with other weights and settings."""
    settings = json.loads((tiny / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file(weights or load_file(tiny / "model.safetensors"), tmp_path / "model.safetensors", {"format": "pt"})
    return str(tmp_path)


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/30887",
    "be told which package a quantized model needs, and not an ImportError",
    "its weights are quantized (bitsandbytes); install the package that reads them, with what transformers says of it",
)
@pytest.mark.parametrize(
    ("settings", "package"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, "optimum"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "gptqmodel"),
        ({"quant_method": "torchao", "quant_type": {"default": {}}}, "torchao"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_quantized_weights_are_named_with_the_package_that_reads_them(settings, package, tiny, tmp_path):
    error = message(load_pretrained, AutoModelForCausalLM, changed(tiny, tmp_path, quantization_config=settings))
    assert error.startswith(f"{tmp_path}: its weights are quantized ({settings['quant_method']}); install the package")
    assert package in error.partition("save_pretrained)")[2]


def test_quantized_weights_whose_configuration_was_lost_are_named(tiny, tmp_path):
    weights = load_file(tiny / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.qweight"] = torch.zeros(3, dtype=torch.uint8)
    error = message(load_pretrained, AutoModelForCausalLM, changed(tiny, tmp_path, weights))
    assert "1 unexpected weights: model.layers.0.mlp.up_proj.qweight" in error
    assert "as it was before it was quantized" in error


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_nan_or_infinite_are_named(value, tiny, tmp_path):
    weights = load_file(tiny / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = value
    error = message(load_pretrained, AutoModelForCausalLM, changed(tiny, tmp_path, weights))
    assert f"{tmp_path}: 1 weights have values that are NaN or infinite: model.layers.0.mlp.up_proj.weight;" in error
    assert load_pretrained(AutoModelForCausalLM, str(tiny)).num_parameters() > 0


@pytest.mark.outside(
    "https://github.com/huggingface/peft/issues/1932",
    "load an adapter on a model whose embeddings were resized since",
    "the adapter has embeddings for 40 tokens, its model has 32; merge it where it was trained",
)
@pytest.mark.parametrize(
    "settings", [{"modules_to_save": ["embed_tokens", "lm_head"]}, {"target_modules": ["embed_tokens", "q_proj"]}]
)
def test_an_adapter_with_a_resized_vocabulary_names_both_sizes(settings, tiny, tmp_path):
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(tiny)
    model.resize_token_embeddings(40)
    get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj"]} | settings)).save_pretrained(tmp_path)
    error = message(load_pretrained, AutoModelForCausalLM, str(tmp_path))
    assert " for 40 tokens, its model has 32: tokens were added when it was trained; merge it there" in error
