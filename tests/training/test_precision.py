"""bf16, torch.compile and other configurations than the presets train like the plain model."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import LENGTH, VOCABULARY, losses, random_rows, tiny_model, trainer
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoModelForCausalLM, GPT2Config, T5Config

from hmm_datasets.errors import InputError
from hmm_datasets.training.models import (
    PRESETS,
    count_parameters,
    llama_config,
    model_config,
)
from hmm_datasets.training.precision import keep_loss_in_float32


def test_fsdp2_is_not_asked_to_round_the_loss():
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, output_dtype=torch.bfloat16)
    plugin = SimpleNamespace(mixed_precision_policy=low)
    keep_loss_in_float32(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    assert plugin.mixed_precision_policy == MixedPrecisionPolicy(low.param_dtype, low.reduce_dtype, None)


def test_bf16_follows_the_curve_of_float32_and_keeps_float32_weights(tmp_path):
    given = {"rows": random_rows(8) * 30, "max_steps": 20, "learning_rate": 0.02}
    plain = losses(trainer(tmp_path, bf16=False, **given))
    run = trainer(tmp_path, bf16=True, **given)
    kinds = set()
    run.model.model.layers[0].mlp.down_proj.register_forward_hook(lambda layer, inputs, out: kinds.add(out.dtype))
    halved = losses(run)
    assert kinds == {torch.bfloat16}
    assert halved != plain
    assert halved == pytest.approx(plain, abs=0.03)
    assert plain[-1] < plain[0] - 2
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU, which takes fp16")
def test_fp16_without_a_gpu_is_refused(tmp_path):
    """accelerate 1.15 would train in float32 without a message."""
    with pytest.raises(
        InputError, match="fp16 is set, but there is no GPU, and accelerate would train in float32; use"
    ):
        trainer(tmp_path, fp16=True)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{}, {"z_loss": 0.01, "pad_vocabulary_to": 128, "batch_ramp": ["4:2"]}])
def test_a_compiled_run_has_the_curve_of_an_eager_one_and_its_files(tmp_path, chosen):
    given = {"learning_rate": 0.02, "max_steps": 6, **chosen}
    eager = losses(trainer(tmp_path, **given))
    run = trainer(tmp_path, torch_compile=True, save_strategy="steps", save_steps=6, **given)
    expected = count_parameters(run.model)
    assert losses(run) == pytest.approx(eager, abs=2e-5)
    assert count_parameters(run.accelerator.unwrap_model(run.model)) == expected
    saved = load_file(tmp_path / "checkpoint-6" / "model.safetensors")
    assert saved.keys() == dict(tiny_model().named_parameters()).keys()


# Models


def test_presets_have_heads_of_64_and_a_feed_forward_of_eight_thirds():
    for name in PRESETS:
        config = model_config(name, vocab_size=100, max_length=8)
        assert config.head_dim == 64
        assert config.num_attention_heads * 64 == config.hidden_size
        assert config.intermediate_size == pytest.approx(8 / 3 * config.hidden_size, abs=16)
        assert config.to_dict() == llama_config(name, vocab_size=100, max_length=8).to_dict()


@pytest.fixture
def gpt2(tmp_path):
    folder = tmp_path / "gpt2"
    GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=8, dtype="bfloat16", use_cache=True).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("file", ["", "config.json"])
def test_any_configuration_of_transformers_gets_the_vocabulary_of_the_data_and_trains(tmp_path, gpt2, file):
    config = model_config(
        str(gpt2 / file), vocab_size=VOCABULARY, max_length=LENGTH, bos_token_id=3, eos_token_id=4, pad_token_id=5
    )
    assert (config.vocab_size, config.n_positions, config.use_cache) == (VOCABULARY, LENGTH, False)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (3, 4, 5)
    assert config.tie_word_embeddings
    model = AutoModelForCausalLM.from_config(config)
    assert model.dtype == torch.float32
    given = {"rows": random_rows(8) * 6, "learning_rate": 0.02, "matrix_optimizer": "muon", "pad_vocabulary_to": 128}
    found = losses(trainer(tmp_path / "run", model=model, **given))
    assert found[-1] < found[0]


def test_a_larger_maximum_length_is_kept_and_embeddings_can_be_tied(gpt2):
    assert model_config(str(gpt2), vocab_size=9, max_length=4).n_positions == 8
    config = json.loads((gpt2 / "config.json").read_text()) | {"tie_word_embeddings": False}
    (gpt2 / "config.json").write_text(json.dumps(config))
    assert not model_config(str(gpt2), vocab_size=9, max_length=4).tie_word_embeddings
    assert model_config(str(gpt2), vocab_size=9, max_length=4, tie_embeddings=True).tie_word_embeddings


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "12m",
            "model preset '12m' is unknown; expected one of 1m, .*, a depth such as d12, or a transformers config",
        ),
        (
            "{folder}/none/config.json",
            "model '.*': no configuration found, neither in a folder or JSON file nor on",
        ),
        ("{folder}", "model '.*': no configuration found"),
        ("{folder}/t5", "model '.*/t5': T5Config does not configure a causal language model"),
    ],
)
def test_wrong_names_of_models_are_refused_in_one_line(tmp_path, name, message):
    T5Config().save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match=message) as caught:
        model_config(name.format(folder=tmp_path), vocab_size=9, max_length=4)
    assert "\n" not in str(caught.value)
