"""Scores of models whose losses are known in closed form."""

import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.benchmark.held_out import BASELINES, LENGTH, open_benchmark
from hmm_datasets.evaluation.benchmark.scoring import score_model, summarize_scores
from hmm_datasets.evaluation.benchmark.tracks import predictions_of
from hmm_datasets.hmm.causal_lm import HMMForCausalLM

FEW = open_benchmark(num_sequences=6).processes


@pytest.fixture
def accelerator():
    """Made for each test: its state is shared by the process, and TrainingArguments of other tests reset it."""
    return Accelerator(cpu=True)


def uniform_llama(vocab_size: int, bos: int | None) -> LlamaForCausalLM:
    """A Llama that predicts every token with the same probability."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = LlamaConfig(vocab_size=vocab_size, bos_token_id=bos, max_position_embeddings=2 * LENGTH, **sizes)
    model = LlamaForCausalLM(config).eval()
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


def word_tokenizer(words: list[str], *, split: bool) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per letter, or one for the letter and one for the space before it."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="?"))
    behavior = "isolated" if split else "removed"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="?")


def joining_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that writes `A B` as one token."""
    pieces = ["?", "A", "B", " ", "A ", "A B", "B "]
    merges = [("A", " "), ("A ", "B"), ("B", " ")]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges, unk_token="?"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="?")


@pytest.mark.thorough
def test_the_exact_hmm_scores_zero_on_every_process(accelerator):
    exact = {one.name: HMMForCausalLM.from_hmm(one.hmm, bos_token_id=one.hmm.num_symbols).eval() for one in FEW}
    found = score_model(exact, None, FEW, accelerator)
    assert found["track"] == "ids"
    assert len(found["processes"]) == 12
    for row in [*found["processes"].values(), found["mean"]]:
        assert abs(row["excess"]) < 1e-9
        assert row["share"] == pytest.approx(1)


@pytest.mark.thorough
def test_a_uniform_model_scores_the_logarithm_of_its_vocabulary_minus_the_optimum(accelerator):
    names = [one.name for one in FEW]
    found = score_model(dict.fromkeys(names, uniform_llama(17, 16)), None, FEW, accelerator)
    for one in FEW:
        row = found["processes"][one.name]
        optimum = -one.log_probs.mean()
        assert row["excess"] == pytest.approx(math.log(17) - optimum, abs=1e-6)
        assert row["baselines"]["uniform"] == pytest.approx(math.log(one.hmm.num_symbols) - optimum, abs=1e-12)
    excess, error = (
        np.array([row[key] for row in found["processes"].values()]) for key in ("excess", "standard_error")
    )
    assert found["mean"]["excess"] == pytest.approx(excess.mean())
    assert found["mean"]["standard_error"] == pytest.approx(np.sqrt((error**2).sum()) / 12)


def test_the_score_of_text_sums_over_the_tokens_of_each_symbol(accelerator):
    letters = [*"ABCDEFGHIJKLMNOP", "?", " "]
    [held_out] = open_benchmark(processes=["mess3"], num_sequences=3).processes
    model, log = uniform_llama(18, None), math.log(18)
    for split, tokens in ((False, 1), (True, 2)):
        tokenizer = word_tokenizer(letters, split=split)
        found = predictions_of(held_out, model, tokenizer, accelerator, batch_size=2)
        np.testing.assert_allclose(found.nats, tokens * log, atol=1e-6)
        np.testing.assert_allclose(found.log_probs, -tokens * log, atol=1e-6)
        scores = summarize_scores(found, held_out, "text")
        assert scores["optimum"] == pytest.approx(-held_out.log_probs[:, 1:].mean())


@pytest.mark.thorough
def test_no_baseline_is_better_than_the_optimum_and_knowing_the_twelve_costs_at_most_their_logarithm():
    for held_out in open_benchmark().processes[:6]:
        optimum = -held_out.log_probs.mean()
        losses = {name: values.mean() - optimum for name, values in held_out.baselines.items()}
        assert list(losses) == list(BASELINES)
        assert min(losses.values()) > -0.002
        assert losses["mixture"] <= math.log(12) / LENGTH + 1e-9


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            uniform_llama(3, 2),
            "the model has 3 tokens, and its bos_token_id is 2; expected 3 symbols of mess3 and after.*--process",
        ),
        (uniform_llama(17, 1), "bos_token_id is 1; expected 3 symbols of mess3 and after them a beginning token"),
        (uniform_llama(17, None), "bos_token_id is None; expected"),
    ],
)
def test_a_model_that_cannot_read_the_symbols_is_refused(model, message, accelerator):
    [held_out] = open_benchmark(processes=["mess3"], num_sequences=2).processes
    with pytest.raises(InputError, match=message):
        predictions_of(held_out, model, None, accelerator, batch_size=2)


def test_a_model_of_one_process_is_scored_on_that_one(accelerator):
    [held_out] = open_benchmark(processes=["even"], num_sequences=2).processes
    found = predictions_of(held_out, uniform_llama(3, 2), None, accelerator, batch_size=2)
    assert found.nats == pytest.approx(math.log(3))


@pytest.mark.thorough
def test_symbols_that_a_tokenizer_joins_are_scored_as_text_without_figures_over_the_symbols(accelerator):
    """`A B` is one token, so what a symbol costs is not one number."""
    [held_out] = open_benchmark(processes=["golden_mean"], num_sequences=3).processes
    tokenizer = joining_tokenizer()
    found = predictions_of(held_out, uniform_llama(7, 0), tokenizer, accelerator, batch_size=2)
    rows = [tokenizer.encode(text, add_special_tokens=False) for text in held_out.texts()]
    assert found.log_probs is None
    assert max(map(len, rows)) <= LENGTH  # of letters and spaces there are nearly twice as many
    # A first token that is the first symbol and nothing else is only context.
    firsts = [tokenizer.encode("AB"[row[0]], add_special_tokens=False) for row in held_out.tokens]
    scored = [len(row) - (row[:1] == first) for row, first in zip(rows, firsts, strict=True)]
    expected = [[count * math.log(7) / (LENGTH - 1)] for count in scored]
    np.testing.assert_allclose(found.nats, expected, rtol=1e-6)
    scores = summarize_scores(found, held_out, "text")
    assert scores["excess"] == pytest.approx(np.mean(expected) + held_out.log_probs[:, 1:].mean())
    assert "over_symbols" not in scores


def test_what_a_model_gives_to_words_that_are_no_symbols_costs_nothing_over_the_symbols(accelerator):
    [held_out] = open_benchmark(processes=["mess3"], num_sequences=4).processes
    found = score_model({"mess3": uniform_llama(17, 16)}, None, [held_out], accelerator)["processes"]["mess3"]
    rate = -(held_out.probs * np.log(held_out.probs)).sum(-1).mean()
    assert found["excess"] == pytest.approx(math.log(17) + held_out.log_probs.mean(), abs=1e-6)
    assert found["over_symbols"]["excess"] == pytest.approx(math.log(3) - rate, abs=1e-6)
    assert found["accuracy"]["optimum"] == pytest.approx(held_out.probs.max(-1).mean())


def test_the_share_of_the_mean_is_another_quantity_than_the_mean_of_the_shares(accelerator):
    names = [one.name for one in FEW]
    found = score_model(dict.fromkeys(names, uniform_llama(17, 16)), None, FEW, accelerator)
    rows, mean = list(found["processes"].values()), found["mean"]
    assert mean["share"] == pytest.approx(np.mean([row["share"] for row in rows]))
    above = np.mean([row["baselines"]["uniform"] for row in rows])
    assert mean["share_of_mean"] == pytest.approx(1 - np.mean([row["excess"] for row in rows]) / above)
    assert abs(mean["share"] - mean["share_of_mean"]) > 1
