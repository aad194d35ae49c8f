"""Constrained beliefs in one layer: the closed forms of the recipe, and a tiny run."""

import numpy as np
import pytest
import torch
from experiments import load
from transformers import LlamaConfig
from word_probes import all_words, fit_words

from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped
from hmm_datasets.training.model_configs import new_model

FOLDER = shipped(EXPERIMENTS) / "constrained_beliefs"
RECIPE = load("constrained_beliefs")

X = 0.1


@pytest.fixture(scope="module")
def words():
    return all_words(processes.mess3(x=X, a=0.7), 4)


def one_layer(heads):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=8,
        initializer_range=0.5,
    )
    return new_model(config).eval()


def test_a_symbol_weighs_by_powers_of_the_eigenvalue(words):
    found = RECIPE.constrained_beliefs(words)
    single = words.beliefs[words.lengths == 1] - 1 / 3
    for index, (row, length) in enumerate(zip(words.rows, words.lengths, strict=True)):
        symbols = words.tokens[row, :length]
        powers = (1 - 3 * X) ** np.arange(length)[::-1]
        np.testing.assert_allclose(found[index], 1 / 3 + powers @ single[symbols], atol=1e-12)


def test_after_one_symbol_constrained_beliefs_are_the_beliefs(words):
    first = words.lengths == 1
    np.testing.assert_allclose(RECIPE.constrained_beliefs(words)[first], words.beliefs[first], atol=1e-12)


def test_constrained_beliefs_are_a_sum_over_symbols_and_beliefs_are_not(words):
    features = RECIPE.additive_features(words)
    assert features.sum(1).tolist() == words.lengths.tolist()
    exact = fit_words(words, features, RECIPE.constrained_beliefs(words))
    assert exact.r2 > 1 - 1e-9
    np.testing.assert_allclose(RECIPE.additive_weights(words, exact.slope), (1 - 3 * X) ** np.arange(4), atol=1e-6)
    assert fit_words(words, features, words.beliefs).r2 < 0.99


def test_the_best_sum_decays_faster_than_the_eigenvalue_and_less_so_where_symbols_say_little():
    decays = []
    for a in (0.85, 0.4):
        words = all_words(processes.mess3(x=X, a=a), 6)
        slope = fit_words(words, RECIPE.additive_features(words), words.beliefs).slope
        decays.append(RECIPE.decay_of(RECIPE.additive_weights(words, slope)[1:]))
    assert decays[0] < 0.6 < decays[1] < 0.7


@pytest.mark.parametrize("rate", [0.85, 0.3, -0.5])
def test_a_decay_is_found_with_its_sign(rate):
    assert RECIPE.decay_of(-2.0 * rate ** np.arange(8)) == pytest.approx(rate, abs=1e-3)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_residual_after_attention_is_the_embedding_and_the_sum_of_weighted_values(words, heads):
    """What `weights_by_distance` relies on: values depend on the symbol alone."""
    model = one_layer(heads)
    after, _, attention, predicted = RECIPE.read(model, words, 3, batch_size=7)
    layer, embeddings = model.model.layers[0], model.get_input_embeddings().weight
    with torch.inference_mode():
        values = layer.self_attn.v_proj(layer.input_layernorm(embeddings)).reshape(4, heads, -1)
        out = layer.self_attn.o_proj.weight.reshape(8, heads, -1)
        moved = torch.einsum("zhd,mhd->hzm", values, out).numpy()
    tokens = np.concatenate([np.full((len(words.tokens), 1), 3), words.tokens], axis=1)
    summed = np.einsum("nhs,hnsm->nm", attention, moved[:, tokens])
    exact = embeddings.detach().numpy()[tokens[:, -1]] + summed
    np.testing.assert_allclose(after[words.lengths == 4], exact, atol=1e-5)
    np.testing.assert_allclose(predicted.sum(1), 1, atol=1e-5)
    assert RECIPE.weights_by_distance(model, words, attention, np.ones((8, 3))).shape == (4,)


@pytest.mark.parametrize("name", ["small", "full"])
def test_settings_of_both_sizes_are_read(name):
    (settings,) = parse_settings(
        *recipe_settings("constrained-beliefs"), arguments=["--config", str(FOLDER / f"{name}.yaml")]
    )
    assert min(settings.values) < 1 / 3 < max(settings.values)  # eigenvalues of both signs


@pytest.mark.thorough
def test_a_tiny_experiment_has_its_report_and_picture(program, succeeded, tmp_path):
    command = ["-m", "hmm_datasets.cli", "experiment", "constrained-beliefs", "--config", str(FOLDER / "small.yaml")]
    command += ["--output_dir", str(tmp_path), "--steps", "5"]
    said = succeeded(program.run(*command, "--values", "0.5")).stdout
    assert "x = 0.5, heads 2: after attention R2" in said
    result = read_json(tmp_path / "result.json")
    assert [row["heads"] for row in result["models"]] == [1, 2]
    for row in result["models"]:
        assert len(row["weights"]) == 10
        assert row["eigenvalue"] == pytest.approx(-0.5)
    assert (tmp_path / "constrained_beliefs.png").stat().st_size > 10_000
