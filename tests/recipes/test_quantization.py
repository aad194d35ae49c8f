"""Quantized models against exact distributions: formats, divergences, and the recipe."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from experiments import load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes

RECIPE, measure = load("quantization"), load("quantization", "measure")
E = 3  # symbols of mess3


def small_llama(width: int = 64) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=E + 1, max_position_embeddings=33, bos_token_id=E, initializer_range=0.3, **sizes)
    return LlamaForCausalLM(config).eval()


def measured(model: LlamaForCausalLM, folder, formats: list[str]) -> dict:
    model.save_pretrained(folder)
    settings = SimpleNamespace(hmm="mess3", formats=formats, length=16, num_sequences=32, seed=0)
    return measure.measure(folder, settings)


def test_the_more_bits_a_format_has_the_closer_it_is_to_the_model(tmp_path):
    pytest.importorskip("gguf")
    formats = ["F16", "Q8_0", "Q5_1", "Q4_1"]
    whole = measured(small_llama(), tmp_path, formats)
    found = whole["formats"]
    assert [round(found[name]["bits"], 6) for name in formats] == [16, 8.5, 6, 5]
    distances = [found[name]["float32"]["mean"] for name in formats]
    assert distances == sorted(distances)
    assert 0 <= distances[0] < 1e-6 < distances[-1]
    assert abs(found["F16"]["rise"]["mean"]) < 1e-3 * whole["exact"]["mean"]


def test_divergences_are_those_computed_by_hand(tmp_path):
    pytest.importorskip("gguf")
    model = small_llama()
    found = measured(model, tmp_path, ["Q4_0"])
    hmm = processes.mess3()
    tokens = torch.from_numpy(hmm.sample(32, 16, seed=0, first=(1 << 63) + (1 << 32)).astype("int64"))
    exact = torch.as_tensor(hmm.next_token_probs(tokens))[:, :-1].double()
    rows = torch.nn.functional.pad(tokens, (1, 0), value=E)

    def log_probs(one: LlamaForCausalLM) -> torch.Tensor:
        with torch.no_grad():
            return one(rows).logits[:, :-1, :E].double().log_softmax(-1)

    before, after = log_probs(model), log_probs(measure.quantized(model, "Q4_0")[0])
    of_rows = {
        "exact": (exact * (exact.log() - after)).sum(-1).mean(1),
        "rise": (exact * (before - after)).sum(-1).mean(1),
        "float32": (before.exp() * (before - after)).sum(-1).mean(1),
    }
    for name, values in of_rows.items():
        figure = found["formats"]["Q4_0"][name]
        assert figure["mean"] == pytest.approx(float(values.mean()), rel=1e-6)
        assert figure["standard_error"] == pytest.approx(float(values.std() / 32**0.5), rel=1e-6)


def test_all_linear_layers_of_a_copy_are_quantized_and_nothing_else():
    pytest.importorskip("gguf")
    model = small_llama()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    changed, _ = measure.quantized(model, "Q4_0")
    linear = {f"{name}.weight" for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    for name, value in changed.state_dict().items():
        assert torch.equal(before[name], model.state_dict()[name])
        assert torch.equal(before[name], value) == (name not in linear)


def test_formats_of_torchao_are_near_the_model_too(tmp_path):
    pytest.importorskip("torchao")
    found = measured(small_llama(), tmp_path, ["int8", "int8_dynamic", "int4"])["formats"]
    assert found["int8"]["float32"]["mean"] < found["int4"]["float32"]["mean"] < 0.5


def test_wrong_settings_are_refused_before_anything_is_trained():
    for wrong, message in (
        ({"formats": ["Q9_9"]}, "formats has 'Q9_9'; expected some of F16, BF16"),
        ({"models": []}, "models is empty"),
        ({"num_sequences": 1}, "num_sequences is 1"),
    ):
        with pytest.raises(InputError, match=message):
            RECIPE.QuantizationSettings(**wrong)
    if importlib.util.find_spec("torchao") is None:
        with pytest.raises(InputError, match="torchao is not installed; pip install torchao"):
            RECIPE.check_packages(["Q8_0", "int8"])
    with pytest.raises(InputError, match="a layer has 48 inputs; expected a multiple of 32"):
        measure.quantized(small_llama(48), "Q8_0")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_small_run_trains_quantizes_and_reports(program, succeeded, tmp_path):
    pytest.importorskip("gguf")
    small = ("--models", "d1", "--train_tokens", 6_000, "--length", 16, "--num_sequences", 16)
    command = ("recipes/experiments/quantization/run.py", "--output_dir", tmp_path, "--formats", "Q8_0", "Q4_0")
    succeeded(program.run(*command, *small))
    found = read_json(tmp_path / "report.json")["models"]["d1"]
    assert list(found["formats"]) == ["Q8_0", "Q4_0"]
    assert found["formats"]["Q8_0"]["float32"]["mean"] < found["formats"]["Q4_0"]["float32"]["mean"]
    assert "| d1 | Q4_0 | 4.5 |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "quantization.png").stat().st_size > 5_000
