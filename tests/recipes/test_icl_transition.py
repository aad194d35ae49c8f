"""The variants of the experiment on phases of in-context learning, without its training."""

import numpy as np
import pytest
import torch
from experiments import load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.evaluation.benchmark.symbols import SymbolTokens, symbol_predictions
from hmm_datasets.hmm.analysis.predictors import predictors_of
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

FOLDER = shipped(EXPERIMENTS) / "icl_transition"
RECIPE, in_context = load("icl_transition"), load("icl_transition", "in_context")


def settings(*arguments: str):
    return parse_settings(RECIPE.ICLTransitionSettings, arguments=list(arguments))[0]


def test_without_settings_the_experiment_is_that_of_three_symbols():
    chosen = settings()
    family = load_source(chosen.hmm)
    assert (family.num_symbols, family.alpha, family.start) == (3, 0.3, "uniform")
    (_, pretrain), (_, evaluate) = RECIPE.stages(chosen)
    assert "--hmm outputs/icl_transition/chains --length 96 --max_steps 600" in pretrain
    assert "evaluate outputs/icl_transition/pretrain" in evaluate


@pytest.mark.parametrize(
    ("name", "symbols", "exact"),
    [("fifty_symbols", 50, True), ("doubly_stochastic", 3, False), ("zipf", 8, False), ("stationary", 3, False)],
)
def test_variants_have_chains_and_a_folder_of_their_own(name, symbols, exact):
    chosen = settings("--config", str(FOLDER / f"{name}.yaml"))
    family = load_source(chosen.hmm)
    assert (family.num_symbols, family.has_exact_distribution) == (symbols, exact)
    assert family.has_oracle
    assert chosen.output_dir == f"outputs/icl_transition_{name}"
    assert f"--output_dir {chosen.output_dir}/pretrain" in RECIPE.stages(chosen)[0][1]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=4, max_position_embeddings=64, **sizes)).eval()


def test_the_divergences_by_context_are_those_of_the_definition(model):
    """Symbols are token ids, so that the first one is scored too, and has no place among the contexts."""
    family = load_source(settings().hmm)
    tokens = family.sample(6, 12, seed=0)
    symbols = SymbolTokens.ids(3, 3)
    found = in_context.divergences(model, symbols, family, tokens, 2)
    logits = symbol_predictions(model, symbols, tokens).numpy()
    own = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    values = torch.from_numpy(tokens.astype(np.int64))
    assert set(found) == {"uniform", "unigram", "bigram", "bayes"}
    for name, predict in predictors_of(family).items():
        exact = predict(values)[:, :-1].numpy()
        expected = (exact * np.log(exact / own)).sum(-1)[:, 1:]
        assert found[name] == pytest.approx(expected, abs=1e-9)


@pytest.mark.thorough
def test_the_nearest_predictor_of_each_span_is_the_one_of_least_divergence(tmp_path):
    divergences = {"uniform": np.full((5, 7), 0.3), "bigram": np.tile(np.linspace(0.6, 0.0, 7), (5, 1))}
    rows = in_context.summarize(divergences)
    assert [(row["first"], row["last"]) for row in rows] == [(1, 1), (2, 3), (4, 7)]
    assert [row["nearest"] for row in rows] == ["uniform", "uniform", "bigram"]
    assert rows[1]["bigram"] == {"kl": pytest.approx(0.45), "standard_error": pytest.approx(0)}
    assert "4 to 7" in in_context.table(rows, "").text()
    in_context.draw({"one": rows, "two": rows}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000
