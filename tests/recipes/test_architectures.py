"""The comparison of architectures: its scores in closed form, and the experiment from its command to its report."""

import json

import numpy as np
import pytest
import torch
from experiments import load

from hmm_datasets.hmm.families.automata import RandomAutomata

TINY = ("--architectures", "gru", "--steps", 2, "--num_sequences", 8)


@pytest.fixture(scope="module")
def recipe():
    return vars(load("architectures"))


@pytest.mark.thorough
def test_the_oracle_is_always_right_and_the_uniform_prediction_pays_the_logarithm(recipe):
    family = RandomAutomata((4, 6), 8, alphabet=(4, 8), stop=0.05)
    tokens = torch.from_numpy(family.sample(20, 12, seed=1).astype(np.int64))
    oracle = family.oracle_next_token_probs(tokens, seed=1)[:, :-1]
    assert recipe["scores"](oracle, oracle, tokens)[:2] == (1.0, 0.0)
    uniform = torch.full_like(oracle, 1 / 9)
    accuracy, excess, by_token = recipe["scores"](uniform, oracle, tokens)
    assert accuracy == (oracle[..., 0] > 0).double().mean()
    assert excess == pytest.approx(np.log(9) + oracle.gather(-1, tokens[..., None]).log().mean().item())
    assert by_token.mean() == pytest.approx(excess)


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report(program, succeeded, tmp_path):
    config = ("--config", "recipes/experiments/architectures/small.yaml", "--output_dir", tmp_path)
    said = succeeded(program.run("recipes/experiments/architectures/run.py", *config, *TINY)).stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert [one["quantity"].split(":")[0] for one in result["findings"]] == [
        *(f"recall, gru of width {width}" for width in (16, 32, 64, 128)),
        "automata, gru of width 64",
        "automata, gru of width 64",
        "recall, a guess among the values of the row",
        "automata, a token at random",
        *(f"automata, {name} of the row" for name in ("unigram", "bigram", "trigram")),
    ]
    assert result["tokens"] == 2 * 64 * (4 * 25 + 65)
    assert (tmp_path / "architectures.png").read_bytes()[:4] == b"\x89PNG"
    assert "2401.12973" in said
