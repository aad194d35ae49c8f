"""Language models of text on sequences of HMMs: how symbols are written, what is predicted, and the recipe."""

import itertools

import numpy as np
import pytest
import torch
from experiments import load
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.scoring import encode
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.tokenizer import hmm_tokenizer
from hmm_datasets.text.tokenizers.bpe import train_bpe

measure = load("llm_on_hmms", "measure")


RECIPE = load("llm_on_hmms")


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(["A B C A B C A"] * 9, 266, show_progress=False)


def letters_and_spaces():
    """A tokenizer that writes each character by itself, so that a symbol is a space and a letter."""
    tokenizer = Tokenizer(models.WordLevel({"<bos>": 0, " ": 1, "A": 2, "B": 3, "C": 4}, unk_token="<bos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


def small_llama(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, max_position_embeddings=64, **sizes)).eval()


@pytest.mark.parametrize("kind", ["bpe", "hmm", "characters"])
def test_written_rows_are_those_of_the_tokenizer(kind, bpe):
    tokenizer = {"bpe": bpe, "hmm": hmm_tokenizer("ABC", 3, bos=True), "characters": letters_and_spaces()}[kind]
    symbols = measure.SymbolTokens.of(tokenizer, "ABC")
    tokens = np.array([[0, 1, 2, 2], [2, 0, 0, 1]])
    whole = encode(tokenizer, ["A B C C", "C A A B"])
    assert symbols.written(tokens)[:, len(symbols.beginning) :].tolist() == whole
    # At each place stands the token after which the symbol's own one is predicted.
    rows, places = symbols.written(tokens), symbols.places(4)
    own = np.array(symbols.own)
    assert (rows[:, places + 1] == own[tokens[:, 1:]]).all()


def test_symbols_that_differ_in_more_than_one_token_are_refused(bpe):
    with pytest.raises(InputError, match="does not write each of A BB as the same tokens and one of its own"):
        measure.SymbolTokens.of(letters_and_spaces(), ["A", "BB"])
    with pytest.raises(InputError, match="name other symbols with --alphabet"):
        measure.SymbolTokens.of(bpe, ["A", "Z"])  # one token, and two


def test_predictions_are_the_model_s_probabilities_normalized_over_the_symbols(bpe):
    model, symbols = small_llama(len(bpe)), measure.SymbolTokens.of(bpe, "ABC")
    tokens = processes.mess3(0.15, 0.6).sample(3, 6)
    found = measure.text_predictions(model, symbols, tokens, batch_size=2)
    assert found.shape == (3, 5, 3)
    for row, t in itertools.product(range(3), range(1, 6)):
        prompt = torch.tensor([[*symbols.beginning, *encode(bpe, [" ".join("ABC"[x] for x in tokens[row, :t])])[0]]])
        prompt = torch.cat([prompt, torch.tensor([symbols.before], dtype=prompt.dtype)], dim=1)
        with torch.inference_mode():
            logits = model(prompt).logits[0, -1, list(symbols.own)].double()
        assert torch.allclose(found[row, t - 1], logits.softmax(-1), atol=1e-5)  # float32 sums of another order


def test_sequences_longer_than_the_context_are_refused(bpe):
    with pytest.raises(InputError, match="set a smaller --length"):
        measure.text_predictions(small_llama(len(bpe)), measure.SymbolTokens.of(bpe, "ABC"), np.zeros((1, 80), int))


def test_viterbi_predictions_follow_the_most_probable_path_of_all():
    hmm = processes.random(3, 4, alpha=0.5, seed=2)
    tokens = hmm.sample(5, 6)
    found = measure.viterbi_predictions(hmm, tokens)
    for row, length in itertools.product(range(5), range(1, 6)):
        seen = tokens[row, :length]

        def probability(path, seen=seen):
            first = hmm.start[path[0]] * hmm.emission[path[0], seen[0]]
            steps = zip(path, path[1:], seen[1:], strict=False)
            return first * np.prod([hmm.transition[a, b] * hmm.emission[b, x] for a, b, x in steps])

        best = max(itertools.product(range(3), repeat=length), key=probability)
        assert found[row, length - 1] == pytest.approx(hmm.transition[best[-1]] @ hmm.emission, abs=1e-12)
    assert measure.viterbi_predictions(hmm, tokens[:, :4])[:, -1] == pytest.approx(found[:, 2])


def test_no_predictor_is_more_accurate_than_the_exact_distributions():
    hmm = RECIPE.cyclic_hmm(5, 0.7, 0.4, 0)
    tokens = hmm.sample(64, 32)
    exact = hmm.next_token_probs(tokens)[:, 1:-1]
    own, other = measure.agreement(exact, exact), measure.agreement(exact, measure.viterbi_predictions(hmm, tokens))
    assert (own["accuracy"] >= other["accuracy"]).all()
    assert own["kl"] == pytest.approx(0)
    assert own["hellinger"] == pytest.approx(0)
    assert (other["kl"] > 0).any()


@pytest.mark.parametrize("mixing", [0.0, 0.6, 0.95])
def test_the_chains_have_the_eigenvalues_that_they_are_named_by(mixing):
    hmm = RECIPE.cyclic_hmm(6, mixing, 0.2, 3)
    moduli = np.sort(np.abs(np.linalg.eigvals(hmm.transition)))
    assert moduli == pytest.approx([mixing] * 5 + [1.0], abs=1e-12)
    assert hmm.emission.diagonal() == pytest.approx(0.8 + 0.2 / 6)


def test_wrong_settings_are_refused():
    for wrong, message in (({"states": 40}, "states is 40"), ({"length": 2}, "length is 2"), ({"noise": []}, "noise")):
        with pytest.raises(InputError, match=message):
            RECIPE.LLMOnHMMsSettings(**wrong)


@pytest.mark.launch
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
