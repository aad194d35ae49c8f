"""How symbols are written for a language model, and what it predicts of each."""

import itertools

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.benchmark.symbols import SymbolTokens, symbol_predictions
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.tokenizer import hmm_tokenizer
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.encoding import encode_texts


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
    symbols = SymbolTokens.of(tokenizer, "ABC")
    tokens = np.array([[0, 1, 2, 2], [2, 0, 0, 1]])
    whole = encode_texts(tokenizer, ["A B C C", "C A A B"])
    assert symbols.written(tokens)[:, len(symbols.beginning) :].tolist() == whole
    # At each place stands the token after which the symbol's own one is predicted.
    rows, places = symbols.written(tokens), symbols.places(4)
    last = np.array(symbols.last)
    assert (rows[:, places + 1] == last[tokens[:, 1:]]).all()


def test_symbols_that_differ_in_more_than_one_token_are_refused(bpe):
    with pytest.raises(InputError, match="does not write each of A BB as the same tokens and one of its own"):
        SymbolTokens.of(letters_and_spaces(), ["A", "BB"])
    with pytest.raises(InputError, match="choose other symbols"):
        SymbolTokens.of(bpe, ["A", "Z"])  # one token, and two


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_log_probabilities_are_those_of_the_tokens_of_each_symbol_one_prefix_at_a_time(kind, bpe):
    tokenizer = bpe if kind == "bpe" else letters_and_spaces()
    model, symbols = small_llama(len(tokenizer)), SymbolTokens.of(tokenizer, "ABC")
    tokens = processes.mess3(0.15, 0.6).sample(3, 6)
    found = symbol_predictions(model, symbols, tokens, batch_size=2)
    assert found.shape == (3, 5, 3)
    for row, t in itertools.product(range(3), range(1, 6)):
        seen = [*symbols.beginning, *encode_texts(tokenizer, [" ".join("ABC"[x] for x in tokens[row, :t])])[0]]
        for symbol in range(3):
            tail = [*symbols.before, symbols.last[symbol]]
            with torch.inference_mode():
                logs = model(torch.tensor([seen + tail])).logits[0].double().log_softmax(-1)
            expected = sum(logs[len(seen) - 1 + k, token].item() for k, token in enumerate(tail))
            assert found[row, t - 1, symbol].item() == pytest.approx(expected, abs=1e-5)  # float32 in another order


def test_sequences_longer_than_the_context_are_refused(bpe):
    with pytest.raises(InputError, match="use shorter sequences"):
        symbol_predictions(small_llama(len(bpe)), SymbolTokens.of(bpe, "ABC"), np.zeros((1, 80), int))
