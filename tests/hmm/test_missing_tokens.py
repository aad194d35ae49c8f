"""Tokens that were not observed, in every kind of process: the sum over all that they may have been."""

import itertools

import numpy as np
import pytest
import torch
from test_empty_batches import KINDS

from hmm_datasets import HMM, FactoredProcess, MarkovChain, processes
from hmm_datasets.errors import InputError

EXACT = {"rtol": 1e-10, "atol": 1e-12}
LENGTH, GAPS = 5, 2
REFUSING = {
    "random chains",
    "chains of order 2",
    "trees of contexts",
    "with an end",  # which may have been at a gap
    "grammar",
    "bijection",
    "copying",
    "recall",
    "rewarded symbols",
    "rewarded pairs",
}
NOT_EXACT = {"hidden chains", "automata"}
WITH_STATES = ("beliefs", "joint_beliefs", "component_posteriors")


def drawn(process, seed: int = 2) -> np.ndarray:
    """Three rows of which two tokens each are missing."""
    tokens = process.sample(3, LENGTH, seed=seed).astype(np.int64)
    for row, places in zip(tokens, np.random.default_rng(seed).permuted([range(LENGTH)] * 3, axis=1), strict=True):
        row[places[:GAPS]] = -1
    return tokens


def completed(row: np.ndarray, num_symbols: int) -> np.ndarray:
    """Every row that has symbols where the given one has gaps."""
    gaps = np.flatnonzero(row < 0)
    fillings = np.array(list(itertools.product(range(num_symbols), repeat=len(gaps))))
    rows = np.repeat(row[None], len(fillings), axis=0)
    rows[:, gaps] = fillings
    return rows


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(KINDS.keys() - REFUSING - NOT_EXACT))
def test_missing_tokens_are_summed_over_in_every_kind(name):
    process = KINDS[name]
    tokens = drawn(process)
    likelihood, found = process.log_likelihood(tokens), process.next_token_probs(tokens)
    states = {method: getattr(process, method)(tokens) for method in WITH_STATES if _has(process, method, tokens)}
    for i, row in enumerate(tokens):
        for t in range(LENGTH + 1):
            words = completed(row[:t], process.num_symbols)
            weights = np.exp(process.log_likelihood(words))
            if t == LENGTH:
                np.testing.assert_allclose(np.exp(likelihood[i]), weights.sum(), **EXACT)
            share = weights / weights.sum()
            for method, result in {"next_token_probs": found, **states}.items():
                # Each of them is a distribution given the tokens, hence linear in their weights.
                expected = np.einsum("w,wx->x", share, getattr(process, method)(words)[:, t])
                np.testing.assert_allclose(result[i, t], expected, **EXACT, err_msg=f"{method} at {t}")
    np.testing.assert_array_equal(process.next_token_probs(torch.from_numpy(tokens)), found)


def _has(process, method: str, tokens: np.ndarray) -> bool:
    try:
        return getattr(process, method)(np.abs(tokens[:0])) is not None
    except (AttributeError, InputError):
        return False


@pytest.mark.parametrize("name", sorted(REFUSING))
def test_processes_that_cannot_sum_over_a_token_refuse_it_by_its_place(name):
    process = KINDS[name]
    tokens = (process.sample(2) if name.startswith("rewarded") else process.sample(2, LENGTH)).astype(np.int64)
    masked = np.ma.masked_array(tokens, np.eye(*tokens.shape, 1, dtype=bool))
    tokens[1, 2] = -1
    for method in ("log_likelihood", "next_token_probs", "beliefs"):
        if method == "beliefs" and not getattr(process, "belief_width", None):
            continue
        with pytest.raises(InputError, match=r"tokens\[0, 1\] is missing"):
            getattr(process, method)(masked)
        with pytest.raises(InputError, match=r"tokens\[1, 2\] is -1"):
            getattr(process, method)(tokens)


def test_a_chain_of_too_many_contexts_refuses_gaps():
    chain = MarkovChain(np.full((17,) * 4, 1 / 17))
    assert chain.belief_width is None
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is -1"):
        chain.log_likelihood([[0, -1, 1, 2]])


@pytest.mark.thorough
def test_a_long_row_of_gaps_has_probability_1():
    for process in (processes.random(20, 20, seed=1), processes.mess3(0.15, 0.6), processes.moon()):
        assert np.abs(process.log_likelihood(np.full((1, 5000), -1))).max() < 1e-9


def test_factors_are_summed_over_one_by_one():
    # Of 2^16 joint states, which no joint process could have.
    chain = HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.9, 0.1], [0.3, 0.7]])
    process = FactoredProcess([chain] * 16)
    tokens = process.sample(2, 12, seed=1).astype(np.int64)
    symbols = process.factor_tokens(tokens)
    tokens[:, 3:6] = symbols[:, :, 3:6] = -1
    expected = sum(chain.log_likelihood(part) for part in symbols)
    np.testing.assert_allclose(process.log_likelihood(tokens), expected, **EXACT)
