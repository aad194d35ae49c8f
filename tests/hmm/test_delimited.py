"""Independent pieces with a delimiter between: their probabilities, and what is refused."""

import itertools

import numpy as np
import pytest

from hmm_datasets import InputError, processes
from hmm_datasets.hmm.structured.delimited import DelimitedProcess


def test_pieces_are_drawn_with_their_probabilities_and_missing_tokens_are_summed_over():
    pairs = DelimitedProcess(processes.weather(), 2, 1)
    words = np.array(list(itertools.product(range(3), repeat=5)))
    expected = 20_000 * np.exp(pairs.log_likelihood(words))
    rows = pairs.sample(20_000, 5, seed=2)
    counts = np.array([np.sum((rows == word).all(1)) for word in words])
    assert expected.sum() == pytest.approx(20_000)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected.max())
    assert counts[expected == 0].sum() == 0
    gaps = np.array([[2, -1, 1, 0, -1]])
    filled = [np.exp(pairs.log_likelihood([[2, x, 1, 0, y]])) for x in range(3) for y in range(3)]
    np.testing.assert_allclose(np.exp(pairs.log_likelihood(gaps)), sum(filled), atol=1e-12)


def test_a_delimiter_is_a_symbol_of_the_process():
    with pytest.raises(InputError, match="delimiter is 3"):
        DelimitedProcess(processes.weather(), 2, 3)
