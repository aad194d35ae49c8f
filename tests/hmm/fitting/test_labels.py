"""Fits to sequences whose states are known, in part or wholly, and to weighted sequences."""

import itertools

import numpy as np
import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import inference, processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.kernels import counts
from tests.hmm import brute_force

GUESS = random_guess(3, 4, seed=2)
SOURCE = processes.random(3, 4, alpha=0.4, seed=7)
TOKENS = SOURCE.sample(12, 5, seed=1).astype(int)
LENGTHS = np.array([5, 4, 1, 5, 3, 2, 5, 5, 4, 5, 1, 5])
EXACT = {"dtype": "float64", "tolerance": 0, "show_progress": False}


@pytest.fixture(params=["compiled", "torch"])
def kernel(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(counts, "MAX_STATES", 0)


def counted(hmm, rows, known, weights):
    """Log-likelihood and expected counts by enumeration of all paths that agree with the known states."""
    start, moves, emitted, score = np.zeros(3), np.zeros((3, 3)), np.zeros((3, 4)), 0.0
    for row, labels, weight in zip(rows, known, weights, strict=True):
        chances = {}
        for path in itertools.product(range(3), repeat=len(row)):
            if all(label in (-1, state) for label, state in zip(labels, path, strict=True)):
                chance = hmm.start[path[0]] * np.prod(hmm.transition[path[:-1], path[1:]])
                chances[path] = chance * np.prod(np.where(row < 0, 1.0, hmm.emission[path, row]))
        total = sum(chances.values())
        score += weight * np.log(total)
        for path, chance in chances.items():
            share = weight * chance / total
            start[path[0]] += share
            np.add.at(moves, (path[:-1], path[1:]), share)
            np.add.at(emitted, (np.array(path)[row >= 0], row[row >= 0]), share)
    return score, start, moves, emitted


@pytest.mark.thorough
@pytest.mark.usefixtures("kernel")
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/568",
    "some states are observed: the posterior there is 0 or 1 and stays so",
    "`states=` with -1 where not known; equal to the sum over all paths that agree with them",
)
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/1016",
    "training on labelled and partially labelled sequences, which pomegranate 1.0 dropped",
    "`fit_hmm(x, states=z)`",
)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_a_step_with_known_states_and_weights_is_that_of_enumeration(share, weighted, missing):
    generator = np.random.default_rng(int(10 * share) + weighted)
    known = np.where(generator.random(TOKENS.shape) < share, generator.integers(0, 3, TOKENS.shape), -1)
    weights = generator.random(12) * 3 if weighted else np.ones(12)
    tokens = np.where(generator.random(TOKENS.shape) < 0.3 * missing, -1, TOKENS)
    rows = [row[:length] for row, length in zip(tokens, LENGTHS, strict=True)]
    labels = [row[:length] for row, length in zip(known, LENGTHS, strict=True)]
    score, *tables = counted(GUESS, rows, labels, weights)
    arguments = {"weights": weights} if weighted else {}
    result = fit_hmm(tokens, lengths=LENGTHS, states=known, initial=GUESS, max_epochs=1, **arguments, **EXACT)
    for name, table in zip(GUESS.tables(), tables, strict=True):
        expected = (table + 0.01) / (table + 0.01).sum(-1, keepdims=True)
        np.testing.assert_allclose(result.hmm.tables()[name], expected, atol=1e-10, err_msg=name)
    weight = weights @ [(row >= 0).sum() for row in rows]
    assert result.history[0]["train_log_likelihood"] == pytest.approx(score / weight, abs=1e-10)
    again = counted(result.hmm, rows, labels, weights)[0]
    assert result.train_log_likelihood == pytest.approx(again / weight, abs=1e-10)


def test_states_that_are_all_known_are_counted_in_one_step(tmp_path):
    tokens, states = SOURCE.sample_with_states(40, 20, seed=1)
    result = fit_hmm(tokens, states=states, num_states=3, pseudocount=0, checkpoint_dir=tmp_path, **EXACT)
    start = np.bincount(states[:, 0], minlength=3)
    moves, emitted = np.zeros((3, 3)), np.zeros((3, 4))
    np.add.at(moves, (states[:, :-1], states[:, 1:]), 1)
    np.add.at(emitted, (states, tokens), 1)
    for name, table in zip(GUESS.tables(), (start, moves, emitted), strict=True):
        np.testing.assert_allclose(
            result.hmm.tables()[name], table / table.sum(-1, keepdims=True), atol=1e-12, err_msg=name
        )
    assert (result.converged, len(result.history)) == (True, 1)
    assert result.reason.startswith("all states are known")
    with pytest.raises(InputError, match=r"data\.train was"):
        fit_hmm(tokens, states=(states + 1) % 3, num_states=3, pseudocount=0, checkpoint_dir=tmp_path, **EXACT)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/913",
    "50,000 labelled tokens of 2,000 states, not fitted after 12 hours",
    "labels are counted by look-up: 2 seconds; by the recursions of Baum-Welch it had not ended after 4 minutes",
)
def test_two_thousand_labelled_states_are_counted():
    generator = np.random.default_rng(0)
    states = generator.integers(0, 2000, (1, 50_000))
    tokens = (states // 10 + generator.integers(0, 3, states.shape)) % 200
    result = fit_hmm(tokens, states=states, num_states=2000, pseudocount=0, show_progress=False)
    moves = np.zeros((2000, 2000))
    np.add.at(moves, (states[0, :-1], states[0, 1:]), 1)
    totals = moves.sum(1, keepdims=True)
    visited = totals[:, 0] > 0
    np.testing.assert_allclose(result.hmm.transition[visited], (moves / np.maximum(totals, 1))[visited], rtol=1e-12)


@pytest.mark.thorough
def test_a_few_labels_name_the_states_of_a_fit():
    tokens, states = SOURCE.sample_with_states(200, 30, seed=3)
    known = np.full(states.shape, -1)
    known[:20] = states[:20]
    masked = np.ma.array(states, mask=known < 0)
    result = fit_hmm(tokens, states=known, num_states=3, max_epochs=40, show_progress=False)
    assert np.abs(result.hmm.emission - SOURCE.emission).max() < 0.1
    assert fit_hmm(tokens, states=masked, num_states=3, max_epochs=40, show_progress=False).hmm == result.hmm


@pytest.mark.usefixtures("kernel")
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/206",
    "weights of samples in fit",
    "`weights=`, one for each sequence; weight k is the same as k copies",
)
@pytest.mark.parametrize("more", [{}, {"update_every": 1, "batch_size": 60}])
def test_a_weight_is_a_number_of_copies(more):
    copies = np.array([0, 1, 2, 3] * 3)
    known = {"lengths": LENGTHS, "initial": GUESS, "max_epochs": 4, **EXACT, **more}
    weighted = fit_hmm(TOKENS, weights=copies, test_tokens=TOKENS, **known)
    repeated = np.repeat(np.arange(12), copies)
    known |= {"lengths": LENGTHS[repeated]}
    copied = fit_hmm(TOKENS[repeated], test_tokens=TOKENS, **known)
    for name, table in copied.hmm.tables().items():
        np.testing.assert_allclose(weighted.hmm.tables()[name], table, atol=1e-12, err_msg=name)
    assert weighted.train_log_likelihood == pytest.approx(copied.train_log_likelihood, abs=1e-12)
    for row, other in zip(weighted.history, copied.history, strict=True):
        assert row["objective"] == pytest.approx(other["objective"], abs=1e-12)


@pytest.mark.thorough
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("hmm", [brute_force.LEFT_TO_RIGHT, processes.rrxor()], ids=["states", "edges"])
def test_weighted_counts_are_the_sum_of_weighted_counts_of_rows(hmm):
    tokens = torch.from_numpy(hmm.sample(9, 40, seed=1).astype(np.int64))
    lengths = torch.arange(32, 41)
    weights = torch.tensor([0.0, 1.5, 2.0, 1e-3, 7.0, 0.0, 1.0, 0.25, 1e4], dtype=torch.float64)
    parameters = hmm.parameters()
    whole = inference.expected_counts(parameters, tokens, lengths, weights)
    for name in ("start", "transition", "emission"):
        rows = [inference.expected_counts(parameters, tokens[i : i + 1], lengths[i : i + 1]) for i in range(9)]
        expected = sum(weight * getattr(row, name) for weight, row in zip(weights, rows, strict=True))
        torch.testing.assert_close(getattr(whole, name), expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(whole.log_likelihood, inference.expected_counts(parameters, tokens, lengths).log_likelihood)


def test_an_impossible_sequence_of_weight_0_does_not_count():
    rows = np.array([[0, 1, 2], [2, 2, 0]])
    known = {"initial": brute_force.LEFT_TO_RIGHT, "max_epochs": 2, **EXACT}
    weighted = fit_hmm(rows, weights=[1, 0], **known)
    assert np.isfinite(weighted.train_log_likelihood)
    assert weighted.hmm == fit_hmm(rows[:1], **known).hmm


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"states": TOKENS[:, :4]}, "states have shape (12, 4); expected (12, 5), one for each token, -1 where not"),
        ({"states": np.full((12, 5), -2)}, "states[0, 0] is -2; the states of this HMM are 0..2, and -1 stands for"),
        ({"states": 1 + np.arange(60).reshape(12, 5) % 3}, "is 3; the states of this HMM are 0..2, and -1 stands for"
         " one that is not known; number the states from 0"),
        ({"states": np.full((12, 5), 255, np.uint8)}, "; -1 becomes 255 in the type uint8, so convert states"),
        ({"states": TOKENS * 0.5}, "states have type float64; expected integers"),
        ({"weights": [1.0]}, "weights have shape (1,); expected (12,), one for each sequence"),
        ({"weights": [-1.0, *np.ones(11)]}, "weights[0] is -1.0; expected a finite number, 0 or more"),
        ({"weights": [np.nan, *np.ones(11)]}, "weights[0] is nan"),
        ({"weights": np.zeros(12)}, "all weights are 0, so that no sequence counts"),
    ],
)  # fmt: skip
def test_labels_and_weights_that_cannot_be_used_are_refused(arguments, message):
    with pytest.raises(InputError) as caught:
        fit_hmm(TOKENS, num_states=3, show_progress=False, **arguments)
    assert message in str(caught.value)


def test_a_known_path_that_the_first_guess_rules_out_is_named():
    with pytest.raises(InputError, match=r"sequence 0: the HMM gives it probability 0; its known states need moves"):
        fit_hmm([[0, 1, 2]], states=[[2, 1, 0]], initial=brute_force.LEFT_TO_RIGHT, **EXACT)
