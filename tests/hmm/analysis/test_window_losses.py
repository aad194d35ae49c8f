"""Losses of given sequences: of all their tokens, and of their last one."""

import numpy as np
import pytest

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.losses import mean_losses, window_losses
from hmm_datasets.hmm.families import PermutedEmissions


@pytest.mark.parametrize("source", [processes.mess3(0.15, 0.6), PermutedEmissions(processes.dishonest_casino())])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_last_loss_is_that_of_the_optimal_prediction_of_the_last_token(source, device):
    tokens = source.sample(20, 9, seed=4)
    mean, last = window_losses(source, tokens, device=device)
    probabilities = source.next_token_probs(tokens)[np.arange(20), 8, tokens[:, 8]]
    np.testing.assert_allclose(last, -np.log(probabilities), rtol=1e-9)
    np.testing.assert_allclose(mean, -source.log_likelihood(tokens) / 9, rtol=1e-12)


def test_an_impossible_sequence_has_infinite_losses_and_no_mean():
    tokens = np.array([[1, 0, 1], [0, 0, 1]])  # the golden mean process never emits 0 twice
    mean, last = window_losses(processes.golden_mean(), tokens)
    assert np.isinf(mean).tolist() == np.isinf(last).tolist() == [False, True]
    assert mean_losses(processes.golden_mean(), tokens)["cross_entropy"] is None


def test_missing_tokens_have_no_loss():
    tokens = np.array([[0, -1, 1, 1], [1, 1, 0, -1], [-1, -1, -1, -1]])
    source = processes.random(2, 2, seed=1)
    mean, last = window_losses(source, tokens)
    scores = source.log_likelihood(tokens)
    np.testing.assert_allclose(mean[:2], -scores[:2] / 3, rtol=1e-12)
    np.testing.assert_allclose(last[0], -np.log(source.next_token_probs(tokens[:1])[0, 3, 1]), rtol=1e-9)
    assert np.isnan([mean[2], last[1], last[2]]).all()
    found = mean_losses(source, tokens)
    assert found["cross_entropy"] == pytest.approx(-scores.sum() / 6, rel=1e-12)
    assert found["final_token_cross_entropy"] == pytest.approx(last[0], rel=1e-12)
