"""Hidden states of processes that are not stored as HMMs: those of the HMM with the same distribution."""

import numpy as np
import pytest
from composed_examples import blocked
from datasets import load_dataset

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.names import PREFIX, example_of, named_process
from hmm_datasets.hmm.structured.markov import random_markov_chain

SEED = 3
BLOCKED = blocked([0, 0, 1, 2, 2], 3, 4, seed=5)


@pytest.fixture
def process():
    return BLOCKED


@pytest.mark.thorough
def test_drawing_states_changes_no_symbol_and_rows_do_not_depend_on_each_other(process):
    symbols, states = process.sample_with_states(500, 40, SEED, first=9, step=3)
    np.testing.assert_array_equal(symbols, process.sample(500, 40, SEED, first=9, step=3))
    parts = [process.sample_with_states(1, 40, SEED, first=9 + 3 * row)[1][0] for row in (0, 7, 499)]
    np.testing.assert_array_equal(states[[0, 7, 499]], parts)
    assert process.max_states / 2 < states.max() < process.max_states
    threads = process.sample_with_states(500, 40, SEED, first=9, step=3, num_threads=2)
    np.testing.assert_array_equal(threads, (symbols, states))


def test_given_the_symbols_states_are_distributed_as_the_posterior_of_the_hmm_says(process):
    """Sums of indicator minus posterior, per state, position and symbol, within five standard errors of zero."""
    symbols, states = process.sample_with_states(20_000, 6, SEED)
    hmm = process.to_hmm()
    posteriors = hmm.posteriors(symbols)
    rest = np.eye(hmm.num_states)[states] - posteriors
    for symbol in range(hmm.num_symbols):
        chosen = (symbols == symbol)[..., None]
        error = np.sqrt((posteriors * (1 - posteriors) * chosen).sum(0))
        assert (np.abs((rest * chosen).sum(0)) <= 5 * error + 1e-6).all()
    # Only moves that the HMM can make.
    assert (hmm.transition[states[:, :-1], states[:, 1:]] > 0).all()


@pytest.mark.thorough
def test_states_are_a_column_of_the_data_set():
    name = PREFIX + example_of("blocked")
    row = next(
        iter(load_dataset("hmm", data_dir=name, split="train", streaming=True, columns=["input_ids", "states"]))
    )
    expected = named_process(name).sample_with_states(1, len(row["states"]))[1][0]
    np.testing.assert_array_equal(row["states"], expected)


def test_a_process_says_whether_it_has_states(process):
    assert process.has_states
    assert processes.mess3(0.15, 0.6).has_states
    assert not random_markov_chain(2, 3).has_states
