import numpy as np
import pytest
from composed_examples import random_rows

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.structured.factorial import FactorialHMM

SIZES = (2, 3, 4)
TRANSITIONS = [random_rows(size, size, seed=size) for size in SIZES]
EMISSION = random_rows(*SIZES, 5, seed=1)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_chains_that_move_one_by_one_agree_with_the_dense_hmm(kept):
    tables = TRANSITIONS[:kept], EMISSION[(slice(None),) * kept + (0,) * (3 - kept)]
    model, dense = FactorialHMM(*tables), FactorialHMM(*tables).to_hmm()
    tokens = model.sample(20, 30, seed=2)
    np.testing.assert_allclose(model.beliefs(tokens), dense.beliefs(tokens), atol=1e-10)
    np.testing.assert_allclose(model.next_token_probs(tokens), dense.next_token_probs(tokens), atol=1e-10)
    np.testing.assert_allclose(model.log_likelihood(tokens), dense.log_likelihood(tokens), atol=1e-10)
    np.testing.assert_allclose(dense.start, dense.stationary(), atol=1e-12)


def test_a_factorial_hmm_has_independent_chains_and_one_symbol():
    transitions, emission = [random_rows(2, 2, seed=8), random_rows(3, 3, seed=9)], random_rows(2, 3, 4, seed=10)
    hmm = FactorialHMM(transitions, emission, starts=[[1, 0], [0, 0, 1]]).to_hmm()
    assert hmm.num_states == 6
    for i, j, k, l in [(0, 1, 1, 2), (1, 2, 0, 0)]:
        assert hmm.transition[i * 3 + j, k * 3 + l] == pytest.approx(transitions[0][i, k] * transitions[1][j, l])
    np.testing.assert_array_equal(hmm.emission[5], emission[1, 2])
    np.testing.assert_array_equal(hmm.start, np.eye(6)[2])


def test_weights_of_a_factorial_hmm_add_before_the_softmax():
    tables = [random_rows(2, 2, seed=8)] * 2
    weights = np.random.default_rng(1).normal(size=(2, 2, 3))
    hmm = FactorialHMM(tables, weights=weights).to_hmm()
    logits = weights[0, 1] + weights[1, 0]
    np.testing.assert_allclose(hmm.emission[2], np.exp(logits) / np.exp(logits).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FactorialHMM([], EMISSION), "transitions have shapes"),
        (lambda: FactorialHMM([np.eye(2)]), "either emission= or weights="),
        (lambda: FactorialHMM([np.eye(2)], np.ones((3, 1))), r"expected \(2, 'E'\)"),
        (lambda: FactorialHMM([np.eye(2)], weights=[np.ones((3, 1))]), r"for H = \(2,\)"),
        (lambda: FactorialHMM([np.eye(128)] * 3, np.ones((1, 1))), "2,097,152 joint states"),
        (lambda: FactorialHMM([np.eye(2)], np.ones((2, 1)), starts=[]), r"starts have \(\) entries"),
        (lambda: FactorialHMM([np.eye(100)] * 2, np.ones((100, 100, 1))).to_hmm(), "10,000 states"),
    ],
)
def test_what_is_no_model_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
