"""HMMs that are told: sequences are pure, beliefs are exact by enumeration, and a filter learns."""

import itertools

import numpy as np
import pytest
import torch
from architectures import architecture_config
from experiments import load
from scipy.stats import chi2

measure = load("wind_tunnels", "measure")


def test_sequences_are_as_golden():
    assert measure.told_sequences(2, 8, seed=7).tokens.tolist() == GOLDEN


GOLDEN = [[1, 2, 0, 2, 2, 4, 2, 1], [0, 1, 1, 3, 1, 4, 4, 1]]


def test_a_sequence_depends_on_seed_and_index_alone_and_its_beginning_not_on_the_length():
    whole, part = measure.told_sequences(6, 9, seed=3), measure.told_sequences(2, 5, seed=3, first=4)
    for name in ("transition", "emission"):
        assert torch.equal(getattr(whole, name)[4:], getattr(part, name))
    assert torch.equal(whole.tokens[4:, :5], part.tokens)
    assert torch.equal(whole.beliefs[4:, :5], part.beliefs)
    assert not torch.equal(whole.tokens, measure.told_sequences(6, 9, seed=4).tokens)


def test_beliefs_agree_with_enumeration_of_all_paths():
    batch = measure.told_sequences(3, 4, num_states=3, num_symbols=2, seed=1)
    for row in range(3):
        transition, emission = batch.transition[row].numpy(), batch.emission[row].numpy()
        for t in range(4):
            weights = np.zeros(3)
            for path in itertools.product(range(3), repeat=t + 2):  # from the state before the first symbol's
                weight = 1 / 3
                for k, symbol in enumerate(batch.tokens[row, : t + 1].tolist()):
                    weight *= transition[path[k], path[k + 1]] * emission[path[k + 1], symbol]
                weights[path[-1]] += weight
            np.testing.assert_allclose(batch.beliefs[row, t], weights / weights.sum(), rtol=1e-10)


@pytest.mark.thorough
def test_symbols_have_the_law_of_their_hmms():
    """Chi-square of the second symbol, summed over many HMMs, at significance 1e-4."""
    batch = measure.told_sequences(20_000, 2, seed=5)
    start = torch.full((5,), 0.2, dtype=torch.float64)
    law = torch.einsum("i,bij,bjk,bke->be", start, batch.transition, batch.transition, batch.emission)
    counts = torch.nn.functional.one_hot(batch.tokens[:, 1], 5).double()
    # Given their HMMs symbols are independent, so the sums of deviations have this covariance.
    deviation = (counts - law).sum(0)[:4]
    covariance = (torch.diag_embed(law) - law[:, :, None] * law[:, None]).sum(0)[:4, :4]
    statistic = float(deviation @ torch.linalg.solve(covariance, deviation))
    assert statistic < chi2.ppf(1 - 1e-4, 4)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["llama", "lstm", "mamba"])
def test_a_filter_reads_rows_and_symbols_and_learns(kind):
    config = architecture_config(kind, vocab_size=4, length=14, width=16, layers=1)
    sizes = {"num_states": 3, "num_symbols": 4}
    batch = measure.told_sequences(64, 8, **sizes, seed=9)

    def loss(steps):
        model = measure.train_filter(config, 6, steps=steps, batch_size=32, learning_rate=1e-2, **sizes)
        log_probs = model(batch.transition, batch.emission, batch.tokens)
        assert log_probs.shape == (64, 8, 3)
        return -(batch.beliefs * log_probs).sum(-1).mean().item()

    assert loss(25) < loss(1)
