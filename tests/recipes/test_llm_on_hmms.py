"""Language models of text on sequences of HMMs: how good predictions are, and the recipe."""

import numpy as np
import pytest
import torch
from experiments import load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.text.tokenizers.bpe import train_bpe

measure = load("llm_on_hmms", "measure")


RECIPE = load("llm_on_hmms")


@pytest.mark.parametrize("mixing", [0.0, 0.6, 0.95])
def test_the_chains_have_the_eigenvalues_that_they_are_named_by(mixing):
    hmm = RECIPE.cycle(6, mixing, 0.2, 3)
    moduli = np.sort(np.abs(np.linalg.eigvals(hmm.transition)))
    assert moduli == pytest.approx([mixing] * 5 + [1.0], abs=1e-12)
    assert hmm.emission.diagonal() == pytest.approx(0.8 + 0.2 / 6)


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(["A B C A B C A"] * 9, 266, show_progress=False)


def small_llama(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, max_position_embeddings=64, **sizes)).eval()


@pytest.mark.thorough
def test_no_predictor_is_more_accurate_than_the_exact_distributions():
    hmm = RECIPE.cycle(5, 0.7, 0.4, 0)
    tokens = hmm.sample(64, 32)
    exact = hmm.next_token_probs(tokens)[:, 1:-1]
    own, other = measure.agreement(exact, exact), measure.agreement(exact, measure.viterbi_predictions(hmm, tokens))
    assert (own["accuracy"] >= other["accuracy"]).all()
    assert own["kl"] == pytest.approx(0)
    assert own["hellinger"] == pytest.approx(0)
    assert (other["kl"] > 0).any()


def test_wrong_settings_are_refused():
    for wrong, message in (({"states": 40}, "states is 40"), ({"length": 2}, "length is 2"), ({"noise": []}, "noise")):
        with pytest.raises(InputError, match=message):
            RECIPE.LLMOnHMMsSettings(**wrong)


@pytest.mark.thorough
def test_any_folder_with_a_model_and_a_tokenizer_is_measured(program, succeeded, bpe, tmp_path):
    small_llama(len(bpe)).save_pretrained(tmp_path / "model")
    bpe.save_pretrained(tmp_path / "model")
    small = ("--states", 3, "--mixing", 0.9, "--noise", 0.1, "--length", 24, "--num_sequences", 4)
    command = (
        "recipes/experiments/llm_on_hmms/run.py",
        "--model",
        tmp_path / "model",
        "--output_dir",
        tmp_path / "out",
    )
    succeeded(program.run(*command, *small))
    content = read_json(tmp_path / "out" / "result.json")
    found = {one["quantity"]: one["measured"] for one in content["findings"]}
    assert found["accuracy of the Bayes-optimal predictor"] > found["accuracy of the model"]
    assert content["tokens"] == 0
    assert len(content["hmms"]) == 1
    assert (tmp_path / "out" / "accuracy.png").stat().st_size > 5_000
