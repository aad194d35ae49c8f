"""Tokens that were not observed, in every method of an HMM, beside the sum over all paths and all that they may be."""

import brute_force
import numpy as np
import pandas as pd
import pytest
import torch
from brute_force import TINY

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM

EXACT = {"rtol": 1e-10, "atol": 1e-12}
LENGTHS = [5, 3, 0, 4, 5, 1]


def rows_with_gaps(hmm: HMM, seed: int) -> np.ndarray:
    """Drawn rows of unequal length with random gaps; one has nothing but gaps, one is as it was drawn."""
    tokens = hmm.sample(len(LENGTHS), max(LENGTHS), seed=seed).astype(int)
    gaps = np.random.default_rng(seed).random(tokens.shape) < 0.5
    gaps[0], gaps[3] = True, False
    tokens[gaps] = -1
    return tokens


def cut(tokens: np.ndarray) -> list[list[int]]:
    return [row[:end].tolist() for row, end in zip(tokens, LENGTHS, strict=True)]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)
def test_missing_tokens_are_summed_over(hmm, seed):
    tokens = rows_with_gaps(hmm, seed)
    rows, options = cut(tokens), {"lengths": LENGTHS}
    expected = [brute_force.log_likelihood(hmm, row) for row in rows]
    np.testing.assert_allclose(hmm.log_likelihood(tokens, **options), expected, **EXACT)
    assert abs(hmm.log_likelihood(tokens, **options)[0]) < 1e-12
    for method in ("beliefs", "next_token_probs", "posteriors"):
        found = getattr(hmm, method)(tokens, **options)
        for row, result in zip(rows, found, strict=True):
            truth = getattr(brute_force, method)(hmm, row)
            np.testing.assert_allclose(result[: len(truth)], truth, **EXACT)
    single = hmm.log_likelihood(tokens, **options, dtype=torch.float32)
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)
def test_the_best_paths_are_those_given_the_observed_tokens(hmm):
    tokens = rows_with_gaps(hmm, 9)
    best = hmm.viterbi(tokens, lengths=LENGTHS)
    for i, row in enumerate(cut(tokens)):
        paths = brute_force.emitting_path_probabilities(hmm, row)
        assert paths[tuple(best.states[i, : len(row)].tolist())] == pytest.approx(max(paths.values()), rel=1e-10)
        assert np.exp(best.log_probability[i]) == pytest.approx(max(paths.values()), rel=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)
def test_expected_counts_are_of_observed_tokens_and_of_moves_by_their_symbols(hmm, seed):
    tokens = rows_with_gaps(hmm, seed)[[0, 1, 3, 4, 5]]
    ends = [end for end in LENGTHS if end > 0]
    rows = [row[:end].tolist() for row, end in zip(tokens, ends, strict=True)]
    counts = hmm.expected_counts(tokens, lengths=ends)
    start, moves, emitted = brute_force.expected_counts(hmm, rows)
    np.testing.assert_allclose(counts.start, start, **EXACT)
    if hmm.edges is None:
        np.testing.assert_allclose(counts.transition, moves, **EXACT)
        np.testing.assert_allclose(counts.emission, emitted, **EXACT)
    else:
        edges = brute_force.expected_edge_counts(hmm, rows)
        np.testing.assert_allclose(counts.edges, edges, **EXACT)
        np.testing.assert_allclose(counts.transition, edges.sum(0), **EXACT)
        np.testing.assert_allclose(counts.emission, edges.sum(2).T, **EXACT)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
def test_pomegranate_gives_the_same_likelihoods_and_posteriors_of_masked_tokens():
    pytest.importorskip("pomegranate")
    hmm = processes.random(6, 5, alpha=0.5, seed=1)
    tokens = hmm.sample(20, 30, seed=2).astype(int)
    mask = np.random.default_rng(3).random(tokens.shape) < 0.7
    theirs = torch.masked.MaskedTensor(torch.tensor(tokens[..., None]), torch.tensor(mask[..., None]))
    model, gaps = hmm.to_pomegranate(), np.where(mask, tokens, -1)
    np.testing.assert_allclose(hmm.log_likelihood(gaps), model.log_probability(theirs), rtol=1e-4)
    np.testing.assert_allclose(hmm.posteriors(gaps), model.predict_proba(theirs), atol=1e-4)


@pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)
def test_gaps_at_the_end_change_nothing_that_came_before(hmm):
    tokens = hmm.sample(4, 6, seed=1).astype(int)
    longer = np.pad(tokens, ((0, 0), (0, 3)), constant_values=-1)
    np.testing.assert_allclose(hmm.log_likelihood(longer), hmm.log_likelihood(tokens), **EXACT)
    np.testing.assert_array_equal(hmm.beliefs(longer)[:, :7], hmm.beliefs(tokens))
    np.testing.assert_allclose(hmm.posteriors(longer)[:, :6], hmm.posteriors(tokens), **EXACT)


@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/301",
    "a way to say that some observations of a sequence are missing",
    "-1, NaN, None, NA or a mask, in every method",
)
@pytest.mark.outside(
    "https://github.com/emmekeaarts/mHMMbayes/issues/33",
    "NA in categorical data of a data frame",
    "pandas NA is a missing token, in inference and in a fit",
)
def test_every_way_to_write_a_gap_means_the_same():
    hmm = TINY["dense"]
    tokens = np.array([[0, 1, 2, 0], [2, -1, 1, -1]])
    lost = tokens < 0
    ways = {
        "a mask": np.ma.masked_array(np.where(lost, 7, tokens), lost),
        "NaN": np.where(lost, np.nan, tokens),
        "NaN in float32": np.where(lost, np.nan, tokens).astype(np.float32),
        "None": np.where(lost, None, tokens.astype(object)).tolist(),
        "pandas": pd.DataFrame(np.where(lost, np.nan, tokens)),
        "NA": pd.DataFrame(np.where(lost, pd.NA, tokens.astype(object))).astype("Int64"),
        "bytes": tokens.astype(np.int8),
        "a tensor": torch.tensor(tokens),
        "a tensor of floats": torch.tensor(np.where(lost, np.nan, tokens)),
    }
    for name, given in ways.items():
        for method in ("log_likelihood", "posteriors", "next_token_probs"):
            found = getattr(hmm, method)(given)
            np.testing.assert_array_equal(found, getattr(hmm, method)(tokens), err_msg=name)
    assert isinstance(hmm.log_likelihood(ways["a tensor of floats"]), torch.Tensor)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[0, -2]], "tokens[0, 1] is -2; the symbols of this HMM are 0..2, and -1 stands for a missing token"),
        ([[0, None, 3]], "tokens[0, 2] is 3"),
        ([[0.5, np.nan]], "tokens[0, 0] is 0.5"),
        ([[0.0, 1.0]], "convert them with .astype(int)"),
        ([[np.inf, np.nan]], "tokens[0, 0] is inf"),
        ([[2.0**60, np.nan]], "tokens have type float64"),
        (np.array([[2**64 - 1]], np.uint64), "tokens[0, 0] is 18446744073709551615"),
        (np.where([[False, True]], -1, np.zeros((1, 2), np.uint8)), "tokens[0, 1] is 255"),
        (
            np.full((1, 2), 255, np.uint8),
            "-1 becomes 255 in the type uint8, so convert tokens with .astype(int) before",
        ),
        ([[None, True]], "tokens have type bool"),
    ],
)
def test_nothing_else_is_taken_for_a_gap(tokens, message):
    for given in (tokens, torch.tensor(tokens)) if isinstance(tokens, np.ndarray) else (tokens,):
        with pytest.raises(InputError) as caught:
            TINY["dense"].log_likelihood(given)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
