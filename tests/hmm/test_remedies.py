"""What errors about HMMs advise is done here, and works."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from hmm_datasets import HMM, FitSettings, HMMSequences, fit_hmm
from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.optimum import measure_optimum
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.entropy import EntropyRate
from hmm_datasets.hmm.arrays import rows_of_column
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.structured.markov import MarkovChain

EMISSION = [[0.9, 0.1], [0.1, 0.9]]
OFF = np.array([[0.9, 0.07], [0.5, 0.5]])
TOKENS = np.array([[0, 1, 0, 1, 1, 0], [1, 0, 1, 0, 0, 0]])
quiet = {"show_progress": False}


def refused(call, message):
    with pytest.raises(InputError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def hmmlearn_model(transition):
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    model = hmmlearn.CategoricalHMM(2, init_params="", n_features=2)
    model.startprob_, model.transmat_ = np.array([0.5, 0.5]), transition
    model.emissionprob_ = np.array(EMISSION)
    return model


def test_rows_that_do_not_sum_to_one():
    refused(lambda: HMM(transition=OFF, emission=EMISSION), "0.97, not 1; pass normalize=True to rescale rows$")
    HMM(transition=OFF, emission=EMISSION, normalize=True)
    empty = [[0, 0], [0.5, 0.5]]
    for normalize in (False, True):
        refused(
            lambda normalize=normalize: HMM(transition=empty, emission=EMISSION, normalize=normalize),
            "sums to 0, not 1; give it a positive entry$",
        )
    HMM(transition=[[0.1, 0], [0.5, 0.5]], emission=EMISSION, normalize=True)


def test_rows_where_nothing_has_an_argument_normalize():
    whole = OFF / OFF.sum(axis=1, keepdims=True)
    said = r"\[0\] sums to 0.97, not 1; divide it by its sum$"
    refused(lambda: MarkovChain(OFF), said)
    MarkovChain(whole)
    refused(lambda: HMM.from_hmmlearn(hmmlearn_model(OFF)), said)
    HMM.from_hmmlearn(hmmlearn_model(whole))


def test_a_sequence_that_the_initial_hmm_cannot_emit():
    never = HMM(start=[1, 0], transition=[[1, 0], [0, 1]], emission=[[1, 0], [0, 1]])
    refused(
        lambda: fit_hmm(TOKENS, FitSettings(2), initial=never, **quiet),
        "probability 0; entries of initial that are 0 stay 0: give small positive numbers for those that it needs$",
    )
    tables = {name: np.maximum(getattr(never, name), 1e-3) for name in ("start", "transition", "emission")}
    fit_hmm(TOKENS, FitSettings(2, max_epochs=2), initial=HMM(**tables, normalize=True), **quiet)


def test_a_sequence_that_tables_without_a_prior_cannot_emit():
    settings = {"update_every": 1, "batch_size": 1, "update_rule": "replace", "max_epochs": 2}
    tokens = np.array([[0, 0, 0], [1, 1, 1]])
    refused(lambda: fit_hmm(tokens, FitSettings(2, pseudocount=0, **settings), **quiet), "fit with pseudocount > 0$")
    only = {"emission_pseudocount": 0, **settings}
    refused(lambda: fit_hmm(tokens, FitSettings(2, **only), **quiet), "fit with emission_pseudocount > 0$")
    fit_hmm(tokens, FitSettings(2, pseudocount=0.01, **settings), **quiet)


def test_labels_with_gaps_do_not_exhaust_the_memory(tmp_path):
    labels = TOKENS * 10**9
    refused(lambda: fit_hmm(labels, num_states=2, **quiet), "1,000,000,001 columns, of which the tokens use 2; number")
    tokens = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    fit_hmm(tokens, FitSettings(2, max_epochs=1), **quiet)
    wide = fit_hmm(TOKENS * 2**18, FitSettings(2, max_epochs=1), num_symbols=2**18 + 1, **quiet).hmm
    assert wide.num_symbols == 2**18 + 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pseudocount": "0.1"}, "^pseudocount is '0.1'; expected a finite number, 0 or more$"),
        ({"pseudocount": None}, "^pseudocount is None; expected a finite number, 0 or more$"),
        ({"seed": None}, "^seed is None; expected an integer in"),
        ({"tolerance": "x"}, "^tolerance is 'x'; expected a finite number"),
        ({"tolerance": float("nan")}, "^tolerance is nan; expected"),
        ({"num_states": None}, "^num_states is None; expected an integer in"),
        ({"max_epochs": "3"}, "^max_epochs is 3; expected an integer in"),
    ],
)
def test_settings_of_another_type_are_named(settings, message):
    refused(lambda: FitSettings(**{"num_states": 2, **settings}), message)
    FitSettings(2, pseudocount=np.float32(0.1), emission_pseudocount=None, batch_size=None, tolerance=1)


def test_the_number_of_states_in_the_place_of_settings():
    refused(lambda: fit_hmm(TOKENS, 2), "^settings are 2; expected FitSettings.*, or num_states=H alone$")
    fit_hmm(TOKENS, FitSettings(num_states=2, max_epochs=1), **quiet)
    fit_hmm(TOKENS, num_states=2, **quiet)


def test_held_out_symbols_that_the_fit_does_not_know_are_those_of_their_file(tmp_path, capsys):
    np.save(tmp_path / "train.npy", TOKENS)
    np.save(tmp_path / "held_out.npy", TOKENS + 5)
    with pytest.raises(InputError, match=r"^of the held-out sequences \(test_tokens\): tokens\[0, 0\] is 5; the symb"):
        fit_hmm(TOKENS, num_states=2, test_tokens=TOKENS + 5, **quiet)
    command = ["fit", str(tmp_path / "train.npy"), "--num_states", "2", "--test", str(tmp_path / "held_out.npy")]
    command += ["--output_dir", str(tmp_path / "fit"), "--max_epochs", "1"]
    with pytest.raises(SystemExit):
        main(command)
    assert f"error: {tmp_path / 'held_out.npy'}: of the held-out sequences" in capsys.readouterr().err


def test_an_hmm_measured_against_itself():
    hmm = processes.mess3(0.15, 0.6)
    model = HMMForCausalLM.from_hmm(hmm)
    rows = HMMSequences(hmm, 8, num_sequences=4)
    refused(
        lambda: measure_optimum(model, hmm, rows),
        r"on rows without \(bos=False, or --bos false\)$",
    )
    measured = measure_optimum(model, hmm, HMMSequences(hmm, 8, num_sequences=4, bos=False))
    assert abs(measured["bayes_gap"]["bayes_gap"]) < 1e-5


def test_tokens_that_are_rows_or_one_column():
    hmm = HMM(transition=[[0.9, 0.1], [0.5, 0.5]], emission=EMISSION)
    refused(lambda: hmm.log_likelihood([[0, 1], [1]]), "padded, with lengths=")
    hmm.log_likelihood([[0, 1], [1, 0]], lengths=[2, 1])
    column = np.array([[0], [1], [1]])
    refused(lambda: fit_hmm(column, num_states=2, **quiet), "`rows_of_column")
    fit_hmm(*rows_of_column(column, [3])[:1], num_states=2, **quiet)


def test_tables_of_another_library_for_an_hmm_that_emits_on_edges():
    pytest.importorskip("hmmlearn")
    edges = processes.even().edges
    refused(lambda: HMM(edges=edges).to_hmmlearn(), "make an HMM with transition= and emission= first$")
    HMM(transition=[[0.9, 0.1], [0.5, 0.5]], emission=EMISSION).to_hmmlearn()


@dataclass
class Coin(Process):
    """A class from outside, whose distribution is an array whatever the tokens are."""

    heads: float

    @property
    def num_symbols(self):
        return 2

    def _draw(self, seed, first, step, out):
        for row in range(len(out)):
            out[row] = (
                np.random.default_rng([int(seed), int(first + np.uint64(row) * step)]).random(out.shape[1]) < 0.7
            )

    def next_token_probs(self, tokens):
        return np.tile([1 - self.heads, self.heads], (len(tokens), np.shape(tokens)[1] + 1, 1))


def test_a_process_of_a_class_from_outside_is_measured_but_not_saved(tmp_path):
    coin = Coin(0.7)
    tokens = coin.sample(4, 6, seed=1)
    expected = np.log(np.where(tokens == 1, 0.7, 0.3)).sum(1)
    np.testing.assert_allclose(coin.log_likelihood(tokens), expected)
    torch.testing.assert_close(coin.log_likelihood(torch.from_numpy(tokens)), torch.from_numpy(expected))
    assert isinstance(coin.next_token_probs(torch.from_numpy(tokens)), torch.Tensor)
    assert coin.optimal_loss(3, num_sequences=64).nats[0] == pytest.approx(-(0.7 * np.log(0.7) + 0.3 * np.log(0.3)))
    refused(
        lambda: coin.save_pretrained(tmp_path / "coin"), "class Coin, which no installed distribution registers as"
    )
    assert not (tmp_path / "coin").exists()
    np.save(tmp_path / "tokens.npy", tokens)
    refused(lambda: HMMSequences(coin, 4).source.fingerprint(), "class Coin has no stored_name; give it one, and")


@pytest.mark.thorough
def test_tokens_are_integers_of_64_bits_to_pomegranate():
    pytest.importorskip("pomegranate")
    hmm = HMM(transition=[[0.9, 0.1], [0.5, 0.5]], emission=EMISSION)
    tokens = hmm.sample(3, 5)
    theirs = hmm.to_pomegranate().log_probability(torch.from_numpy(tokens.astype(np.int64))[..., None])
    np.testing.assert_allclose(theirs, hmm.log_likelihood(tokens), rtol=1e-5)


def test_what_a_process_does_not_have():
    chain = MarkovChain([[0.9, 0.1], [0.5, 0.5]])
    refused(chain.entropy_rate_bounds, "entropy_rate estimates the rate.*optimal_loss is an upper bound$")
    assert isinstance(chain.entropy_rate(), EntropyRate)
    chain.optimal_loss(3, num_sequences=8)
    refused(lambda: Coin(0.5).sample_with_states(1, 2), "draw its symbols with sample$")
    Coin(0.5).sample(1, 2)
