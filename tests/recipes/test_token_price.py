"""The experiment on the price of tokenizers: its exact losses on small texts, and its run from command to report."""

import math

import numpy as np
import pytest
import torch
from experiments import imports_of, load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm.loading import load_source

texts, sources, prices, run = (load("token_price", name) for name in ("texts", "sources", "prices", "run"))

CHAIN = "context_trees(4, 2, alpha=0.5, stop=0.2)"
SIZES = (1, 2, 3, 4, 5, 8, 16)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(texts, "ROWS", 4)
    monkeypatch.setattr(texts, "LENGTH", 1500)
    monkeypatch.setattr(texts, "WINDOWS", SIZES)


def test_both_parts_add_up_to_what_a_model_loses_beyond_the_best_predictor_of_all_tokens(small):
    source = sources.named_source(CHAIN)
    cut = texts.Texts.of(source.hmm, "clean", 12)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    uniform = LlamaForCausalLM(LlamaConfig(vocab_size=13, num_key_value_heads=1, **sizes))
    torch.nn.init.zeros_(uniform.lm_head.weight)
    exact = texts.exact_losses(cut, source.order)
    result = {**exact, "models": [texts.model_losses(uniform, cut, 16)]}
    losses = {name: np.array(values) for name, values in exact["windows"]["16"].items()}
    tokens = 16 * np.array([(count - texts.SKIPPED) // 16 for count in exact["tokens"]])
    beyond = (tokens * math.log(13) - losses["full"]) / losses["symbols"] / math.log(2)
    assert prices.price(result, 16) + prices.excess(result, 16) == pytest.approx(beyond, rel=1e-6)
    means = [prices.price(result, size).mean() for size in (1, 4, 16)]
    assert means[0] > means[1] > means[2] > 0


def test_the_losses_of_all_tokens_are_the_log_likelihood_of_rows_of_different_lengths(small):
    cut = texts.Texts.of(sources.named_source(CHAIN).hmm, "clean", 12)
    assert len(set(map(len, cut.rows))) > 1
    for losses, row in zip(texts.losses_of_all(cut), cut.rows, strict=True):
        assert losses.sum() == pytest.approx(-cut.process.log_likelihood(row[None])[0], rel=1e-12)


@pytest.mark.parametrize(("kind", "size"), [("symbols", 2), ("clean", 5), ("leaky", 12)])
def test_the_gap_of_a_short_context_is_below_its_bound_and_none_where_no_symbol_lacks(small, kind, size):
    source = sources.named_source(CHAIN)
    result = {**texts.exact_losses(texts.Texts.of(source.hmm, kind, size), source.order), "symbols": 2}
    gaps = [result["gaps"][str(size - 1)] / math.log(2) for size in SIZES]
    bounds = [prices.bound(result, size - 1) for size in SIZES]
    lacking = [bound > 0 for bound in bounds]
    assert lacking[1]
    assert not lacking[SIZES.index(5)]
    for gap, bound, lacks in list(zip(gaps, bounds, lacking, strict=True))[1:]:
        assert gap <= bound if lacks else abs(gap) < 1e-9
    assert gaps[1] > 1e-3


def test_a_leaky_tokenizer_is_trained_on_the_test_text_and_a_clean_one_is_not(small):
    hmm = sources.named_source(CHAIN).hmm
    clean, leaky = (texts.Texts.of(hmm, kind, 40) for kind in ("clean", "leaky"))
    assert clean.process.tokenizer.pieces != leaky.process.tokenizer.pieces
    test = hmm.sample(4, 1500, first=texts.TEST_FIRST)
    for cut in (clean, leaky):
        for row, symbols in zip(cut.rows, test, strict=True):
            whole = [symbol for token in row for symbol in cut.process.tokenizer.pieces[token]]
            assert symbols[: len(whole)].tolist() == whole
            assert len(symbols) - len(whole) < max(cut.process.tokenizer.sizes)


def test_rows_for_training_begin_within_the_text():
    process = load_source("tokenized(mess3, 6)")
    within = texts.WindowsWithin(process)
    whole = process.sample(3, texts.SKIPPED + 10, seed=5, first=7)
    assert (within.sample(3, 10, seed=5, first=7) == whole[:, texts.SKIPPED :]).all()
    assert within.fingerprint() != process.fingerprint()


def test_a_unigram_model_of_tokens_has_their_entropy_per_symbol(small):
    cut = texts.Texts.of(load_source("markov_chain([[0.95, 0.05], [0.05, 0.95]])").to_hmm(), "symbols", 2)
    losses = texts.unigram_losses(cut)
    assert losses["exact"] == pytest.approx(math.log(2), abs=1e-12)
    assert losses["counted"] == pytest.approx(math.log(2), abs=0.05)


def test_a_source_begins_in_its_stationary_distribution_and_has_an_order_if_there_is_one():
    brackets, chain = sources.named_source("dyck(2, kinds=1)"), sources.named_source(CHAIN)
    assert brackets.order is None
    assert chain.order == 4
    assert brackets.hmm.start == pytest.approx([0.25, 0.5, 0.25])
    assert chain.hmm.start == pytest.approx(chain.hmm.stationary())
    assert load_source(CHAIN).hmm_at(0, 0).transition.tolist() == chain.hmm.transition.tolist()
    with pytest.raises(InputError, match="processes: physics_of_language_models"):
        sources.named_source("physics_of_language_models('cfg3f')")


def test_settings_that_leave_nothing_to_do_are_refused():
    for wrong, message in (
        ({"states": 0, "processes": []}, "processes is empty and states 0"),
        ({"vocab_sizes": [64, 64]}, "vocab_sizes is"),
        ({"seeds": []}, "seeds is"),
    ):
        with pytest.raises(InputError, match=message):
            run.TokenPriceSettings(output_dir="out", **wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 100}, "window is 100; expected one of 1, 2, "),
        ({"vocab_sizes": [30]}, "vocab_sizes has 30; expected more than the symbols of the stories, 34"),
        ({"vocab_sizes": [4], "states": 0}, "vocab_sizes has 4; expected more than the symbols of HMM"),
    ],
)
def test_sizes_that_the_report_would_lack_are_refused_before_anything_is_fitted(tmp_path, given, message):
    with imports_of("token_price"), pytest.raises(InputError, match=message):
        run.main(run.TokenPriceSettings(output_dir=str(tmp_path / "out"), **given))
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report_and_does_nothing_twice(program, succeeded, tmp_path):
    flags = ("--states", 0, "--processes", "golden_mean", CHAIN, "--vocab_sizes", 6, "--steps", 4, "--window", 16)
    command = (
        "-m",
        "hmm_datasets.cli",
        "experiment",
        "token-price",
        *flags,
        "--output_dir",
        tmp_path,
        "--seeds",
        0,
        1,
    )
    said = succeeded(program.run(*command, timeout=600)).stdout
    report = read_json(tmp_path / "report.json")
    kinds = [(result["tokenizer"], result["vocab_size"]) for result in report["results"]]
    assert kinds == [("symbols", 2), ("clean", 6), ("leaky", 6)] * 2
    assert [model["seed"] for model in report["results"][1]["models"]] == [0, 1]
    costs = [r["models"][0]["steps"] * r["models"][0]["flops_per_token"] for r in report["results"]]
    assert costs == pytest.approx([costs[0]] * 6, rel=0.15), "as much compute with every tokenizer"
    for name in ("token_price.png", "windows.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    assert "golden_mean: 6, leaky" in said
    assert "already done" in succeeded(program.run(*command, timeout=600)).stdout
    wrong = program.run(*command, "--vocab_sizes", 2)
    assert "vocab_sizes has 2; expected more than the symbols of" in wrong.stderr
