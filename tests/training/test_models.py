"""Any transformers configuration can be planned, trained, and saved as an ordinary model."""

import ast
import importlib.util
import json
import logging
import re
import types
import warnings
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, default_data_collator

import hmm_datasets
from hmm_datasets.errors import InputError
from hmm_datasets.files import write_json
from hmm_datasets.hmm import processes
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.training.model_configs import ModelSettings, check_packed, model_config, new_model, set_attention
from hmm_datasets.training.plan import memory
from hmm_datasets.training.pretrained import load_pretrained, on_device
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.sources import DataSettings
from hmm_datasets.training.trainer import Pretrainer

CONFIGURATIONS = {
    "llama": {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32},
    "qwen3": {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "head_dim": 8},
    "gpt_neox": {"num_attention_heads": 2, "intermediate_size": 32},
    "gpt2": {"n_head": 2},
    "mamba": {"state_size": 4},
}
DEFAULT_NAMES = {"hidden_size": 16, "num_hidden_layers": 2}
NAMES = {"gpt2": {"n_embd": 16, "n_layer": 2}}


@pytest.fixture(scope="module")
def hmm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hmm")
    processes.mess3(0.15, 0.6).save_pretrained(folder)
    return str(folder)


@pytest.mark.skipif(any(map(importlib.util.find_spec, ("flash_attn", "kernels"))), reason="flash attention is here")
def test_flash_attention_without_its_package_is_refused_in_one_line():
    config = model_config("1m", vocab_size=11, max_length=8)
    set_attention(config, "flash_attention_2")
    with pytest.raises(InputError, match=r"attention is 'flash_attention_2', which cannot be used here .* kernels or"):
        new_model(config)


@pytest.fixture(params=CONFIGURATIONS)
def configuration(request, tmp_path):
    """The configuration of a tiny model as a JSON file."""
    path = tmp_path / "configuration.json"
    kind = request.param
    names = NAMES.get(kind, DEFAULT_NAMES)
    path.write_text(json.dumps({"model_type": kind, **names, **CONFIGURATIONS[kind]}))
    return path


def train(hmm, model, folder, **settings):
    data = DataSettings(hmm=hmm, length=12, num_test_sequences=8).load()
    args = PretrainSettings(
        str(folder),
        **{"max_steps": 2, "save_steps": 1, "global_batch_size": 4, "per_device_train_batch_size": 4} | settings,
        report_to="none",
    )
    torch.manual_seed(0)
    model = new_model(ModelSettings(model=str(model)).config(data))
    plan = args.plan(data, model)
    trainer = Pretrainer(
        model=model,
        args=args,
        plan=plan,
        eval_dataset=data.test_rows,
        data_collator=default_data_collator,
    )
    return train_and_save(trainer, settings={}, data=data.identity)


@pytest.mark.thorough
def test_any_configuration_is_trained_without_a_warning_and_generates(hmm, configuration, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    logging.getLogger("transformers").propagate = True
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        summary = train(hmm, configuration, tmp_path / "run")
    assert summary["tokens"] == 2 * 4 * 13
    assert [record.getMessage() for record in caplog.records if "loss_type" in record.getMessage()] == []
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-1"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.use_cache
        assert model.generation_config.use_cache
        assert AutoConfig.from_pretrained(folder).use_cache
        prompt = torch.zeros(1, 3, dtype=torch.int64)
        assert model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False).shape == (1, 7)


@pytest.mark.thorough
def test_any_configuration_has_a_plan_with_its_memory(hmm, configuration, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"hmm: {hmm}\nlength: 12\nmodel: {configuration}\nmax_steps: 5\nglobal_batch_size: 4\n"
        f"per_device_train_batch_size: 2\noutput_dir: {tmp_path / 'run'}\n"
    )
    found = plan_recipe("pretrain", ["--config", str(settings)])
    assert found["tokens"] == 5 * 4 * 13
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(configuration))
    layers = [weight for name, weight in model.named_parameters() if ".layers." in name or ".h." in name]
    assert found["flops_per_token"] > 6 * sum(weight.numel() for weight in layers if weight.ndim > 1)
    assert found["memory"]["ddp"]["activations"] > 0


@pytest.mark.thorough
def test_the_memory_of_a_recurrent_model_is_found_from_short_rows(monkeypatch):
    config = AutoConfig.for_model("mamba", hidden_size=16, num_hidden_layers=1, state_size=4, vocab_size=9)
    exact = memory.peak_activations(config, micro_batch_size=2, length=20)
    monkeypatch.setattr(memory, "_MAX_TRACKED_SCAN", 8)
    assert memory.peak_activations(config, micro_batch_size=2, length=20) == pytest.approx(exact, rel=0.02)


@pytest.mark.thorough
def test_attention_that_is_not_fused_keeps_numbers_for_each_pair_of_positions():
    """Both in one process: the peaks are remembered by configuration."""
    peaks, length = {}, 1024
    for kind in ("eager", "sdpa"):
        config = model_config("d2", vocab_size=64, max_length=256)
        set_attention(config, kind)
        peaks[kind] = memory.peak_activations(config, micro_batch_size=1, length=length)
    told = memory.peak_activations(config, micro_batch_size=1, length=length, low_precision=False)
    assert peaks["sdpa"] == told, "in full precision, unless it is asked for"
    # The weights of one layer at least, in float32.
    assert peaks["eager"] - peaks["sdpa"] > 4 * length**2 * config.num_attention_heads


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("mamba", "MambaForCausalLM carries its state from one document"),
        ("opt", "OPTForCausalLM does not find the documents of a row by their positions"),
        ("gpt_oss", "GptOssForCausalLM does not find"),
    ],
)
def test_packed_documents_are_refused_to_a_model_that_would_mix_them(kind, told, tmp_path):
    (tmp_path / "model.json").write_text(json.dumps({"model_type": kind, "hidden_size": 64, "num_attention_heads": 4}))
    data = types.SimpleNamespace(vocab_size=9, row_length=8, special_tokens={}, packed=True)
    with pytest.raises(InputError, match=f"packed is set, but {told}"):
        ModelSettings(model=str(tmp_path / "model.json")).config(data)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "qwen3", "gemma3_text", "mixtral", "phi3"])
def test_packed_documents_are_given_to_models_that_find_them_by_their_positions(kind, tmp_path):
    config = CONFIG_MAPPING[kind]()
    check_packed(config)
    tiny = config.__class__(
        **{"vocab_size": 9, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": None, "initializer_range": 0.5},
    )
    model = AutoModelForCausalLM.from_config(tiny).eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6], [4, 2, 7, 4, 5, 6]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)
    first, second = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(first[3:], second[3:])
    assert not torch.allclose(first[2], second[2])


def test_an_attention_that_the_model_lacks_is_refused_in_one_line(tmp_path):
    (tmp_path / "mamba.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 16}))
    data = types.SimpleNamespace(vocab_size=9, row_length=8, special_tokens={}, packed=False)
    with pytest.raises(InputError, match="attention is 'flex_attention', but MambaForCausalLM has only eager"):
        ModelSettings(model=str(tmp_path / "mamba.json"), attention="flex_attention").config(data)


@pytest.mark.thorough
def test_a_cached_generation_of_a_saved_model_does_not_recompute_prefixes(hmm, tmp_path):
    train(hmm, "d1", tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    lengths = []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: lengths.append(inputs[0].shape[1]))
    model.generate(torch.zeros(1, 5, dtype=torch.int64), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert lengths == [5, 1, 1, 1]


@pytest.mark.parametrize("auto_class", [AutoConfig, AutoModelForCausalLM, AutoTokenizer])
def test_a_folder_never_runs_its_own_code(tmp_path, auto_class, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # to the question of transformers
    names = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M", "AutoTokenizer": ["code.T", None]}
    write_json(tmp_path / "config.json", {"model_type": "own", "auto_map": names})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "T", "auto_map": names})
    (tmp_path / "code.py").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})")
    with pytest.raises(InputError, match="custom code") as caught:
        load_pretrained(auto_class, str(tmp_path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.thorough
def test_whatever_is_loaded_by_name_is_told_not_to_run_its_code():
    root = Path(hmm_datasets.__file__).parents[1]
    for path in sorted([*root.glob("hmm_datasets/**/*.py"), *root.glob("recipes/**/*.py")]):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and re.match(r"Auto\w+\.from_pretrained$", ast.unparse(call.func)):
                assert "trust_remote_code=False" in ast.unparse(call), f"{path}:{call.lineno}"


@pytest.mark.parametrize(("free", "moves"), [(6_001, True), (6_000, False)])
def test_a_model_is_moved_to_a_gpu_that_has_room_for_it(free, moves, monkeypatch):
    model, moved = torch.nn.Linear(10, 100, bias=False), []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (free, 80_000))
    monkeypatch.setattr(model, "to", lambda device: moved.append(device) or model)
    assert on_device(model) is model
    assert moved == (["cuda"] if moves else [])


def test_loading_from_a_disk_draws_no_bar(tmp_path, capfd):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    new_model(CONFIG_MAPPING["llama"](vocab_size=5, **sizes)).save_pretrained(tmp_path)
    capfd.readouterr()
    load_pretrained(AutoModelForCausalLM, str(tmp_path))
    assert capfd.readouterr().err == ""
