"""bf16, torch.compile and other configurations than the presets train like the plain model."""

import json
from json import dumps
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import LENGTH, VOCABULARY, losses, random_rows, tiny_model, trainer
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoModelForCausalLM, GPT2Config, T5Config

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, read_yaml
from hmm_datasets.runtime.shipped import shipped
from hmm_datasets.training.model_configs import PRESETS, model_config, new_model
from hmm_datasets.training.parameters import count_parameters
from hmm_datasets.training.precision import find_precision, keep_loss_in_float32
from hmm_datasets.training.settings import PretrainSettings, SFTSettings

GPU = "NVIDIA X9000"


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU, with bfloat16 or without."""

    def pretend(has_bfloat16: bool) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: GPU)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)

    return pretend


def asked(bf16=None, fp16=False, use_cpu=False):
    return SimpleNamespace(bf16=bf16, fp16=fp16, use_cpu=use_cpu)


@pytest.mark.parametrize(
    ("has_bfloat16", "settings", "launcher", "json", "expected"),
    [
        (True, asked(), None, "auto", ("bf16", f"the default on {GPU}")),
        (True, asked(), "no", "auto", ("bf16", f"the default on {GPU}")),
        (False, asked(), "no", "auto", ("no", f"the default on {GPU}")),
        (None, asked(), "no", "auto", ("no", "the default on a CPU")),
        (True, asked(use_cpu=True), None, "auto", ("no", "the default on a CPU")),
        (None, asked(), "bf16", "auto", ("bf16", "set by mixed_precision of the launcher")),
        (True, asked(), "fp16", "auto", ("fp16", "set by mixed_precision of the launcher")),
        (True, asked(bf16=False), "bf16", "auto", ("no", "set by bf16")),
        (None, asked(bf16=True), "no", "auto", ("bf16", "set by bf16")),
        (True, asked(fp16=True), "bf16", "auto", ("fp16", "set by fp16")),
        (None, asked(), "no", True, ("bf16", "set by {json}")),
        (True, asked(), "no", False, ("no", "set by {json}")),
    ],
)
def test_a_precision_is_that_of_the_settings_the_launcher_the_json_or_the_device(
    has_bfloat16, settings, launcher, json, expected, gpu, monkeypatch, tmp_path
):
    if has_bfloat16 is not None:
        gpu(has_bfloat16)
    elif torch.accelerator.is_available():
        pytest.skip("there is a GPU")
    path = tmp_path / "ds.json"
    path.write_text(dumps({"bf16": {"enabled": json}, "fp16": {"enabled": "auto"}}))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    if launcher is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    assert find_precision(settings) == (expected[0], expected[1].format(json=path))


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/39849",
    "a DeepSpeed JSON with fp16 fails, since bf16 is assumed",
    "the run computes in float16, as the JSON says",
)
def test_fp16_of_a_deepspeed_json_is_the_precision_of_a_gpu_that_has_bfloat16_too(gpu, monkeypatch, tmp_path):
    gpu(has_bfloat16=True)
    path = tmp_path / "ds.json"
    path.write_text(dumps({"fp16": {"enabled": True, "loss_scale": 0}}))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert find_precision(asked()) == ("fp16", f"set by {path}")


@pytest.mark.parametrize(
    ("settings", "launcher", "json", "message"),
    [
        (asked(bf16=True, fp16=True), "no", "auto", "bf16 and fp16 are both true; set one of them"),
        (asked(), "fp8", "auto", "mixed_precision of the launcher is 'fp8'; expected no, fp16 or bf16"),
        (asked(bf16=True), "no", "auto", f"bf16 is set by bf16, but {GPU} has no bfloat16; set fp16 true, or bf16 fa"),
        (asked(bf16=False), "no", True, 'bf16 is true, but float32 is set by bf16; write "enabled": "auto" for bf16'),
    ],
)
def test_precisions_that_contradict_each_other_or_the_device_are_refused(
    settings, launcher, json, message, gpu, monkeypatch, tmp_path
):
    gpu(has_bfloat16=False)
    path = tmp_path / "ds.json"
    path.write_text(dumps({"bf16": {"enabled": json}}))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    with pytest.raises(InputError, match=message):
        find_precision(settings)


def test_shipped_configurations_leave_the_precision_of_gpus_to_the_default():
    for path in shipped("accelerate_configs").glob("*.yaml"):
        config = read_yaml(path)
        assert "mixed_precision" not in config or config.get("use_cpu"), path
    for path in shipped("ds_configs").glob("*.json"):
        config = read_json(path)
        assert (config["bf16"]["enabled"], config["fp16"]["enabled"]) == ("auto", "auto"), path


@pytest.mark.parametrize("kind", [PretrainSettings, SFTSettings])
def test_settings_name_the_precision_that_the_launcher_was_asked_for(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    given = {"max_steps": 1, "report_to": "none", "use_cpu": True}
    found, refused = kind(str(tmp_path), **given), kind(str(tmp_path), bf16=False, **given)
    assert (found.bf16, found.fp16, found.mixed_precision) == (True, False, "bf16")
    assert (refused.bf16, refused.fp16, refused.mixed_precision) == (False, False, "no")


def test_fsdp2_is_not_asked_to_round_the_loss():
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, output_dtype=torch.bfloat16)
    plugin = SimpleNamespace(mixed_precision_policy=low)
    keep_loss_in_float32(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    assert plugin.mixed_precision_policy == MixedPrecisionPolicy(low.param_dtype, low.reduce_dtype, None)


@pytest.mark.thorough
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
@pytest.mark.parametrize("chosen", [{}, {"z_loss": 0.01, "batch_ramp": ["4:2"]}])
def test_a_compiled_run_has_the_curve_of_an_eager_one_and_its_files(tmp_path, padded_to, chosen):
    padded_to(128 if chosen else 1)
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


def test_four_sizes_have_the_numbers_of_parameters_of_their_names_and_one_shape():
    """Without embeddings, of which a larger model of the same vocabulary has a smaller share."""
    shapes = {}
    for name in ("32m", "60m", "126m", "250m"):
        config = model_config(name, vocab_size=16, max_length=8)
        with torch.device("meta"):
            body = count_parameters(new_model(config))["body"]
        assert body == pytest.approx(1e6 * int(name[:-1]), rel=0.03), name
        shapes[name] = config.hidden_size / config.num_hidden_layers
    assert shapes == pytest.approx(dict.fromkeys(shapes, 70.8), rel=0.03)


@pytest.fixture
def gpt2(tmp_path):
    folder = tmp_path / "gpt2"
    GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=8, dtype="bfloat16", use_cache=True).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("file", ["", "config.json"])
def test_any_configuration_of_transformers_gets_the_vocabulary_of_the_data_and_trains(tmp_path, padded_to, gpt2, file):
    config = model_config(
        str(gpt2 / file), vocab_size=VOCABULARY, max_length=LENGTH, bos_token_id=3, eos_token_id=4, pad_token_id=5
    )
    assert (config.vocab_size, config.n_positions, config.use_cache) == (VOCABULARY, LENGTH, False)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (3, 4, 5)
    assert config.tie_word_embeddings
    model = AutoModelForCausalLM.from_config(config)
    assert model.dtype == torch.float32
    given = {"rows": random_rows(8) * 6, "learning_rate": 0.02, "optimizer": "muon"}
    padded_to(128)
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
